// RmsNormGrad: rstd of each row is given; the gradient of gamma is always fp32.
#include "kinds/check.hpp"
#include "normgrad/rms_norm_backward.hpp"

namespace normgrad::graph_mode {
namespace {

constexpr const char* kInputs[] = {"dy", "x", "rstd", "gamma"};
constexpr const char* kOutputs[] = {"dx", "dgamma"};
enum { kDy, kX, kRstd, kGamma };

Descs infer(const Descs& inputs) {
  const ::ge::TensorDesc& x = inputs[kX];
  const ::ge::TensorDesc& gamma = inputs[kGamma];
  return {::ge::TensorDesc(inputs[kDy].GetShape(), x.GetFormat(), x.GetDataType()),
          ::ge::TensorDesc(gamma.GetShape(), gamma.GetFormat(), ::ge::DT_FLOAT)};
}

Translation translate(const Invocation& invocation) {
  check_data(invocation, kDy, kX);
  check_rows(invocation, kDy, kGamma, kRstd);
  expect_type(invocation, kRstd, {::ge::DT_FLOAT});
  expect_float_or_type(invocation, kGamma, kDy);

  RmsNormBackward call;
  call.x = native(invocation.inputs[kX]);
  call.dy = native(invocation.inputs[kDy]);
  call.gamma = native(invocation.inputs[kGamma]);
  call.spread = native(invocation.inputs[kRstd]);
  call.normalized_axes = static_cast<int>(invocation.inputs[kGamma].GetShape().GetDimNum());
  call.names.spread = kInputs[kRstd];
  const Produced& used = invocation.used;
  using Call = RmsNormBackward;
  return {plan(invocation, call, used, std::array{&Call::dx, &Call::dgamma}),
          {&Buffers::dy, &Buffers::x, &Buffers::spread, &Buffers::gamma},
          {used[0] ? &Buffers::dx : nullptr, used[1] ? &Buffers::dgamma : nullptr}};
}

}  // namespace

constinit const OperatorKind kRmsNormGrad = {"RmsNormGrad", kInputs, kOutputs, 0, infer, translate};

}  // namespace normgrad::graph_mode
