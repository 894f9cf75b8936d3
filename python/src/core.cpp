// normgrad._core: the library's calls on arrays of any framework. Every output is an argument; the
// functions write and return nothing.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>

#include "arrays.hpp"
#include "call.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::python {
namespace {

using namespace nb::literals;

Statistics statistics_of(std::string_view name) {
  if (name == "mean_rstd") return Statistics::kMeanRstd;
  if (name == "mean_variance") return Statistics::kMeanVariance;
  if (name == "x_hat_std") return Statistics::kXHatStd;
  raise(Code::kBadArgument,
        "statistics: expected 'mean_rstd', 'mean_variance' or 'x_hat_std', got '" +
            std::string(name) + "'");
}

// On a GPU the workspace comes from `allocate(bytes)`, the framework's own allocator, which knows
// when the stream is done with it.
void run(const Call& call, Reader& reader, nb::handle allocate) {
  Plan plan;
  Status status = plan_of(call, plan);
  if (!status.ok()) raise(status.code(), status.message());
  nb::object workspace;
  void* memory = nullptr;
  void* const stream = reader.stream();
  if (call.device == Device::kCuda && plan.workspace_size() > 0) {
    if (allocate.is_none()) {
      raise(Code::kInsufficientWorkspace, "allocate: expected a function, since this call needs " +
                                              std::to_string(plan.workspace_size()) +
                                              " bytes of workspace, got None");
    }
    workspace = allocate(plan.workspace_size());
    memory = reader.memory(workspace);
  }
  {
    const nb::gil_scoped_release released;
    status = execute(plan, call, memory, stream);
  }
  if (!status.ok()) raise(status.code(), status.message());
}

using H = nb::handle;

void layer_norm(H x, H residual, H gamma, H beta, H y, H h, H x_hat, H mean, H spread, double eps,
                double gamma_offset, int normalized_axes, const char* statistics, H allocate,
                H stream) {
  Call call{.op = Op::kLayerNorm,
            .statistics = statistics_of(statistics),
            .axis = normalized_axes,
            .eps = eps,
            .gamma_offset = gamma_offset};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .input(kResidual, "residual", residual)
      .input(kGamma, "gamma", gamma)
      .input(kBeta, "beta", beta)
      .output(kY, "y", y)
      .output(kH, "h", h)
      .output(kXHat, "x_hat", x_hat)
      .output(kSavedMean, "mean", mean)
      .output(kSavedSpread, "spread", spread);
  run(call, reader, allocate);
}

void rms_norm(H x, H residual, H gamma, H y, H h, H spread, double eps, double gamma_offset,
              int normalized_axes, H allocate, H stream) {
  Call call{.op = Op::kRmsNorm, .axis = normalized_axes, .eps = eps, .gamma_offset = gamma_offset};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .input(kResidual, "residual", residual)
      .input(kGamma, "gamma", gamma)
      .output(kY, "y", y)
      .output(kH, "h", h)
      .output(kSavedSpread, "spread", spread);
  run(call, reader, allocate);
}

void batch_norm(H x, H gamma, H beta, H running_mean, H running_variance, H y, H mean, H spread,
                double eps, double momentum, bool frozen, int channel_axis, const char* statistics,
                H allocate, H stream) {
  Call call{.op = Op::kBatchNorm,
            .statistics = statistics_of(statistics),
            .frozen = frozen,
            .axis = channel_axis,
            .eps = eps,
            .momentum = momentum};
  Reader reader(call, stream);
  reader.required(kX, "x", x).input(kGamma, "gamma", gamma).input(kBeta, "beta", beta);
  if (frozen) {
    reader.input(kRunningMean, "running_mean", running_mean)
        .input(kRunningVariance, "running_variance", running_variance);
  } else {
    reader.output(kRunningMean, "running_mean", running_mean)
        .output(kRunningVariance, "running_variance", running_variance);
  }
  reader.output(kY, "y", y).output(kSavedMean, "mean", mean).output(kSavedSpread, "spread", spread);
  run(call, reader, allocate);
}

void batch_norm_reduce(H x, H mean, H squares, H count, int channel_axis, H allocate, H stream) {
  Call call{.op = Op::kBatchNormReduce, .axis = channel_axis};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .output(kSavedMean, "mean", mean)
      .output(kSquares, "squares", squares)
      .output(kCount, "count", count);
  if (mean.is_none()) raise(Code::kNullPointer, "mean: expected an array, got None");
  if (squares.is_none()) raise(Code::kNullPointer, "squares: expected an array, got None");
  run(call, reader, allocate);
}

void batch_norm_elementwise(H x, H gamma, H beta, H mean, H squares, H count, H running_mean,
                            H running_variance, H y, H saved_mean, H saved_spread, double eps,
                            double momentum, int channel_axis, const char* statistics, H allocate,
                            H stream) {
  Call call{.op = Op::kBatchNormElementwise,
            .statistics = statistics_of(statistics),
            .axis = channel_axis,
            .eps = eps,
            .momentum = momentum};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .input(kGamma, "gamma", gamma)
      .input(kBeta, "beta", beta)
      .required(kMean, "mean", mean)
      .required(kSquares, "squares", squares)
      .required(kCount, "count", count)
      .output(kRunningMean, "running_mean", running_mean)
      .output(kRunningVariance, "running_variance", running_variance)
      .output(kY, "y", y)
      .output(kSavedMean, "saved_mean", saved_mean)
      .output(kSavedSpread, "saved_spread", saved_spread);
  run(call, reader, allocate);
}

void layer_norm_backward(H dy, H x, H gamma, H mean, H spread, H dh, H dx, H dgamma, H dbeta,
                         double eps, double gamma_offset, int normalized_axes,
                         const char* statistics, bool accumulate, H allocate, H stream) {
  Call call{.op = Op::kLayerNormBackward,
            .statistics = statistics_of(statistics),
            .accumulate = accumulate,
            .axis = normalized_axes,
            .eps = eps,
            .gamma_offset = gamma_offset};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .required(kDy, "dy", dy)
      .input(kGamma, "gamma", gamma)
      .input(kMean, "mean", mean)
      .required(kSpread, "spread", spread)
      .input(kDh, "dh", dh)
      .output(kDx, "dx", dx)
      .output(kDgamma, "dgamma", dgamma)
      .output(kDbeta, "dbeta", dbeta);
  run(call, reader, allocate);
}

void rms_norm_backward(H dy, H x, H gamma, H spread, H dh, H dx, H dgamma, double eps,
                       double gamma_offset, int normalized_axes, bool accumulate, H allocate,
                       H stream) {
  Call call{.op = Op::kRmsNormBackward,
            .accumulate = accumulate,
            .axis = normalized_axes,
            .eps = eps,
            .gamma_offset = gamma_offset};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .required(kDy, "dy", dy)
      .input(kGamma, "gamma", gamma)
      .input(kSpread, "spread", spread)
      .input(kDh, "dh", dh)
      .output(kDx, "dx", dx)
      .output(kDgamma, "dgamma", dgamma);
  run(call, reader, allocate);
}

void batch_norm_backward(H dy, H x, H gamma, H mean, H spread, H dx, H dgamma, H dbeta, double eps,
                         bool frozen, int channel_axis, const char* statistics, bool accumulate,
                         H allocate, H stream) {
  Call call{.op = Op::kBatchNormBackward,
            .statistics = statistics_of(statistics),
            .frozen = frozen,
            .accumulate = accumulate,
            .axis = channel_axis,
            .eps = eps};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .required(kDy, "dy", dy)
      .input(kGamma, "gamma", gamma)
      .required(kMean, "mean", mean)
      .required(kSpread, "spread", spread)
      .output(kDx, "dx", dx)
      .output(kDgamma, "dgamma", dgamma)
      .output(kDbeta, "dbeta", dbeta);
  run(call, reader, allocate);
}

void batch_norm_reduce_backward(H dy, H x, H mean, H spread, H sum_dy, H sum_dy_xmu, H count,
                                H dgamma, H dbeta, int channel_axis, H allocate, H stream) {
  Call call{.op = Op::kBatchNormReduceBackward, .axis = channel_axis};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .required(kDy, "dy", dy)
      .required(kMean, "mean", mean)
      .required(kSpread, "spread", spread)
      .output(kSumDy, "sum_dy", sum_dy)
      .output(kSumDyXmu, "sum_dy_xmu", sum_dy_xmu)
      .output(kCount, "count", count)
      .output(kDgamma, "dgamma", dgamma)
      .output(kDbeta, "dbeta", dbeta);
  run(call, reader, allocate);
}

void batch_norm_elementwise_backward(H dy, H x, H gamma, H mean, H spread, H sum_dy, H sum_dy_xmu,
                                     H count, H dx, int channel_axis, H allocate, H stream) {
  Call call{.op = Op::kBatchNormElementwiseBackward, .axis = channel_axis};
  Reader reader(call, stream);
  reader.required(kX, "x", x)
      .required(kDy, "dy", dy)
      .input(kGamma, "gamma", gamma)
      .required(kMean, "mean", mean)
      .required(kSpread, "spread", spread)
      .required(kSumDy, "sum_dy", sum_dy)
      .required(kSumDyXmu, "sum_dy_xmu", sum_dy_xmu)
      .required(kCount, "count", count)
      .output(kDx, "dx", dx);
  if (dx.is_none()) raise(Code::kNullPointer, "dx: expected an array, got None");
  run(call, reader, allocate);
}

nb::list implementation_names() {
  nb::list names;
  for (const Implementation& implementation : implementations()) names.append(implementation.name);
  return names;
}

nb::dict describe_device(int id) {
  cuda::DeviceInfo info;
  const Status status = cuda::describe(id, info);
  if (!status.ok()) raise(status.code(), status.message());
  nb::dict facts;
  facts["name"] = info.name;
  facts["driver"] = info.driver;
  facts["runtime"] = info.runtime;
  facts["compute_capability"] = info.compute_capability;
  facts["multiprocessors"] = info.multiprocessors;
  facts["total_bytes"] = info.total_bytes;
  return facts;
}

}  // namespace
}  // namespace normgrad::python

