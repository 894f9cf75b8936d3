// The older name of graph/error_codes.h.
#ifndef NORMGRAD_GE_GRAPH_GE_ERROR_CODES_H_
#define NORMGRAD_GE_GRAPH_GE_ERROR_CODES_H_

#include "graph/error_codes.h"

#endif  // NORMGRAD_GE_GRAPH_GE_ERROR_CODES_H_
