// A gradient comes to life: tensors, memory, data and call.
#include <algorithm>
#include <optional>

#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/fill.hpp"
#include "reference/layouts.hpp"

namespace normgrad::reference {
Instance::Instance(const Case& description, uint64_t seed)
    : AnyInstance(description, {{"x", &Buffers::x},
                                {"dy", &Buffers::dy},
                                {"gamma", &Buffers::gamma},
                                {"mean", &Buffers::mean},
                                {"spread", &Buffers::spread},
                                {"dh", &Buffers::dh},
                                {"dx", nullptr, &Buffers::dx},
                                {"dgamma", nullptr, &Buffers::dgamma},
                                {"dbeta", nullptr, &Buffers::dbeta}}) {
  make_tensors();
  operands_.allocate(case_.offset);
  make_inputs(seed);
  operands_.seal();
  make_call();
  buffers_ = operands_.buffers();
}

void Instance::make_tensors() {
  const auto set = [&](int which, bool there, Use use, Tensor tensor) {
    operands_[which].use = there ? use : Use::kAbsent;
    operands_[which].tensor = std::move(tensor);
  };
  const Use sums = case_.accumulate ? Use::kUpdated : Use::kOutput;
  const bool has_dbeta = case_.want_dbeta && case_.op != Op::kRmsNorm;
  set(kX, true, Use::kInput, data_tensor(case_, Place::kX));
  set(kDy, true, Use::kInput, data_tensor(case_, Place::kDy));
  set(kGamma, case_.has_gamma, Use::kInput, parameter_tensor(case_, case_.gamma, 2));
  set(kMean, case_.has_mean(), Use::kInput, statistics_tensor(case_, true));
  set(kSpread, case_.has_spread(), Use::kInput, statistics_tensor(case_, false));
  set(kDh, case_.has_dh, Use::kInput, data_tensor(case_, Place::kDh));
  set(kDx, case_.want_dx, Use::kOutput, data_tensor(case_, Place::kDx));
  set(kDgamma, case_.want_dgamma, sums, parameter_tensor(case_, case_.params, 3));
  set(kDbeta, has_dbeta, sums, parameter_tensor(case_, case_.params, 2));
  if (case_.want_dx && case_.in_place != InPlace::kNone) {
    const int place = case_.in_place == InPlace::kDy  ? kDy
                      : case_.in_place == InPlace::kX ? kX
                                                      : kDh;
    operands_[kDx].host = &operands_[place];
    operands_[kDx].tensor = operands_[place].tensor;
  }
}

void Instance::make_inputs(uint64_t seed) {
  Inputs inputs = draw(case_, seed);
  operands_.write(kX, inputs.x);
  reference::finish(case_, seed, gather(operands_[kX].tensor, operands_[kX].data()), inputs);
  if (case_.values == Values::kNonFinite) operands_.write(kX, inputs.x);
  operands_.write(kDy, inputs.dy);
  operands_.write(kGamma, inputs.gamma);
  operands_.write(kMean, inputs.mean);
  operands_.write(kSpread, inputs.spread);
  // What is added to what: any numbers of its size will do.
  if (case_.has_dh) operands_.write(kDh, draw(case_, seed + 1).dy);
  for (const int which : {kDgamma, kDbeta}) {
    if (operands_[which].use == Use::kUpdated)
      operands_.write(which, draw_parameters(case_, seed + which));
  }
}

void Instance::make_call() {
  const auto set_common = [&](auto& call) {
    call.x = operands_[kX].tensor;
    call.dy = operands_[kDy].tensor;
    call.gamma = tensor_of(kGamma);
    call.eps = case_.statistics == Statistics::kMeanVariance ? case_.eps : 0;
    call.dx = tensor_of(kDx);
    call.dgamma = tensor_of(kDgamma);
    call.accumulate = case_.accumulate;
  };
  const auto set_rows = [&](auto& call) {
    call.normalized_axes = case_.normalized_axes;
    call.gamma_offset = case_.gamma_offset;
    call.dh = tensor_of(kDh);
  };
  const auto set_statistics = [&](auto& call) {
    call.statistics = case_.statistics;
    call.spread = operands_[kSpread].tensor;
    call.dbeta = tensor_of(kDbeta);
  };
  if (case_.op == Op::kLayerNorm) {
    LayerNormBackward call;
    set_common(call);
    set_rows(call);
    set_statistics(call);
    call.mean = tensor_of(kMean);
    call_ = call;
  } else if (case_.op == Op::kRmsNorm) {
    RmsNormBackward call;
    set_common(call);
    set_rows(call);
    call.spread = tensor_of(kSpread);
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
}

Status Instance::plan(Device device, Plan& plan) const {
  return std::visit([&](const auto& call) { return Plan::create(call, device, plan); }, call_);
}

}  // namespace normgrad::reference
