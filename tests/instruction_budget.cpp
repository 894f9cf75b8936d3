// Calls whose instructions callgrind counts, for instruction_budget_test.py: all outputs, random
// data, sizes that stay in a cache. Every call leaves a dump that bears its name.
#include <valgrind/callgrind.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "reference/cases.hpp"

// Kernels may ask how many cores share the work, since that decides what the caches hold. Here the
// answer is the same on every machine, as are the sizes of the caches: valgrind makes them up.
extern "C" __attribute__((visibility("default"))) int omp_get_num_procs() { return 8; }

namespace normgrad::reference {
namespace {

// One element type for everything, as in InfiniOP; only the statistics of mean_rstd are f32, as an
// aclnn forward pass leaves them.
std::vector<Case> budgeted() {
  using enum Statistics;
  const Case layer_norm{.name = "layer_norm x_hat_std rows", .shape = {}, .statistics = kXHatStd};
  const Case aclnn{.name = "layer_norm mean_rstd rows", .shape = {}, .statistics = kMeanRstd};
  const Case rms_norm{
      .name = "rms_norm x rows", .op = Op::kRmsNorm, .shape = {}, .statistics = kMeanVariance};
  const Case channels_first{.name = "batch_norm mean_variance channels_first",
                            .op = Op::kBatchNorm,
                            .shape = {},
                            .statistics = kMeanVariance};
  Case channels_last = channels_first;
  channels_last.name = "batch_norm mean_variance channels_last";
  channels_last.layout = Layout::kChannelsLast;

  const std::pair<Case, std::vector<int64_t>> calls[] = {
      {layer_norm, {64, 1024}},      {layer_norm, {512, 16}},       {layer_norm, {64, 1000}},
      {aclnn, {64, 1024}},           {rms_norm, {64, 1024}},        {channels_first, {8, 16, 196}},
      {channels_first, {8, 64, 49}}, {channels_last, {8, 16, 196}}, {channels_last, {64, 3, 100}},
  };
  std::vector<Case> list;
  for (const auto& [call, shape] : calls) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      Case c = call;
      c.shape = shape;
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        c.name += (axis == 0 ? " " : "x") + std::to_string(shape[axis]);
      }
      c.name += std::string(" ") + normgrad::name_of(dtype);
      c.data = c.gamma = c.params = dtype;
      c.statistics_dtype = c.statistics == kMeanRstd ? DType::kF32 : dtype;
      list.push_back(c);
    }
  }
  return list;
}

// The second run is counted: the first one resolves symbols and asks the machine what it has.
bool count(const Case& description) {
  Instance instance(description);
  const Plan plan = std::visit([](const auto& call) { return Plan(call); }, instance.call());
  std::vector<std::byte> workspace(plan.workspace_size());
  const auto execute = [&] {
    return plan.execute(instance.buffers(), workspace.data(), workspace.size());
  };
  Status status = execute();

  CALLGRIND_START_INSTRUMENTATION;
  status = execute();
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(description.name.c_str());

  const std::string why = status.ok() ? instance.check().why : status.message();
  if (!why.empty()) std::fprintf(stderr, "%s: %s\n", description.name.c_str(), why.c_str());
  return why.empty();
}

}  // namespace
}  // namespace normgrad::reference

int main() {
  try {
    bool ok = true;
    for (const auto& description : normgrad::reference::budgeted()) {
      ok = normgrad::reference::count(description) && ok;
    }
    return ok ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_budget: %s\n", error.what());
    return 1;
  }
}
