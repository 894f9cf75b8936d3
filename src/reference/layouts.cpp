#include "reference/layouts.hpp"

#include <algorithm>

#include "reference/elements.hpp"

namespace normgrad::reference {
namespace {

void pad_last_axis(Tensor& tensor, int64_t gap) {
  Tensor padded = tensor;
  padded.shape.back() += gap;
  tensor.strides = strides_of(padded);
}

void transpose(Tensor& tensor) {
  Tensor reversed = tensor;
  std::reverse(reversed.shape.begin(), reversed.shape.end());
  tensor.strides = strides_of(reversed);
  std::reverse(tensor.strides.begin(), tensor.strides.end());
}

void scale_strides(Tensor& tensor, int64_t factor) {
  tensor.strides = strides_of(tensor);
  for (int64_t& stride : tensor.strides) stride *= factor;
}

}  // namespace

Tensor data_tensor(const Case& c, Place place) {
  const bool x = place == Place::kX, dx = place == Place::kDx || place == Place::kY;
  const bool dy = place == Place::kDy || place == Place::kResidual;
  Tensor tensor = {place == Place::kDx ? c.dx_dtype.value_or(c.data) : c.data, c.shape};
  const size_t leading = c.shape.size() - 1;
  switch (c.layout) {
    case Layout::kPadded:
      pad_last_axis(tensor, 5);
      break;
    case Layout::kMixed:
      pad_last_axis(tensor, static_cast<int>(place) + 1);
      break;
    case Layout::kNegative:
      tensor.strides = strides_of(tensor);
      for (size_t axis = 0; axis < leading; ++axis) tensor.strides[axis] *= -1;
      break;
    case Layout::kBroadcastDy:
      tensor.strides = strides_of(tensor);
      for (size_t axis = 0; dy && axis < leading; ++axis) {
        if (axis == 0 || c.op != Op::kBatchNorm) tensor.strides[axis] = 0;
      }
      break;
    case Layout::kBroadcastInputs:
      tensor.strides = strides_of(tensor);
      if ((x || dy) && leading > 0) tensor.strides[0] = 0;
      break;
    case Layout::kPermuted: {
      Tensor reversed = tensor;
      std::reverse(reversed.shape.begin(), reversed.shape.begin() + leading);
      tensor.strides = strides_of(reversed);
      std::reverse(tensor.strides.begin(), tensor.strides.begin() + leading);
      break;
    }
    case Layout::kChannelsLast:
      tensor.strides = {c.shape[1] * c.shape[2], 1, c.shape[1]};
      break;
    case Layout::kChannelsLastGaps:
      tensor.strides = {c.shape[1] * c.shape[2] + (x ? 3 : 1), 1, c.shape[1]};
      break;
    case Layout::kStrided:
      scale_strides(tensor, 2);
      break;
    case Layout::kTransposed:
      transpose(tensor);
      break;
    case Layout::kScattered:
      if (x) transpose(tensor);
      if (dx) scale_strides(tensor, 2);
      break;
    default:
      break;
  }
  return tensor;
}

Tensor statistics_tensor(const Case& c, bool mean) {
  Tensor tensor = {c.statistics_dtype, {}};
  if (c.op == Op::kBatchNorm) {
    tensor.shape = c.parameters();
  } else {
    tensor.shape.assign(c.shape.begin(), c.shape.end() - c.normalized_axes);
    if (c.layout == Layout::kNegative) scale_strides(tensor, -1);
    if (c.layout == Layout::kBroadcastInputs && !tensor.shape.empty()) {
      tensor.strides = strides_of(tensor);
      tensor.strides[0] = 0;
    }
  }
  if (c.layout == Layout::kMixed || c.layout == Layout::kStridedParameters ||
      c.layout == Layout::kStrided) {
    scale_strides(tensor, mean ? 2 : 3);
  }
  if (c.layout == Layout::kTransposed) transpose(tensor);
  if (c.layout == Layout::kScattered && mean) {
    tensor.shape = {count(tensor)};
    scale_strides(tensor, 3);
  } else if (c.layout == Layout::kScattered) {
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    transpose(tensor);
  }
  for (int axis = 0; c.keep_axis && axis < c.normalized_axes; ++axis) {
    const bool implied = tensor.strides.empty() && !tensor.shape.empty();
    tensor.shape.push_back(1);
    if (!implied) tensor.strides.push_back(1);
  }
  return tensor;
}

Tensor parts_tensor(const Case& c, DType dtype, bool gathered) {
  const int64_t parts = static_cast<int64_t>(c.counts.size()), channels = c.groups();
  Tensor tensor = {dtype, {channels}};
  const bool gaps = c.layout == Layout::kStridedParameters || c.layout == Layout::kMixed;
  if (gathered) {
    tensor.shape = {parts, channels};
    if (gaps) tensor.strides = {2 * channels + 2, 1};
  } else if (gaps) {
    scale_strides(tensor, 3);
  }
  if (c.layout == Layout::kScattered && channels % 2 == 0) {  // what no stride can walk
    tensor.shape.back() = 2;
    tensor.shape.push_back(channels / 2);
    transpose(tensor);
  }
  return tensor;
}

Tensor counts_tensor(const Case& c) {
  const int64_t parts = static_cast<int64_t>(c.counts.size());
  Tensor tensor = {c.count_dtype, {parts}};
  if (c.layout == Layout::kStridedParameters || c.layout == Layout::kMixed) {
    scale_strides(tensor, 2 * c.groups() + 2);
  }
  if (c.layout == Layout::kScattered && parts == 4) {
    tensor.shape = {2, 2};
    transpose(tensor);
  }
  return tensor;
}

Tensor parameter_tensor(const Case& c, DType dtype, int64_t stride) {
  Tensor tensor = {dtype, c.parameters()};
  if (c.layout == Layout::kStridedParameters || c.layout == Layout::kStrided ||
      c.layout == Layout::kScattered) {
    scale_strides(tensor, stride);
  }
  if (c.layout == Layout::kTransposed) transpose(tensor);
  return tensor;
}

}  // namespace normgrad::reference
