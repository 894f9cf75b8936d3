// The check of what a run left in the memory of an instance, and the native runner.
#include <algorithm>
#include <cstdio>

#include "reference/bound.hpp"
#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/memory.hpp"

namespace normgrad::reference {
namespace {

// At least 99.9 % of the elements of 16-bit outputs are the nearest to the oracle. This catches
// double rounding and truncation, which the bound alone allows. Fewer elements than these say
// little, and in smaller groups the terms of dx cancel too well: with 3 columns a faultless fp32
// kernel gets 99.84 % of its f16 outputs.
constexpr double kNearest = 0.999;
constexpr int64_t kManyElements = 10000;
constexpr int64_t kLargeGroup = 8;

Gates gates_of(const Case& c, int64_t terms) {
  const bool frozen = c.op == Op::kBatchNorm && c.frozen;
  Gates gates = frozen ? kProvenFrozen : kProven;
  if (c.random && c.op == Op::kLayerNorm) gates = kRandomLayerNorm;
  if (c.random && c.op == Op::kRmsNorm) gates = kRandomRmsNorm;
  if (c.random && c.op == Op::kBatchNorm) gates = frozen ? kRandomFrozen : kRandomBatchNorm;
  // A term of dgamma is rounded 4 times, a sum of n terms n - 1 times: few are no average.
  if (terms < 8) {
    gates.dgamma = static_cast<double>(3 + terms);
    gates.dbeta = std::min(gates.dbeta, static_cast<double>(std::max<int64_t>(terms - 1, 0)));
  }
  return gates;
}

}  // namespace

bool Instance::writes(int operand) const {
  if (operand == place_) return case_.want_dx;
  if (operand == kDgamma) return case_.want_dgamma;
  return operand == kDbeta && case_.want_dbeta && case_.op != Op::kRmsNorm;
}

Gradients Instance::reference() const {
  Buffers inputs = buffers_;
  const Operand& place = operands_[place_];
  if (place_ != kDx && count(place.tensor) > 0) {
    (place_ == kX ? inputs.x : inputs.dy) = place.before.data() + place.first;
  }
  Gradients result;
  if (const auto* layer_norm = std::get_if<LayerNormBackward>(&call_)) {
    result = layer_norm_backward(*layer_norm, inputs);
  } else if (const auto* rms_norm = std::get_if<RmsNormBackward>(&call_)) {
    result = rms_norm_backward(*rms_norm, inputs);
  } else {
    result = batch_norm_backward(std::get<BatchNormBackward>(call_), inputs);
  }
  // With one element per row, g - mean(g) is 0 and not merely small.
  if (case_.op != Op::kRmsNorm && case_.groups() == static_cast<int64_t>(result.dx.size())) {
    for (size_t i = 0; i < result.dx.size(); ++i) {
      if (result.dx[i] == 0) result.dx_scale[i] = 0;
    }
  }
  return result;
}

std::string Instance::damage() const {
  static const char* const kNames[] = {"x",      "dy", "gamma",  "mean",
                                       "spread", "dx", "dgamma", "dbeta"};
  for (int which = 0; which < kOperands; ++which) {
    const Operand& operand = operands_[which];
    if (writes(which)) {
      std::vector<std::byte> rest = operand.memory;
      erase(operand.tensor, rest.data() + operand.first, kPoison);
      if (!poisoned(rest)) return std::string(kNames[which]) + ": written outside its elements";
    } else if (which >= kDx) {
      if (!poisoned(operand.memory)) return std::string(kNames[which]) + ": absent, but written";
    } else if (fnv1a(operand.memory) != operand.hash) {
      return std::string(kNames[which]) + ": an input, but changed";
    }
  }
  return {};
}

Instance::Report Instance::check() const {
  Report report;
  const auto fail = [&](std::string why) {
    if (report.ok) report.why = std::move(why);
    report.ok = false;
  };
  if (std::string what = damage(); !what.empty()) fail(what);

  const Gradients ref = reference();
  const bool telling =
      case_.random && static_cast<int64_t>(ref.dx.size()) >= kLargeGroup * case_.groups();
  const auto check_output = [&](const char* name, int which, const void* data,
                                const std::vector<double>& values, const std::vector<double>& scale,
                                double k, int64_t summed) {
    if (!writes(which)) return 0.0;
    const Tensor& tensor = operands_[which].tensor;
    const Verdict verdict = compare(name, tensor, data, values, scale, k, summed);
    if (verdict.failures > 0) {
      fail(verdict.first_failure + " (" + std::to_string(verdict.failures) + " of " +
           std::to_string(verdict.elements) + " elements are wrong)");
    }
    if (case_.values == Values::kExact && verdict.nearest != verdict.elements) {
      fail(std::string(name) + ": exact data, but " +
           std::to_string(verdict.elements - verdict.nearest) + " elements are not exact");
    }
    if (telling && tensor.dtype != DType::kF32) {
      report.elements16 += verdict.elements;
      report.nearest16 += verdict.nearest;
    }
    return verdict.worst_k;
  };
  const int64_t parameters = count(operands_[kDgamma].tensor);
  const int64_t summed = parameters == 0 ? 0 : count(operands_[kX].tensor) / parameters;
  const Gates gates = gates_of(case_, summed);
  report.k_dx = check_output("dx", place_, buffers_.dx, ref.dx, ref.dx_scale, gates.dx, 0);
  report.k_dgamma = check_output("dgamma", kDgamma, buffers_.dgamma, ref.dgamma, ref.dgamma_scale,
                                 gates.dgamma, summed);
  report.k_dbeta = check_output("dbeta", kDbeta, buffers_.dbeta, ref.dbeta, ref.dbeta_scale,
                                gates.dbeta, summed);

  const double share =
      static_cast<double>(report.nearest16) / static_cast<double>(report.elements16);
  if (report.elements16 >= kManyElements && share < kNearest) {
    char text[100];
    std::snprintf(text, sizeof text, "only %.3f %% of the 16-bit outputs are correctly rounded",
                  100 * share);
    fail(text);
  }
  return report;
}

uint64_t Instance::hash() const {
  uint64_t hash = fnv1a({});
  const auto add = [&](int which, const void* data) {
    if (!writes(which)) return;
    const std::vector<double> values = gather(operands_[which].tensor, data);
    hash = fnv1a(std::as_bytes(std::span(values)), hash);
  };
  add(place_, buffers_.dx);
  add(kDgamma, buffers_.dgamma);
  add(kDbeta, buffers_.dbeta);
  return hash;
}

Status run_native(const Call& call, const Buffers& buffers) {
  Plan plan;
  const Status planned =
      std::visit([&](const auto& c) { return Plan::create(c, Device::kCpu, plan); }, call);
  if (!planned.ok()) return planned;
  const size_t size = plan.workspace_size();
  const size_t start = kRedZone + 1;  // an odd address
  std::vector<std::byte> memory(start + size + kRedZone, kPoison);
  const Status executed = plan.execute(buffers, memory.data() + start, size);
  if (!executed.ok()) return executed;
  const std::span<const std::byte> all = memory;
  if (!poisoned(all.first(start)) || !poisoned(all.last(kRedZone))) {
    return {Code::kInternal, "workspace: written outside its size"};
  }
  return {};
}

}  // namespace normgrad::reference
