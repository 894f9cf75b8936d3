// What events and asynchronous copies ask of a stream.
#pragma once

#include "runtime.hpp"

namespace normgrad::acl {

// Refuses, on behalf of `function`, a stream that is neither null nor live. One that is may be
// given to the device: a device with streams of its own has them as handles, others do not look at
// them.
aclError check_stream(const char* function, const void* stream);

}  // namespace normgrad::acl
