// A layer comes to life, and what it left is checked.
#include <cmath>

#include "reference/bound.hpp"
#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/fill.hpp"
#include "reference/layouts.hpp"

namespace normgrad::reference {

std::unique_ptr<AnyInstance> make_instance(const Case& description, uint64_t seed) {
  if (description.step != Step::kNone) return std::make_unique<StepInstance>(description, seed);
  if (description.forward) return std::make_unique<ForwardInstance>(description, seed);
  return std::make_unique<Instance>(description, seed);
}

ForwardInstance::ForwardInstance(const Case& description, uint64_t seed)
    : AnyInstance(description, {{"x", &Buffers::x},
                                {"residual", &Buffers::residual},
                                {"gamma", &Buffers::gamma},
                                {"beta", &Buffers::beta},
                                {"y", nullptr, &Buffers::y},
                                {"h", nullptr, &Buffers::h},
                                {"x_hat", nullptr, &Buffers::x_hat},
                                {"mean", nullptr, &Buffers::saved_mean},
                                {"spread", nullptr, &Buffers::saved_spread},
                                {"running_mean", nullptr, &Buffers::running_mean},
                                {"running_variance", nullptr, &Buffers::running_variance}}) {
  make_tensors();
  operands_.allocate(case_.offset);
  make_inputs(seed);
  operands_.seal();
  make_call();
  buffers_ = operands_.buffers();
}

void ForwardInstance::make_tensors() {
  const auto set = [&](int which, bool there, Use use, Tensor tensor) {
    operands_[which].use = there ? use : Use::kAbsent;
    operands_[which].tensor = std::move(tensor);
  };
  const bool rms = case_.op == Op::kRmsNorm, batch = case_.op == Op::kBatchNorm;
  const bool saves = !(batch && case_.frozen);
  const Use running = case_.frozen ? Use::kInput : Use::kUpdated;
  set(kX, true, Use::kInput, data_tensor(case_, Place::kX));
  set(kResidual, case_.has_residual, Use::kInput, data_tensor(case_, Place::kResidual));
  set(kGamma, case_.has_gamma, Use::kInput, parameter_tensor(case_, case_.gamma, 2));
  set(kBeta, case_.has_beta && !rms, Use::kInput, parameter_tensor(case_, case_.params, 3));
  set(kY, case_.want_y, Use::kOutput, data_tensor(case_, Place::kY));
  set(kH, case_.want_h, Use::kOutput, data_tensor(case_, Place::kH));
  set(kXHat, case_.want_x_hat, Use::kOutput, data_tensor(case_, Place::kXHat));
  set(kMean, case_.want_mean && saves && !rms, Use::kOutput, statistics_tensor(case_, true));
  set(kSpread, case_.want_spread && saves, Use::kOutput, statistics_tensor(case_, false));
  const bool has_running = batch && (case_.has_running || case_.frozen);
  set(kRunningMean, has_running, running, parameter_tensor(case_, case_.params, 2));
  set(kRunningVariance, has_running, running, parameter_tensor(case_, case_.params, 3));
  const auto lie_in = [&](int output, int input) {
    operands_[output].host = &operands_[input];
    operands_[output].tensor = operands_[input].tensor;
  };
  if (case_.in_place == InPlace::kX || case_.in_place == InPlace::kBoth) lie_in(kY, kX);
  if (case_.in_place == InPlace::kBoth) lie_in(kH, kResidual);
  if (case_.in_place == InPlace::kResidual) lie_in(kY, kResidual);
}

void ForwardInstance::make_inputs(uint64_t seed) {
  Inputs inputs = draw(case_, seed);
  if (case_.values == Values::kExact) {
    // +2 and -2 in turns around a small integer: LayerNorm and BatchNorm have r = 1/2.
    for (size_t i = 0; i < inputs.x.size(); ++i) {
      inputs.x[i] = (i % 2 == 0 ? 2 : -2) + (case_.op == Op::kRmsNorm ? 0 : 3);
    }
  }
  if (case_.values == Values::kNonFinite) {
    inputs.x[inputs.x.size() / 5] = NAN;
    inputs.x[inputs.x.size() * 3 / 5] = -INFINITY;
  }
  operands_.write(kX, inputs.x);
  operands_.write(kGamma, inputs.gamma);
  operands_.write(kBeta, draw_parameters(case_, seed + 1));
  if (case_.has_residual) operands_.write(kResidual, draw(case_, seed + 2).dy);
  if (operands_[kRunningMean].use == Use::kAbsent) return;
  operands_.write(kRunningMean, draw_parameters(case_, seed + 3));
  std::vector<double> variance = draw_parameters(case_, seed + 4);
  for (size_t c = 0; c < variance.size(); ++c) {
    const bool zero = case_.values == Values::kZeroDenominators && c % 3 == 1;
    variance[c] = zero ? 0 : std::abs(variance[c]);
  }
  operands_.write(kRunningVariance, variance);
}

void ForwardInstance::make_call() {
  const auto set_common = [&](auto& call) {
    call.x = operands_[kX].tensor;
    call.gamma = tensor_of(kGamma);
    call.eps = case_.eps;
    call.y = tensor_of(kY);
    call.spread = tensor_of(kSpread);
  };
  const auto set_rows = [&](auto& call) {
    call.normalized_axes = case_.normalized_axes;
    call.gamma_offset = case_.gamma_offset;
    call.residual = tensor_of(kResidual);
    call.h = tensor_of(kH);
  };
  const auto set_centred = [&](auto& call) {
    call.beta = tensor_of(kBeta);
    call.mean = tensor_of(kMean);
    call.statistics = case_.statistics;
  };
  if (case_.op == Op::kLayerNorm) {
    LayerNorm call;
    set_common(call);
    set_rows(call);
    set_centred(call);
    call.x_hat = tensor_of(kXHat);
    call_ = call;
  } else if (case_.op == Op::kRmsNorm) {
    RmsNorm call;
    set_common(call);
    set_rows(call);
    call_ = call;
  } else {
    BatchNorm call;
    set_common(call);
    set_centred(call);
    call.frozen = case_.frozen;
    call.channel_axis = case_.channel_axis;
    call.running_mean = tensor_of(kRunningMean);
    call.running_variance = tensor_of(kRunningVariance);
    call.momentum = 0.25;
    call_ = call;
  }
}

Status ForwardInstance::plan(Device device, Plan& plan) const {
  return std::visit([&](const auto& call) { return Plan::create(call, device, plan); }, call_);
}

Normalized ForwardInstance::reference() const {
  const Buffers inputs = operands_.inputs();
  if (const auto* call = std::get_if<LayerNorm>(&call_)) return layer_norm(*call, inputs);
  if (const auto* call = std::get_if<RmsNorm>(&call_)) return rms_norm(*call, inputs);
  return batch_norm(std::get<BatchNorm>(call_), inputs);
}

Report ForwardInstance::check() const {
  Report report;
  const Normalized ref = reference();
  const ForwardGates& gates = case_.random ? kRandomForward : kProvenForward;
  const auto compare = [&](int which, const Output& output, double k) {
    compare_output(which, output.values, output.scales, k, 0, case_.random, report);
  };
  compare_output(kH, ref.h, std::vector<double>(ref.h.size()), 0, 0, false, report);
  compare(kY, ref.y, gates.y);
  compare(kXHat, ref.x_hat, gates.y);
  compare(kMean, ref.mean, gates.mean);
  compare(kSpread, ref.spread, gates.spread);
  compare(kRunningMean, ref.running_mean, gates.mean);
  compare(kRunningVariance, ref.running_variance, gates.spread);
  finish(report);
  return report;
}

}  // namespace normgrad::reference
