// What events and asynchronous copies ask of a stream.
#pragma once

#include "runtime.hpp"

namespace normgrad::acl {

// Refuses, on behalf of `function`, a stream that is neither null nor live.
aclError check_stream(const char* function, const void* stream);

}  // namespace normgrad::acl
