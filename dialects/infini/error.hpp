// fail(): how both libraries refuse a call. The status goes to the caller, the sentence to
// normgradGetLastError. Nothing here allocates, so that running out of memory can be told too.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>

#include "infinicore.h"

// Lives in libinfinirt, as the sentence does: libinfiniop reports through it. Not in any header.
extern "C" __export void normgradSetLastError(const char* sentence) noexcept;

namespace normgrad::infini {

// Room for the longest sentence: a name, and two lists of eight 20-digit numbers. Longer ones are
// cut.
inline constexpr int kSentence = 1024;

[[gnu::format(printf, 2, 3)]] inline infiniStatus_t fail(infiniStatus_t status, const char* format,
                                                         ...) noexcept {
  char sentence[kSentence];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(sentence, sizeof(sentence), format, arguments);
  va_end(arguments);
  normgradSetLastError(sentence);
  return status;
}

// Runs `body`; an exception becomes a status, because none may cross a C boundary.
template <class Body>
infiniStatus_t guard(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(INFINI_STATUS_INTERNAL_ERROR, "out of memory");
  } catch (const std::exception& error) {
    return fail(INFINI_STATUS_INTERNAL_ERROR, "unexpected failure: %s", error.what());
  } catch (...) {
    return fail(INFINI_STATUS_INTERNAL_ERROR, "unexpected failure");
  }
}

}  // namespace normgrad::infini