NB_MODULE(_core, m) {
  using namespace normgrad;
  using namespace normgrad::python;

  const auto none = [](const char* name) { return nb::arg(name) = nb::none(); };
  const nb::arg_v offset = "gamma_offset"_a = 0.0, rows = "normalized_axes"_a = 1,
                  channels = "channel_axis"_a = 1, accumulate = "accumulate"_a = false,
                  frozen = "frozen"_a = false, rstd = "statistics"_a = "mean_rstd",
                  variance = "statistics"_a = "mean_variance";

  m.def("layer_norm", &layer_norm, "x"_a, nb::kw_only(), none("residual"), none("gamma"),
        none("beta"), none("y"), none("h"), none("x_hat"), none("mean"), none("spread"),
        "eps"_a = 1e-5, offset, rows, rstd, none("allocate"), none("stream"));
  m.def("rms_norm", &rms_norm, "x"_a, nb::kw_only(), none("residual"), none("gamma"), none("y"),
        none("h"), none("spread"), "eps"_a = 1e-5, offset, rows, none("allocate"), none("stream"));
  m.def("batch_norm", &batch_norm, "x"_a, nb::kw_only(), none("gamma"), none("beta"),
        none("running_mean"), none("running_variance"), none("y"), none("mean"), none("spread"),
        "eps"_a = 1e-5, "momentum"_a = 0.1, frozen, channels, variance, none("allocate"),
        none("stream"));
  m.def("batch_norm_reduce", &batch_norm_reduce, "x"_a, nb::kw_only(), "mean"_a, "squares"_a,
        none("count"), channels, none("allocate"), none("stream"));
  m.def("batch_norm_elementwise", &batch_norm_elementwise, "x"_a, nb::kw_only(), none("gamma"),
        none("beta"), "mean"_a, "squares"_a, "count"_a, none("running_mean"),
        none("running_variance"), none("y"), none("saved_mean"), none("saved_spread"),
        "eps"_a = 1e-5, "momentum"_a = 0.1, channels, variance, none("allocate"), none("stream"));
  m.def("layer_norm_backward", &layer_norm_backward, "dy"_a, "x"_a, nb::kw_only(), none("gamma"),
        none("mean"), "spread"_a, none("dh"), none("dx"), none("dgamma"), none("dbeta"),
        "eps"_a = 0.0, offset, rows, rstd, accumulate, none("allocate"), none("stream"));
  m.def("rms_norm_backward", &rms_norm_backward, "dy"_a, "x"_a, nb::kw_only(), none("gamma"),
        none("spread"), none("dh"), none("dx"), none("dgamma"), "eps"_a = 0.0, offset, rows,
        accumulate, none("allocate"), none("stream"));
  m.def("batch_norm_backward", &batch_norm_backward, "dy"_a, "x"_a, nb::kw_only(), none("gamma"),
        "mean"_a, "spread"_a, none("dx"), none("dgamma"), none("dbeta"), "eps"_a = 0.0, frozen,
        channels, variance, accumulate, none("allocate"), none("stream"));
  m.def("batch_norm_reduce_backward", &batch_norm_reduce_backward, "dy"_a, "x"_a, nb::kw_only(),
        "mean"_a, "spread"_a, none("sum_dy"), none("sum_dy_xmu"), none("count"), none("dgamma"),
        none("dbeta"), channels, none("allocate"), none("stream"));
  m.def("batch_norm_elementwise_backward", &batch_norm_elementwise_backward, "dy"_a, "x"_a,
        nb::kw_only(), none("gamma"), "mean"_a, "spread"_a, "sum_dy"_a, "sum_dy_xmu"_a, "count"_a,
        "dx"_a, channels, none("allocate"), none("stream"));

  m.def("version", &version);
  m.def("implementations", &implementation_names);
  m.def("cuda_device_count", &cuda::device_count);
  m.def("describe_cuda_device", &describe_device, "id"_a);
}
