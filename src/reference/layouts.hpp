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

// (parts, channels), or (channels): as one of several operands in the message of each part where
// the layout has gaps.
Tensor parts_tensor(const Case& c, DType dtype, bool gathered);
// One number per part, in the same messages.
Tensor counts_tensor(const Case& c);

}  // namespace normgrad::reference
