#pragma once

#include "normgrad/status.hpp"

// Returns from the enclosing function if `expression` is not ok.
#define NORMGRAD_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::normgrad::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
