// One of the steps of a BatchNorm comes to life, and what it left is checked.
#include <algorithm>
#include <cmath>

#include "reference/bound.hpp"
#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/fill.hpp"
#include "reference/layouts.hpp"

namespace normgrad::reference {

// Of the first step of the layer the mean is an output, of everything else an input.
StepInstance::StepInstance(const Case& description, uint64_t seed)
    : AnyInstance(description, {{"x", &Buffers::x},
                                {"dy", &Buffers::dy},
                                {"gamma", &Buffers::gamma},
                                {"beta", &Buffers::beta},
                                {"mean", &Buffers::mean},
                                {"spread", &Buffers::spread},
                                {"sum_dy", nullptr, &Buffers::sum_dy},
                                {"sum_dy_xmu", nullptr, &Buffers::sum_dy_xmu},
                                {"count", nullptr, &Buffers::count},
                                {"squares", nullptr, &Buffers::squares},
                                {"y", nullptr, &Buffers::y},
                                {"dx", nullptr, &Buffers::dx},
                                {"dgamma", nullptr, &Buffers::dgamma},
                                {"dbeta", nullptr, &Buffers::dbeta},
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

void StepInstance::make_tensors() {
  const auto set = [&](int which, Use use, Tensor tensor) {
    operands_[which].use = use;
    operands_[which].tensor = std::move(tensor);
  };
  const bool forward = case_.forward, reduce = case_.step == Step::kReduce;
  const Use passed = reduce ? Use::kOutput : Use::kInput;
  const bool gathered = !reduce && !case_.whole_sums;
  const Tensor sums = parts_tensor(case_, case_.sums, gathered);
  set(kX, Use::kInput, data_tensor(case_, Place::kX));
  set(kCount, passed, reduce ? Tensor{DType::kI64, {1}} : counts_tensor(case_));
  const auto parameter = [&](int64_t stride) {
    return parameter_tensor(case_, case_.gamma, stride);
  };
  if (case_.has_gamma && !reduce) set(kGamma, Use::kInput, parameter(2));
  if (forward) {
    set(reduce ? kSavedMean : kMean, passed, sums);
    set(kSquares, passed, sums);
    if (reduce) return;
    if (case_.has_beta) set(kBeta, Use::kInput, parameter(3));
    if (case_.want_y) set(kY, Use::kOutput, data_tensor(case_, Place::kY));
    if (case_.want_mean) set(kSavedMean, Use::kOutput, statistics_tensor(case_, true));
    if (case_.want_spread) set(kSavedSpread, Use::kOutput, statistics_tensor(case_, false));
    if (case_.has_running) set(kRunningMean, Use::kUpdated, parameter(2));
    if (case_.has_running) set(kRunningVariance, Use::kUpdated, parameter(3));
  } else {
    set(kDy, Use::kInput, data_tensor(case_, Place::kDy));
    set(kMean, Use::kInput, statistics_tensor(case_, true));
    set(kSpread, Use::kInput, statistics_tensor(case_, false));
    set(kSumDy, passed, sums);
    set(kSumDyXmu, passed, sums);
    set(reduce ? kDgamma : kDx, Use::kOutput,
        reduce ? parameter(3) : data_tensor(case_, Place::kDx));
    if (reduce) set(kDbeta, Use::kOutput, parameter(2));
  }
  if (case_.in_place != InPlace::kX || reduce) return;
  Placed& output = operands_[forward ? kY : kDx];
  output.host = &operands_[kX];
  output.tensor = operands_[kX].tensor;
}

void StepInstance::make_inputs(uint64_t seed) {
  Inputs inputs = draw(case_, seed);
  operands_.write(kX, inputs.x);
  if (!case_.forward) {
    const std::vector<double> x = gather(operands_[kX].tensor, operands_[kX].data());
    reference::finish(case_, seed, x, inputs);
    operands_.write(kMean, inputs.mean);
    operands_.write(kSpread, inputs.spread);
    operands_.write(kDy, inputs.dy);
  }
  if (case_.values == Values::kNonFinite) {
    inputs.x[inputs.x.size() / 5] = NAN;
    inputs.x[inputs.x.size() * 3 / 5] = -INFINITY;
    operands_.write(kX, inputs.x);
  }
  if (case_.step == Step::kReduce) return;
  operands_.write(kGamma, inputs.gamma);
  operands_.write(kCount, std::vector<double>(case_.counts.begin(), case_.counts.end()));
  case_.forward ? make_moments(seed) : make_sums(seed);
}

// Moments such as parts of the batch that x is from would have, NaN where a part is empty: nobody
// may look there.
void StepInstance::make_moments(uint64_t seed) {
  std::vector<double> means, squares;
  for (size_t part = 0; part < case_.counts.size(); ++part) {
    const std::vector<double> noise = draw_parameters(case_, seed + 10 + 2 * part);
    const std::vector<double> spread = draw_parameters(case_, seed + 11 + 2 * part);
    const auto n = static_cast<double>(case_.counts[part]);
    for (size_t c = 0; c < noise.size(); ++c) {
      const bool zero = case_.values == Values::kZeroDenominators && c % 3 == 1;
      const double mean = case_.scale * (case_.mean_over_std + (noise[c] - 1) / std::sqrt(n));
      const double variance = n < 2 ? 0 : case_.scale * case_.scale * (0.5 + std::abs(spread[c]));
      means.push_back(n == 0 ? NAN : zero ? 0 : mean);
      squares.push_back(n == 0 ? NAN : zero ? 0 : n * variance);
    }
  }
  operands_.write(kMean, means);
  operands_.write(kSquares, squares);
  operands_.write(kBeta, draw_parameters(case_, seed + 1));
  if (!case_.has_running) return;
  operands_.write(kRunningMean, draw_parameters(case_, seed + 3));
  std::vector<double> variance = draw_parameters(case_, seed + 4);
  for (double& each : variance) each = std::abs(each);
  operands_.write(kRunningVariance, variance);
}

void StepInstance::make_sums(uint64_t seed) {
  const size_t parts = case_.whole_sums ? 1 : case_.counts.size();
  std::vector<double> dy, dy_xmu;
  for (size_t part = 0; part < parts; ++part) {
    const std::vector<double> first = draw_parameters(case_, seed + 20 + 2 * part);
    const std::vector<double> second = draw_parameters(case_, seed + 21 + 2 * part);
    const auto n = static_cast<double>(case_.counts[part]);
    for (size_t c = 0; c < first.size(); ++c) {
      dy.push_back(n * first[c] / 2);
      dy_xmu.push_back(n * case_.scale * (second[c] - 1));
    }
  }
  operands_.write(kSumDy, dy);
  operands_.write(kSumDyXmu, dy_xmu);
}

void StepInstance::make_call() {
  const auto set_common = [&](auto& call) {
    call.x = operands_[kX].tensor;
    call.channel_axis = case_.channel_axis;
    call.count = operands_[kCount].tensor;
    if constexpr (requires { call.gamma; }) call.gamma = tensor_of(kGamma);
    if constexpr (requires { call.squares; }) {
      call.squares = operands_[kSquares].tensor;
    } else {
      call.dy = operands_[kDy].tensor;
      call.mean = operands_[kMean].tensor;
      call.spread = operands_[kSpread].tensor;
      call.sum_dy = operands_[kSumDy].tensor;
      call.sum_dy_xmu = operands_[kSumDyXmu].tensor;
    }
  };
  if (case_.forward && case_.step == Step::kReduce) {
    BatchNormReduce call;
    set_common(call);
    call.mean = operands_[kSavedMean].tensor;
    call_ = call;
  } else if (case_.forward) {
    BatchNormElementwise call;
    set_common(call);
    call.mean = operands_[kMean].tensor;
    call.beta = tensor_of(kBeta);
    call.eps = case_.eps;
    call.momentum = 0.25;
    call.running_mean = tensor_of(kRunningMean);
    call.running_variance = tensor_of(kRunningVariance);
    call.y = tensor_of(kY);
    call.saved_mean = tensor_of(kSavedMean);
    call.saved_spread = tensor_of(kSavedSpread);
    call.statistics = case_.statistics;
    call_ = call;
  } else if (case_.step == Step::kReduce) {
    BatchNormReduceBackward call;
    set_common(call);
    call.dgamma = tensor_of(kDgamma);
    call.dbeta = tensor_of(kDbeta);
    call_ = call;
  } else {
    BatchNormElementwiseBackward call;
    set_common(call);
    call.dx = operands_[kDx].tensor;
    call_ = call;
  }
}

Status StepInstance::plan(Device device, Plan& plan) const {
  return std::visit([&](const auto& call) { return Plan::create(call, device, plan); }, call_);
}

// float64 moments are made of float64 sums, so that what they are wrong by is nothing beside the
// standard deviation, however large the mean is. Their bound: a rounding per element of the sums
// around one of them, and of the mean two, with one more for every 8192 elements.
void StepInstance::check_forward(Report& report) const {
  const ForwardGates& gates = case_.random ? kRandomForward : kProvenForward;
  const Buffers inputs = operands_.inputs();
  const auto compare = [&](int which, const Output& output, double k, int64_t summed = 0) {
    compare_output(which, output.values, output.scales, k, summed, case_.random, report);
  };
  if (const auto* call = std::get_if<BatchNormReduce>(&call_)) {
    ChannelMoments ref = batch_norm_moments(*call, inputs);
    const int64_t terms = count(call->x) / std::max<int64_t>(1, case_.groups());
    const bool wide = case_.sums == DType::kF64;
    for (size_t c = 0; wide && terms > 0 && c < ref.reach.size(); ++c) {
      ref.mean.scales[c] =
          ref.reach[c] + std::abs(ref.mean.values[c]) * (2 / static_cast<double>(terms) + 0x1p-13);
    }
    compare(kSavedMean, ref.mean, wide ? 0 : gates.mean, wide ? terms : 0);
    compare(kSquares, ref.squares, gates.spread);
    return;
  }
  const Normalized ref = batch_norm_elementwise(std::get<BatchNormElementwise>(call_), inputs);
  compare(kY, ref.y, gates.y);
  compare(kSavedMean, ref.mean, gates.mean);
  compare(kSavedSpread, ref.spread, gates.spread);
  compare(kRunningMean, ref.running_mean, gates.mean);
  compare(kRunningVariance, ref.running_variance, gates.spread);
}

void StepInstance::check_backward(Report& report) const {
  Gates gates = case_.random ? kRandomBatchNorm : kProven;
  const Buffers inputs = operands_.inputs();
  const auto compare = [&](int which, const std::vector<double>& values,
                           const std::vector<double>& scales, double k, int64_t summed) {
    compare_output(which, values, scales, k, summed, false, report);
  };
  if (const auto* call = std::get_if<BatchNormReduceBackward>(&call_)) {
    const ChannelSums sums = batch_norm_sums(*call, inputs);
    const Gradients ref = batch_norm_reduce_backward(*call, inputs);
    const int64_t terms = count(call->x) / std::max<int64_t>(1, case_.groups());
    if (terms < 8) gates.dgamma = gates.dbeta = static_cast<double>(3 + terms);
    compare(kSumDy, sums.dy, sums.dy_scale, gates.dbeta, terms);
    compare(kSumDyXmu, sums.dy_xmu, sums.dy_xmu_scale, gates.dgamma, terms);
    compare(kDgamma, ref.dgamma, ref.dgamma_scale, gates.dgamma, terms);
    compare(kDbeta, ref.dbeta, ref.dbeta_scale, gates.dbeta, terms);
    return;
  }
  const Gradients ref =
      batch_norm_elementwise_backward(std::get<BatchNormElementwiseBackward>(call_), inputs);
  compare(kDx, ref.dx, ref.dx_scale, gates.dx, 0);
}

Report StepInstance::check() const {
  Report report;
  case_.forward ? check_forward(report) : check_backward(report);
  const int64_t channels = case_.groups();
  if (case_.step == Step::kReduce && channels > 0) {
    const double terms = static_cast<double>(count(operands_[kX].tensor) / channels);
    compare_output(kCount, {terms}, {0}, 0, 0, false, report);
  }
  finish(report);
  return report;
}

}  // namespace normgrad::reference
