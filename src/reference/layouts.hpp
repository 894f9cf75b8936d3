// The tensors of a case: shapes, types, and the strides of its layout.
#pragma once

#include "reference/cases.hpp"

namespace normgrad::reference {

// The tensors of the shape of x; each has its own gap in the layout kMixed.
enum class Place { kX, kResidual, kDy, kDh, kY, kDx, kH, kXHat };
Tensor data_tensor(const Case& c, Place place);
Tensor statistics_tensor(const Case& c, bool mean);
// With gaps of `stride` where the layout has some.
Tensor parameter_tensor(const Case& c, DType dtype, int64_t stride);

}  // namespace normgrad::reference
