// The check of what a run left in the memory of an instance, and the native runner.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

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

double Report::k(const char* name) const {
  for (const Output& output : outputs) {
    if (std::string_view(output.name) == name) return output.k;
  }
  return 0;
}

std::optional<Tensor> AnyInstance::tensor_of(int which) const {
  const Placed& operand = operands_[which];
  return operand.use == Use::kAbsent ? std::nullopt : std::optional(operand.tensor);
}

void AnyInstance::compare_output(int which, const std::vector<double>& values,
                                 const std::vector<double>& scales, double k, int64_t summed,
                                 bool telling, Report& report) const {
  const Placed& output = operands_[which];
  if (!output.written()) return;
  const auto fail = [&](const std::string& why) {
    if (report.ok) report.why = why;
    report.ok = false;
  };
  const Verdict verdict =
      compare(output.name, output.tensor, output.data(), values, scales, k, summed);
  if (verdict.failures > 0) {
    fail(verdict.first_failure + " (" + std::to_string(verdict.failures) + " of " +
         std::to_string(verdict.elements) + " elements are wrong)");
  }
  if (case_.values == Values::kExact && verdict.nearest != verdict.elements) {
    fail(std::string(output.name) + ": exact data, but " +
         std::to_string(verdict.elements - verdict.nearest) + " elements are not exact");
  }
  if (telling && size_of(output.tensor.dtype) == 2) {
    report.elements16 += verdict.elements;
    report.nearest16 += verdict.nearest;
  }
  report.outputs.push_back({output.name, output.tensor.dtype, verdict.worst_k});
}

void AnyInstance::finish(Report& report) const {
  const auto fail = [&](std::string why) {
    report.ok = false;
    report.why = std::move(why);
  };
  const double share =
      static_cast<double>(report.nearest16) / static_cast<double>(report.elements16);
  if (report.ok && report.elements16 >= kManyElements && share < kNearest) {
    char text[100];
    std::snprintf(text, sizeof text, "only %.3f %% of the 16-bit outputs are correctly rounded",
                  100 * share);
    fail(text);
  }
  if (std::string what = operands_.damage(); !what.empty()) fail(what);
}

Gradients Instance::reference() const {
  const Buffers inputs = operands_.inputs();
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
  const auto add_old = [&](int which, const void* data, std::vector<double>& values,
                           std::vector<double>& scales) {
    if (operands_[which].use != Use::kUpdated) return;
    const std::vector<double> old = gather(operands_[which].tensor, data);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += old[i];
      scales[i] += std::abs(old[i]);
    }
  };
  add_old(kDgamma, inputs.dgamma, result.dgamma, result.dgamma_scale);
  add_old(kDbeta, inputs.dbeta, result.dbeta, result.dbeta_scale);
  return result;
}

Report Instance::check() const {
  Report report;
  const Gradients ref = reference();
  const bool telling =
      case_.random && static_cast<int64_t>(ref.dx.size()) >= kLargeGroup * case_.groups();
  const int64_t parameters = count(operands_[kDgamma].tensor);
  const int64_t summed = parameters == 0 ? 0 : count(operands_[kX].tensor) / parameters;
  const Gates gates = gates_of(case_, summed);
  compare_output(kDx, ref.dx, ref.dx_scale, gates.dx, 0, telling, report);
  compare_output(kDgamma, ref.dgamma, ref.dgamma_scale, gates.dgamma, summed, telling, report);
  compare_output(kDbeta, ref.dbeta, ref.dbeta_scale, gates.dbeta, summed, telling, report);
  finish(report);
  return report;
}

Status run_native(const Call& call, const Buffers& buffers) {
  Plan plan;
  const Status planned =
      std::visit([&](const auto& c) { return Plan::create(c, Device::kCpu, plan); }, call);
  return planned.ok() ? run_native(plan, buffers) : planned;
}

Status run_native(const Plan& plan, const Buffers& buffers) {
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
