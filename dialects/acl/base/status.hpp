// aclnn's statuses and how its two libraries give them: the number to the caller, a sentence that
// begins with the kind of error to aclGetRecentErrMsg.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>

#include "error.hpp"
#include "normgrad/status.hpp"

namespace normgrad::acl {

inline constexpr int32_t kSuccess = 0;
inline constexpr int32_t kNullPointer = 161001;
inline constexpr int32_t kInvalid = 161002;
inline constexpr int32_t kRuntime = 361001;
inline constexpr int32_t kInner = 561000;
inline constexpr int32_t kNoExecutor = 561101;
inline constexpr int32_t kNoObject = 561103;  // an object is null, destroyed or something else

[[gnu::format(printf, 2, 3)]] inline int32_t refuse(int32_t status, const char* format,
                                                    ...) noexcept {
  char sentence[kSentence];
  const char* kind = status < 300000   ? "AclNN_Parameter_Error(EZ1001): "
                     : status < 500000 ? "AclNN_Runtime_Error(EZ9903): "
                                       : "AclNN_Inner_Error(EZ9999): ";
  const int length = std::snprintf(sentence, sizeof(sentence), "%s", kind);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(sentence + length, sizeof(sentence) - length, format, arguments);
  va_end(arguments);
  normgradAclSetErrorMessage(sentence);
  return status;
}

inline int32_t null_argument(const char* name) noexcept {
  return refuse(kNullPointer, "%s is null", name);
}

inline int32_t not_live(const char* name, const void* object, int32_t status = kNoObject) noexcept {
  return refuse(status, "%s: %p was destroyed or is something else", name, object);
}

// Runs `body`; an exception becomes a status, because none may cross a C boundary.
template <class Body>
int32_t guarded(int32_t out_of_memory, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return refuse(out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return refuse(kInner, "unexpected failure: %s", error.what());
  }
}

// The library's answer in this dialect. While a plan is made, kInternal says that memory ran out.
inline int32_t answer(const Status& status, int32_t internal) noexcept {
  if (status.ok()) return kSuccess;
  const int32_t code = status.code() == Code::kNullPointer         ? kNullPointer
                       : status.code() == Code::kUnsupportedDevice ? kRuntime
                       : status.code() == Code::kInternal          ? internal
                                                                   : kInvalid;
  return refuse(code, "%s", status.message().c_str());
}

}  // namespace normgrad::acl
