// fail(): how the three libraries refuse a call. The status goes to the caller, the sentence to
// aclGetRecentErrMsg. Nothing here allocates, so that running out of memory can be told too.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>

// Live in libascendcl, as the sentence and the device do; the other two libraries call them. Not
// in any public header.
extern "C" {
// The calling thread's sentence for aclGetRecentErrMsg.
__attribute__((visibility("default"))) void normgradAclSetErrorMessage(
    const char* sentence) noexcept;
// Where operators run: 0 CPU, 1 CUDA. Follows NORMGRAD_ACL_DEVICE as it was at first use.
__attribute__((visibility("default"))) int32_t normgradAclDevice() noexcept;
// Whether a stream handle is one that operators may use: null (the default) or live.
__attribute__((visibility("default"))) bool normgradAclIsStream(const void* stream) noexcept;
}

namespace normgrad::acl {

// Room for the longest sentence: a name, and two lists of eight 20-digit numbers. Longer ones are
// cut.
inline constexpr int kSentence = 1024;

[[gnu::format(printf, 2, 3)]] inline int32_t fail(int32_t status, const char* format,
                                                  ...) noexcept {
  char sentence[kSentence];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(sentence, sizeof(sentence), format, arguments);
  va_end(arguments);
  normgradAclSetErrorMessage(sentence);
  return status;
}

}  // namespace normgrad::acl
