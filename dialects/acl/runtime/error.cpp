// The calling thread's sentence, as aclGetRecentErrMsg hands it out.
#include "error.hpp"

#include <cstdio>

#include "acl/acl.h"

namespace {

struct Message {
  bool pending = false;
  char sentence[normgrad::acl::kSentence] = "";
};
constinit thread_local Message message;

}  // namespace

extern "C" {

void normgradAclSetErrorMessage(const char* sentence) noexcept {
  std::snprintf(message.sentence, sizeof(message.sentence), "%s", sentence);
  message.pending = true;
}

const char* aclGetRecentErrMsg() {
  if (!message.pending) return nullptr;
  message.pending = false;
  return message.sentence;
}

}  // extern "C"
