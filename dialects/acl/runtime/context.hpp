// Context: the device as a thread sees it. A thread has at most one current context.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime.hpp"

namespace normgrad::acl {

// The values of aclSysParamOpt, by their numbers.
struct Options {
  static constexpr int64_t kUnset = -1;
  std::array<std::atomic<int64_t>, 4> values = {kUnset, kUnset, kUnset, kUnset};
};

struct Context {
  constexpr explicit Context(int32_t id) : device_id(id) {}
  const int32_t device_id;
  Options options;
};

// The calling thread's current context; null if it has none, or none any more.
std::shared_ptr<Context> current_context();

// current_context, where null is refused on behalf of `function`, with ACL_ERROR_RT_CONTEXT_NULL.
std::shared_ptr<Context> need_context(const char* function);

// In stream.cpp: the streams of a context end with it.
void remove_streams_of(const void* context);

}  // namespace normgrad::acl
