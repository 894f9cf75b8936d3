// normgrad demo: the main job. Inputs as a forward pass makes them, at a transformer's and a
// ResNet's sizes; gradients through the InfiniOP API; every element checked against the oracle.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "calls.hpp"
#include "commands.hpp"
#include "infiniop_call.hpp"
#include "normgrad/info.hpp"
#include "progress.hpp"
#include "random.hpp"
#include "reference/bound.hpp"
#include "reference/elements.hpp"
#include "reference/reference.hpp"
#include "table.hpp"

namespace normgrad::tool {
namespace {

struct Size {
  Op op;
  std::vector<int64_t> shape;
};
// Hidden states (batch, tokens, hidden size) of a transformer; feature maps (batch, channels,
// 56x56, 28x28 and 7x7 positions) of a ResNet.
const Size kSizes[] = {
    {Op::kLayerNorm, {8, 512, 4096}}, {Op::kLayerNorm, {16, 512, 768}},
    {Op::kRmsNorm, {8, 512, 4096}},   {Op::kRmsNorm, {16, 512, 768}},
    {Op::kBatchNorm, {32, 64, 3136}}, {Op::kBatchNorm, {32, 256, 784}},
    {Op::kBatchNorm, {32, 2048, 49}},
};
constexpr double kEps = 1e-5;  // of the LayerNorm forward pass

// An operand in host memory.
struct Operand {
  Tensor tensor;
  std::vector<std::byte> memory;

  Operand() = default;
  Operand(DType dtype, std::vector<int64_t> shape)
      : tensor{dtype, std::move(shape)},
        memory(static_cast<size_t>(reference::count(tensor)) * size_of(dtype)) {}
  Operand(DType dtype, std::vector<int64_t> shape, const std::vector<double>& values)
      : Operand(dtype, std::move(shape)) {
    reference::scatter(tensor, memory.data(), values);
  }
};

// mean and biased variance of values(0) ... values(count - 1)
template <class Values>
std::pair<double, double> statistics(int64_t count, const Values& values) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) sum += values(i);
  const double mean = sum / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) squares += (values(i) - mean) * (values(i) - mean);
  return {mean, squares / static_cast<double>(count)};
}

// What a forward pass in float64 leaves to the backward pass, rounded to the element type.
struct Forward {
  Operand x, dy, gamma, mean, spread;

  Forward(const Size& size, DType dtype) {
    const bool batch = size.op == Op::kBatchNorm;
    const std::vector<int64_t> params = {batch ? size.shape[1] : size.shape[2]};
    Random random(1);
    std::vector<double> values(static_cast<size_t>(size.shape[0] * size.shape[1] * size.shape[2]));
    std::vector<double> weights(static_cast<size_t>(params[0]));
    for (double& each : weights) each = 1 + 0.1 * random.normal();
    gamma = Operand(dtype, params, weights);
    for (double& each : values) each = 0.1 + random.normal();
    dy = Operand(dtype, size.shape, values);
    for (double& each : values) each = reference::round_to(dtype, 0.5 + 2 * random.normal());
    if (size.op == Op::kLayerNorm) normalize_rows(size, dtype, values);
    if (batch) reduce_channels(size, dtype, values);
    x = Operand(dtype, size.shape, values);
  }

  // x becomes x_hat, spread the standard deviation.
  void normalize_rows(const Size& size, DType dtype, std::vector<double>& values) {
    const int64_t rows = size.shape[0] * size.shape[1], cols = size.shape[2];
    std::vector<double> deviations(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) {
      double* const of_row = values.data() + row * cols;
      const auto [center, variance] = statistics(cols, [&](int64_t i) { return of_row[i]; });
      deviations[row] = std::sqrt(variance + kEps);
      for (int64_t i = 0; i < cols; ++i) of_row[i] = (of_row[i] - center) / deviations[row];
    }
    spread = Operand(dtype, {size.shape[0], size.shape[1]}, deviations);
  }

  // mean and spread become the mean and the variance of each channel.
  void reduce_channels(const Size& size, DType dtype, const std::vector<double>& values) {
    const int64_t samples = size.shape[0], channels = size.shape[1], length = size.shape[2];
    std::vector<double> means(static_cast<size_t>(channels)), variances(means.size());
    for (int64_t c = 0; c < channels; ++c) {
      std::tie(means[c], variances[c]) = statistics(samples * length, [&](int64_t i) {
        return values[(i / length * channels + c) * length + i % length];
      });
    }
    mean = Operand(dtype, {channels}, means);
    spread = Operand(dtype, {channels}, variances);
  }
};

