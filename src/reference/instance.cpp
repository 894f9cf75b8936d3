// An instance comes to life: tensors, memory, data and call.
#include <algorithm>
#include <optional>

#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/fill.hpp"
#include "reference/memory.hpp"

namespace normgrad::reference {
namespace {

constexpr size_t kAlignment = 64;

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

// x, dy or dx; each has its own gap in the layout kMixed.
Tensor data_tensor(const Case& c, bool x, bool dy) {
  const bool dx = !x && !dy;
  Tensor tensor = {dx ? c.dx_dtype.value_or(c.data) : c.data, c.shape};
  const size_t leading = c.shape.size() - 1;
  switch (c.layout) {
    case Layout::kPadded:
      pad_last_axis(tensor, 5);
      break;
    case Layout::kMixed:
      pad_last_axis(tensor, x ? 1 : dy ? 3 : 6);
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

Tensor parameter_tensor(const Case& c, DType dtype, int64_t stride) {
  Tensor tensor = {dtype, c.parameters()};
  if (c.layout == Layout::kStridedParameters || c.layout == Layout::kStrided ||
      c.layout == Layout::kScattered) {
    scale_strides(tensor, stride);
  }
  if (c.layout == Layout::kTransposed) transpose(tensor);
  return tensor;
}

}  // namespace

Instance::Instance(const Case& description, uint64_t seed) : case_(description) {
  make_tensors();
  make_memory();
  make_inputs(seed);
  make_call();
}

void Instance::make_tensors() {
  operands_[kX].tensor = data_tensor(case_, true, false);
  operands_[kDy].tensor = data_tensor(case_, false, true);
  operands_[kGamma].tensor = parameter_tensor(case_, case_.gamma, 2);
  operands_[kMean].tensor = statistics_tensor(case_, true);
  operands_[kSpread].tensor = statistics_tensor(case_, false);
  operands_[kDx].tensor = data_tensor(case_, false, false);
  operands_[kDgamma].tensor = parameter_tensor(case_, case_.params, 3);
  operands_[kDbeta].tensor = parameter_tensor(case_, case_.params, 2);
  if (case_.want_dx && case_.in_place != InPlace::kNone) {
    place_ = case_.in_place == InPlace::kDy ? kDy : kX;
    operands_[kDx].tensor = operands_[place_].tensor;
  }
}

void Instance::make_memory() {
  for (Operand& operand : operands_) {
    const std::vector<int64_t> strides = strides_of(operand.tensor);
    int64_t below = 0, above = count(operand.tensor) == 0 ? 0 : 1;  // in elements
    for (size_t axis = 0; above > 0 && axis < strides.size(); ++axis) {
      const int64_t reach = strides[axis] * (operand.tensor.shape[axis] - 1);
      (reach < 0 ? below : above) += reach;
    }
    const int64_t size = static_cast<int64_t>(size_of(operand.tensor.dtype));
    const int64_t extent = (above - below) * size;
    operand.memory.assign(kAlignment + 2 * kRedZone + case_.offset * size + extent, kPoison);
    const size_t misalignment = reinterpret_cast<uintptr_t>(operand.memory.data()) % kAlignment;
    operand.first =
        kRedZone + (kAlignment - misalignment) % kAlignment + (case_.offset - below) * size;
  }
}

void* Instance::Operand::data() { return count(tensor) == 0 ? nullptr : memory.data() + first; }

std::vector<std::span<std::byte>> Instance::memories() {
  std::vector<std::span<std::byte>> all;
  for (Operand& operand : operands_) all.emplace_back(operand.memory);
  return all;
}

void Instance::make_inputs(uint64_t seed) {
  Inputs inputs = draw(case_, seed);
  Operand& x = operands_[kX];
  const auto write = [&](int which, const std::vector<double>& values) {
    if (!values.empty()) scatter(operands_[which].tensor, operands_[which].data(), values);
  };
  write(kX, inputs.x);
  finish(case_, seed, gather(x.tensor, x.data()), inputs);
  if (case_.values == Values::kNonFinite) write(kX, inputs.x);
  write(kDy, inputs.dy);
  write(kGamma, inputs.gamma);
  write(kMean, inputs.mean);
  write(kSpread, inputs.spread);
  for (int which : {kX, kDy, kGamma, kMean, kSpread}) {
    operands_[which].hash = fnv1a(operands_[which].memory);
  }
  if (place_ != kDx) operands_[place_].before = operands_[place_].memory;
}

void Instance::make_call() {
  const auto optional = [&](bool present, int which) {
    return present ? std::optional(operands_[which].tensor) : std::nullopt;
  };
  const auto set_common = [&](auto& call) {
    call.x = operands_[kX].tensor;
    call.dy = operands_[kDy].tensor;
    call.gamma = optional(case_.has_gamma, kGamma);
    call.eps = case_.statistics == Statistics::kMeanVariance ? case_.eps : 0;
    call.dx = optional(case_.want_dx, kDx);
    call.dgamma = optional(case_.want_dgamma, kDgamma);
  };
  const auto set_statistics = [&](auto& call) {
    call.statistics = case_.statistics;
    call.spread = operands_[kSpread].tensor;
    call.dbeta = optional(case_.want_dbeta, kDbeta);
  };
  if (case_.op == Op::kLayerNorm) {
    LayerNormBackward call;
    set_common(call);
    set_statistics(call);
    call.mean = optional(case_.has_mean(), kMean);
    call.normalized_axes = case_.normalized_axes;
    call_ = call;
  } else if (case_.op == Op::kRmsNorm) {
    RmsNormBackward call;
    set_common(call);
    call.spread = optional(case_.has_spread(), kSpread);
    call.normalized_axes = case_.normalized_axes;
    call_ = call;
  } else {
    BatchNormBackward call;
    set_common(call);
    set_statistics(call);
    call.mean = operands_[kMean].tensor;
    call.frozen = case_.frozen;
    call.channel_axis = case_.channel_axis;
    call_ = call;
  }
  // Absent outputs keep their pointers: the call must not follow them.
  buffers_ = {operands_[kX].data(),
              operands_[kDy].data(),
              case_.has_gamma ? operands_[kGamma].data() : nullptr,
              case_.has_mean() ? operands_[kMean].data() : nullptr,
              case_.has_spread() ? operands_[kSpread].data() : nullptr,
              operands_[place_].data(),
              operands_[kDgamma].data(),
              operands_[kDbeta].data()};
}

}  // namespace normgrad::reference
