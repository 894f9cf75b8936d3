// From a call to a prepared call: checked operands, the canonical problem and the kernel for it.
#pragma once

#include <functional>
#include <string>

#include "normgrad/plan.hpp"
#include "ops/backend.hpp"
#include "ops/operands.hpp"
#include "ops/staging.hpp"

namespace normgrad {

struct Prepared {
  Operands operands;
  std::string kernel;
  size_t workspace = 0;  // bytes the kernel needs, without slack for alignment
  std::function<Status(const Buffers&, void* workspace, void* stream)> launch;  // none: no work
};

// One per operator: check the arguments in the order types, shapes, strides, then bind a kernel.
Status prepare(const LayerNorm& call, Device device, Prepared& prepared);
Status prepare(const RmsNorm& call, Device device, Prepared& prepared);
Status prepare(const BatchNorm& call, Device device, Prepared& prepared);
Status prepare(const BatchNormReduce& call, Device device, Prepared& prepared);
Status prepare(const BatchNormElementwise& call, Device device, Prepared& prepared);
Status prepare(const LayerNormBackward& call, Device device, Prepared& prepared);
Status prepare(const RmsNormBackward& call, Device device, Prepared& prepared);
Status prepare(const BatchNormBackward& call, Device device, Prepared& prepared);
Status prepare(const BatchNormReduceBackward& call, Device device, Prepared& prepared);
Status prepare(const BatchNormElementwiseBackward& call, Device device, Prepared& prepared);

// LayerNorm and RMSNorm from the operands on: what is not an operand, and problems of rows.
struct RowsForward {
  bool rms = false;
  Statistics statistics = Statistics::kMeanRstd;
  double eps = 0, gamma_offset = 0;
  int normalized_axes = 1;
  const char* eps_name = "";
};
Status prepare_rows_forward(const RowsForward& call, Device device, Prepared& prepared);

struct RowsBackward {
  RowStatistics statistics = RowStatistics::kMeanRstd;
  double eps = 0, gamma_offset = 0;
  int normalized_axes = 1;
};
Status prepare_rows(const RowsBackward& call, Device device, Prepared& prepared);

// BatchNorm from the operands on. `problem` has what is not an operand.
Status prepare_channels_forward(ChannelsForwardProblem problem, int channel_axis, Device device,
                                Prepared& prepared);
Status prepare_channels(ChannelsProblem problem, int channel_axis, Device device,
                        Prepared& prepared);

// Takes the kernel that one entry of the backend's table offers for the problem. `empty`: there is
// nothing to write, so the plan gets no kernel.
template <class Problem>
Status bind(Status (*Backend::*choose)(const Problem&, Kernel<Problem>&), const Problem& problem,
            bool empty, Device device, Prepared& prepared) {
  const Backend* backend = nullptr;
  NORMGRAD_RETURN_IF_ERROR(choose_backend(device, backend));
  Kernel<Problem> kernel;
  NORMGRAD_RETURN_IF_ERROR((backend->*choose)(problem, kernel));
  prepared.kernel = std::string(backend->name) + " " + kernel.name;
  if (empty) return {};
  prepared.workspace = kernel.workspace;
  Staging staging;
  NORMGRAD_RETURN_IF_ERROR(staging.plan(prepared.operands, prepared.workspace, prepared.kernel));
  prepared.launch = [problem, launch = kernel.launch, staging = std::move(staging),
                     copy = backend->copy](const Buffers& buffers, void* workspace,
                                           void* stream) -> Status {
    Buffers seen = buffers;
    NORMGRAD_RETURN_IF_ERROR(staging.copy_in(copy, seen, workspace, stream));
    NORMGRAD_RETURN_IF_ERROR(launch(problem, seen, workspace, stream));
    return staging.copy_out(copy, buffers, workspace, stream);
  };
  return {};
}

}  // namespace normgrad