struct Outcome {
  double seconds = 0;
  reference::Verdict dx, dgamma, dbeta;

  bool ok() const { return dx.failures + dgamma.failures + dbeta.failures == 0; }
  std::string why() const {
    for (const auto* each : {&dx, &dgamma, &dbeta}) {
      if (each->failures) return each->first_failure;
    }
    return "";
  }
};

Outcome run_size(const Size& size, DType dtype) {
  const Forward forward(size, dtype);
  const reference::Call call = make_call(size.op, size.shape, dtype);
  const Operands operands = operands_of(call);
  Operand dx(dtype, operands.dx->shape);
  Operand dgamma(dtype, operands.dgamma->shape), dbeta = dgamma;
  const Buffers host = {forward.x.memory.data(),      forward.dy.memory.data(),
                        forward.gamma.memory.data(),  forward.mean.memory.data(),
                        forward.spread.memory.data(), dx.memory.data(),
                        dgamma.memory.data(),         dbeta.memory.data()};
  Outcome outcome;
  const DeviceOperands device(call);
  device.upload(host);
  outcome.seconds = InfiniopCall(call).time(device.buffers());
  device.download(host);

  const reference::Gradients exact = oracle(call, host);
  const int64_t rows = reference::count(*operands.x) / reference::count(*operands.gamma);
  const reference::Gates gates = reference::kProven;
  outcome.dx =
      reference::compare("dx", dx.tensor, dx.memory.data(), exact.dx, exact.dx_scale, gates.dx, 0);
  outcome.dgamma = reference::compare("dgamma", dgamma.tensor, dgamma.memory.data(), exact.dgamma,
                                      exact.dgamma_scale, gates.dgamma, rows);
  if (operands.dbeta) {
    outcome.dbeta = reference::compare("dbeta", dbeta.tensor, dbeta.memory.data(), exact.dbeta,
                                       exact.dbeta_scale, gates.dbeta, rows);
  }
  return outcome;
}

}  // namespace

int run_demo() {
  fmt::print("NormGrad {}: gradients through InfiniOP on the CPU, against float64\n\n", version());
  Table table({"operator", "shape", "dtype", "ms", "GB/s", "K dx", "K dgamma", "K dbeta", "bound"},
              3);
  size_t runs = 0, failures = 0;
  {
    ProgressBar bar(std::size(kSizes) * std::size(kAllDTypes));
    for (const Size& size : kSizes) {
      for (const DType dtype : kAllDTypes) {
        bar.step(
            fmt::format("{} {} {}", name_of(size.op), format_shape(size.shape), name_of(dtype)));
        const Outcome outcome = run_size(size, dtype);
        const double moved = 3.0 * static_cast<double>(outcome.dx.elements * size_of(dtype));
        table.add({name_of(size.op), format_shape(size.shape), name_of(dtype),
                   fmt::format("{:.2f}", outcome.seconds * 1e3),
                   fmt::format("{:.1f}", moved / outcome.seconds / 1e9),
                   fmt::format("{:.2f}", outcome.dx.worst_k),
                   fmt::format("{:.2f}", outcome.dgamma.worst_k),
                   size.op == Op::kRmsNorm ? "-" : fmt::format("{:.2f}", outcome.dbeta.worst_k),
                   outcome.ok() ? "ok" : "FAILED " + outcome.why()});
        ++runs;
        failures += !outcome.ok();
      }
    }
  }
  table.print();

  fmt::print(
      "\nms    median of a run; GB/s counts reading x and dy and writing dx once\n"
      "K     the largest error beyond the output's own rounding, in fp32 roundings;\n"
      "      proven: at most {} for dx, {} for dgamma, {} for dbeta\n\n",
      reference::kProven.dx, reference::kProven.dgamma, reference::kProven.dbeta);
  if (failures) {
    fmt::print("{} of {} runs have gradients OUTSIDE the proven bounds\n", failures, runs);
    return 1;
  }
  fmt::print("All {} runs: every gradient is within the proven bounds.\n", runs);
  return 0;
}

}  // namespace normgrad::tool
