// What the functions of Session and of the engine return.
#ifndef NORMGRAD_GE_GE_API_ERROR_CODES_H_
#define NORMGRAD_GE_GE_API_ERROR_CODES_H_

#include <cstdint>

namespace ge {

typedef uint32_t Status;

static const Status SUCCESS = 0;
static const Status FAILED = 0xFFFFFFFF;

}  // namespace ge

#endif  // NORMGRAD_GE_GE_API_ERROR_CODES_H_
