// How the three libraries refuse a call: the status goes to the caller, the sentence to
// GEGetErrorMsgV2. Inside, a refusal is an exception; none leaves the API.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "graph/error_codes.h"
#include "graph/types.h"

namespace normgrad::graph_mode {

// Live in libgraph_base. Of the calling thread, and without allocation, so that running out of
// memory can be told too; what is too long for the buffers is cut.
NORMGRAD_GE_EXPORT void set_error(const char* sentence) noexcept;
NORMGRAD_GE_EXPORT void add_warning(const char* sentence) noexcept;
// The text since the last take; valid until the thread's next failure or warning.
NORMGRAD_GE_EXPORT const char* take_error() noexcept;
NORMGRAD_GE_EXPORT const char* take_warnings() noexcept;

// Throws the sentence.
[[noreturn]] inline void refuse(const std::string& sentence) { throw std::runtime_error(sentence); }

// Runs `body`, which returns a status.
template <class Body>
uint32_t guard(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    set_error("out of memory");
  } catch (const std::exception& error) {
    set_error(error.what());
  } catch (...) {
    set_error("unexpected failure");
  }
  return ::ge::GRAPH_FAILED;
}

// Refuses with another status than GRAPH_FAILED, or where nothing is to be thrown.
inline uint32_t fail(uint32_t status, const std::string& sentence) noexcept {
  set_error(sentence.c_str());
  return status;
}

}  // namespace normgrad::graph_mode
