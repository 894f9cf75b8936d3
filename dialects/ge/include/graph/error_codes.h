// What the functions of Operator, Graph and Tensor return.
#ifndef NORMGRAD_GE_GRAPH_ERROR_CODES_H_
#define NORMGRAD_GE_GRAPH_ERROR_CODES_H_

#include <cstdint>

namespace ge {

typedef uint32_t graphStatus;

static const graphStatus GRAPH_SUCCESS = 0;
static const graphStatus GRAPH_FAILED = 0xFFFFFFFF;
static const graphStatus GRAPH_NOT_CHANGED = 1343242304;
static const graphStatus GRAPH_PARAM_INVALID = 50331649;
static const graphStatus GRAPH_PARAM_OUT_OF_RANGE = 50331644;
static const graphStatus GRAPH_NULL_PTR = 50331538;

}  // namespace ge

#endif  // NORMGRAD_GE_GRAPH_ERROR_CODES_H_
