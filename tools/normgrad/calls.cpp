#include "calls.hpp"

#include <variant>

#include "reference/elements.hpp"

namespace normgrad::tool {

using reference::Call;
using reference::Op;

Call make_call(Op op, const std::vector<int64_t>& shape, DType dtype, int channel_axis) {
  const Tensor data = {dtype, shape};
  const auto outputs = [&](auto call, const Tensor& params) {
    call.x = call.dy = data;
    call.dx = data;
    call.gamma = call.dgamma = params;
    return call;
  };
  if (op == Op::kBatchNorm) {
    const Tensor params = {dtype, {shape.size() == 3 ? shape[channel_axis] : 0}};
    auto call = outputs(BatchNormBackward(), params);
    call.channel_axis = channel_axis;
    call.mean = call.spread = params;
    call.dbeta = params;
    return call;
  }
  const Tensor params = {dtype, {shape.empty() ? 0 : shape.back()}};
  if (op == Op::kRmsNorm) return outputs(RmsNormBackward(), params);
  auto call = outputs(LayerNormBackward(), params);
  call.statistics = Statistics::kXHatStd;
  call.spread = {dtype, shape};
  if (!shape.empty()) call.spread.shape.pop_back();
  call.dbeta = params;
  return call;
}

Operands operands_of(const Call& call) {
  return std::visit(
      [](const auto& each) {
        Operands operands;
        operands.x = each.x;
        operands.dy = each.dy;
        operands.gamma = each.gamma;
        if constexpr (requires { each.mean; }) operands.mean = each.mean;
        operands.spread = each.spread;
        operands.dx = each.dx;
        operands.dgamma = each.dgamma;
        if constexpr (requires { each.dbeta; }) operands.dbeta = each.dbeta;
        return operands;
      },
      call);
}

int64_t bytes_of(const std::optional<Tensor>& tensor) {
  return tensor ? reference::count(*tensor) * static_cast<int64_t>(size_of(tensor->dtype)) : 0;
}

reference::Gradients oracle(const Call& call, const Buffers& buffers) {
  struct {
    const Buffers& buffers;
    auto operator()(const LayerNormBackward& each) const {
      return reference::layer_norm_backward(each, buffers);
    }
    auto operator()(const RmsNormBackward& each) const {
      return reference::rms_norm_backward(each, buffers);
    }
    auto operator()(const BatchNormBackward& each) const {
      return reference::batch_norm_backward(each, buffers);
    }
  } const of_operator{buffers};
  return std::visit(of_operator, call);
}

}  // namespace normgrad::tool
