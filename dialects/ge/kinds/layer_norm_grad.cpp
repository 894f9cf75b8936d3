// LayerNormGrad and LayerNormGradV3: the same operator, given the variance or rstd of each row.
#include "kinds/check.hpp"
#include "normgrad/layer_norm_backward.hpp"

namespace normgrad::graph_mode {
namespace {

constexpr const char* kInputs[] = {"dy", "x", "variance", "mean", "gamma"};
constexpr const char* kInputsV3[] = {"dy", "x", "rstd", "mean", "gamma"};
constexpr const char* kOutputs[] = {"pd_x", "pd_gamma", "pd_beta"};
enum { kDy, kX, kSpread, kMean, kGamma };
enum { kPdX, kPdGamma, kPdBeta };

Descs infer(const Descs& inputs) {
  const ::ge::TensorDesc& x = inputs[kX];
  const ::ge::TensorDesc& gamma = inputs[kGamma];
  const ::ge::TensorDesc parameters(gamma.GetShape(), gamma.GetFormat(), gamma.GetDataType());
  return {::ge::TensorDesc(inputs[kDy].GetShape(), x.GetFormat(), x.GetDataType()), parameters,
          parameters};
}

void check(const Invocation& invocation) {
  check_data(invocation, kDy, kX);
  expect_same_shape(invocation, kMean, kSpread);
  check_rows(invocation, kDy, kGamma, kSpread);
  expect_type(invocation, kSpread, {::ge::DT_FLOAT});
  expect_type(invocation, kMean, {::ge::DT_FLOAT});
  expect_float_or_type(invocation, kGamma, kDy);
}

Produced produced(const Invocation& invocation) {
  Produced mask = attribute(invocation, "output_mask", Produced(3, true));
  if (mask.size() != 3) {
    refuse(invocation, "attribute output_mask",
           "expected 3 elements, got " + std::to_string(mask.size()));
  }
  if (mask[kPdGamma] && mask[kPdBeta]) expect_same_output_type(invocation, kPdBeta, kPdGamma);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = mask[i] && invocation.used[i];
  return mask;
}

// -1, the default of the prototype, stands for what the type of x calls for.
double epsilon(const Invocation& invocation) {
  const float given = attribute(invocation, "epsilon", -1.0f);
  if (given == -1.0f) {
    return invocation.inputs[kX].GetDataType() == ::ge::DT_FLOAT ? 1e-12 : 1e-5;
  }
  if (!(given >= 0) || std::isinf(given)) {
    refuse(invocation, "attribute epsilon",
           "expected a finite number of 0 and more, or -1 for the default, got " +
               std::to_string(given));
  }
  return given;
}

Translation translate(const Invocation& invocation, LayerNormBackward call) {
  call.x = native(invocation.inputs[kX]);
  call.dy = native(invocation.inputs[kDy]);
  call.gamma = native(invocation.inputs[kGamma]);
  call.mean = native(invocation.inputs[kMean]);
  call.spread = native(invocation.inputs[kSpread]);
  call.normalized_axes = static_cast<int>(invocation.inputs[kGamma].GetShape().GetDimNum());
  call.names.dx = kOutputs[kPdX];
  call.names.dgamma = kOutputs[kPdGamma];
  call.names.dbeta = kOutputs[kPdBeta];
  const Produced outputs = produced(invocation);
  using Call = LayerNormBackward;
  return {plan(invocation, call, outputs, std::array{&Call::dx, &Call::dgamma, &Call::dbeta}),
          {&Buffers::dy, &Buffers::x, &Buffers::spread, &Buffers::mean, &Buffers::gamma},
          {outputs[kPdX] ? &Buffers::dx : nullptr, outputs[kPdGamma] ? &Buffers::dgamma : nullptr,
           outputs[kPdBeta] ? &Buffers::dbeta : nullptr}};
}

Translation from_variance(const Invocation& invocation) {
  check(invocation);
  LayerNormBackward call;
  call.statistics = Statistics::kMeanVariance;
  call.eps = epsilon(invocation);
  call.names.spread = kInputs[kSpread];
  call.names.eps = "epsilon";
  return translate(invocation, call);
}

Translation from_rstd(const Invocation& invocation) {
  check(invocation);
  LayerNormBackward call;
  call.statistics = Statistics::kMeanRstd;
  call.names.spread = kInputsV3[kSpread];
  return translate(invocation, call);
}

constexpr unsigned kFloatOutputs = 1u << kPdGamma | 1u << kPdBeta;

}  // namespace

constinit const OperatorKind kLayerNormGrad = {"LayerNormGrad", kInputs, kOutputs,
                                               kFloatOutputs,   infer,   from_variance};
constinit const OperatorKind kLayerNormGradV3 = {"LayerNormGradV3", kInputsV3, kOutputs,
                                                 kFloatOutputs,     infer,     from_rstd};

}  // namespace normgrad::graph_mode
