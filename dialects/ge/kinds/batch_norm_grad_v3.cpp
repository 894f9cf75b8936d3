// BatchNormGradV3: in training from the statistics of the batch, else from the running ones.
#include "kinds/check.hpp"
#include "normgrad/batch_norm_backward.hpp"

namespace normgrad::graph_mode {
namespace {

constexpr const char* kInputs[] = {"dy",          "x",         "weight",   "running_mean",
                                   "running_var", "save_mean", "save_rstd"};
constexpr const char* kOutputs[] = {"dx", "dweight", "dbias"};
enum { kDy, kX, kWeight, kRunningMean, kRunningVar, kSaveMean, kSaveRstd };
enum { kDx, kDweight, kDbias };

Descs infer(const Descs& inputs) {
  const ::ge::TensorDesc& x = inputs[kX];
  const ::ge::TensorDesc& weight = inputs[kWeight];
  const ::ge::TensorDesc parameters(weight.GetShape(), weight.GetFormat(), weight.GetDataType());
  return {::ge::TensorDesc(inputs[kDy].GetShape(), x.GetFormat(), x.GetDataType()), parameters,
          parameters};
}

// By the format of x or, if that says nothing, of dy.
int channel_axis(const Invocation& invocation) {
  const size_t input = invocation.inputs[kX].GetFormat() == ::ge::FORMAT_ND ? kDy : kX;
  const ::ge::TensorDesc& desc = invocation.inputs[input];
  switch (desc.GetFormat()) {
    case ::ge::FORMAT_ND:
    case ::ge::FORMAT_NC:
    case ::ge::FORMAT_NCL:
    case ::ge::FORMAT_NCHW:
    case ::ge::FORMAT_NCDHW:
      return 1;
    case ::ge::FORMAT_NHWC:
    case ::ge::FORMAT_NDHWC:
      return static_cast<int>(desc.GetShape().GetDimNum()) - 1;
    default:
      refuse(invocation, kInputs[input],
             std::string("expected ND, NC, NCL, NCHW, NCDHW, NHWC or NDHWC, got ") +
                 ::ge::GetFormatName(desc.GetFormat()));
  }
}

void check(const Invocation& invocation) {
  check_data(invocation, kDy, kX);
  expect_float_or_type(invocation, kWeight, kDy);
  for (const size_t statistic : {kRunningMean, kRunningVar, kSaveMean, kSaveRstd}) {
    expect_type(invocation, statistic, {::ge::DT_FLOAT});
    expect_same_shape(invocation, statistic, kWeight);
  }
  expect_same_output_type(invocation, kDbias, kDweight);
}

Translation translate(const Invocation& invocation) {
  check(invocation);
  const float epsilon = attribute(invocation, "epsilon", 1e-5f);
  if (!(epsilon >= 0) || std::isinf(epsilon)) {
    refuse(invocation, "attribute epsilon",
           "expected a finite number of 0 and more, got " + std::to_string(epsilon));
  }
  const bool training = attribute(invocation, "is_training", true);
  const size_t mean = training ? kSaveMean : kRunningMean;
  const size_t spread = training ? kSaveRstd : kRunningVar;

  BatchNormBackward call;
  call.x = native(invocation.inputs[kX]);
  call.dy = native(invocation.inputs[kDy]);
  call.gamma = native(invocation.inputs[kWeight]);
  call.statistics = training ? Statistics::kMeanRstd : Statistics::kMeanVariance;
  call.mean = native(invocation.inputs[mean]);
  call.spread = native(invocation.inputs[spread]);
  call.eps = training ? 0.0 : epsilon;
  call.frozen = !training;
  call.channel_axis = channel_axis(invocation);
  call.names.gamma = kInputs[kWeight];
  call.names.mean = kInputs[mean];
  call.names.spread = kInputs[spread];
  call.names.dgamma = kOutputs[kDweight];
  call.names.dbeta = kOutputs[kDbias];
  call.names.eps = "epsilon";

  const Produced& used = invocation.used;
  using Call = BatchNormBackward;
  Translation result = {
      plan(invocation, call, used, std::array{&Call::dx, &Call::dgamma, &Call::dbeta}),
      {&Buffers::dy, &Buffers::x, &Buffers::gamma, nullptr, nullptr, nullptr, nullptr},
      {used[kDx] ? &Buffers::dx : nullptr, used[kDweight] ? &Buffers::dgamma : nullptr,
       used[kDbias] ? &Buffers::dbeta : nullptr}};
  result.inputs[mean] = &Buffers::mean;
  result.inputs[spread] = &Buffers::spread;
  return result;
}

}  // namespace

constinit const OperatorKind kBatchNormGradV3 = {
    "BatchNormGradV3", kInputs, kOutputs, 1u << kDweight | 1u << kDbias, infer, translate};

}  // namespace normgrad::graph_mode
