#include "normgrad/batch_norm_backward.hpp"

#include <string>

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

Status check_channel_axis(const Operand& x, int channel_axis) {
  const int rank = static_cast<int>(x.tensor.shape.size());
  if (rank < 2) {
    return {Code::kBadShape,
            std::string(x.name) + ": expected 2 to 8 axes, got " + std::to_string(rank)};
  }
  if (channel_axis >= 0 && channel_axis < rank) return {};
  return {Code::kBadArgument, "channel_axis: expected 0 to " + std::to_string(rank - 1) +
                                  ", an axis of " + x.name + ", got " +
                                  std::to_string(channel_axis)};
}

// Kernels walk along the length or along the channels, in all tensors alike. The axis that suits
// more tensors wins; the others get copies in its order.
void see_data(Operands& o, ChannelsProblem& problem) {
  const int64_t shape[] = {problem.samples, problem.channels, problem.length};
  Operand* const data[] = {&o.x, &o.dy, &o.dx};
  int along_length = 0, along_channels = 0;
  for (Operand* operand : data) {
    if (!operand->present) continue;
    see(*operand, problem.dtype, shape);
    if (operand->staged) continue;
    along_length += problem.length <= 1 || operand->view.strides[2] == 1;
    along_channels += problem.channels <= 1 || operand->view.strides[1] == 1;
  }
  const bool channels_last = along_channels > along_length;
  const int axis = channels_last ? 1 : 2;
  View copy = contiguous_view(problem.dtype, shape);
  if (channels_last) copy.strides = {problem.length * problem.channels, 1, problem.channels};
  ChannelsProblem::Strides* const strides[] = {&problem.x, &problem.dy, &problem.dx};
  for (int i = 0; i < 3; ++i) {
    Operand& operand = *data[i];
    if (!operand.present) continue;
    const View& view = operand.view;
    if (operand.staged || (shape[axis] > 1 && view.strides[axis] != 1)) {
      operand.staged = true;
      operand.view = copy;
    }
    *strides[i] = {view.strides[0], view.strides[1], view.strides[2]};
  }
}

// From the operands on. `problem` has what is not an operand: step, frozen, spread_is_rstd, eps.
Status prepare_channels(ChannelsProblem problem, int channel_axis, Device device,
                        Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_types(o));
  NORMGRAD_RETURN_IF_ERROR(check_shapes(o));
  NORMGRAD_RETURN_IF_ERROR(check_channel_axis(o.x, channel_axis));
  const std::vector<int64_t>& shape = o.x.tensor.shape;
  problem.samples = problem.length = 1;
  problem.channels = shape[static_cast<size_t>(channel_axis)];
  for (int axis = 0; axis < static_cast<int>(shape.size()); ++axis) {
    if (axis < channel_axis) problem.samples *= shape[static_cast<size_t>(axis)];
    if (axis > channel_axis) problem.length *= shape[static_cast<size_t>(axis)];
  }
  for (const Operand* operand :
       {&o.gamma, &o.mean, &o.spread, &o.dgamma, &o.dbeta, &o.sum_dy, &o.sum_dy_xmu}) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(*operand, problem.channels, "channel"));
  }
  NORMGRAD_RETURN_IF_ERROR(check_strides(o));

  problem.dtype = data_type(o);
  problem.has_dx = o.dx.present;
  see_data(o, problem);
  problem.mean = see_vector(o.mean, problem.channels);
  problem.spread = see_vector(o.spread, problem.channels);
  problem.gamma = see_vector(o.gamma, problem.channels);
  problem.dgamma = see_vector(o.dgamma, problem.channels);
  problem.dbeta = see_vector(o.dbeta, problem.channels);
  problem.sum_dy = see_vector(o.sum_dy, problem.channels);
  problem.sum_dy_xmu = see_vector(o.sum_dy_xmu, problem.channels);
  problem.counts = o.count.extent.elements;
  problem.count = see_vector(o.count, problem.counts);
  bool writes = problem.has_dx && problem.samples * problem.length > 0;
  for (const Operand* operand : {&o.dgamma, &o.dbeta, &o.sum_dy, &o.sum_dy_xmu}) {
    writes = writes || (operand->present && operand->output);
  }
  return bind(&Backend::channels, problem, /*empty=*/problem.channels == 0 || !writes, device,
              prepared);
}

// One of two steps, which take rstd.
template <class Call>
Status prepare_step(const Call& call, ChannelsStep step, Device device, Prepared& prepared) {
  ChannelsProblem problem;
  problem.spread_is_rstd = true;
  problem.step = step;
  prepared.operands = operands_of(call);
  return prepare_channels(problem, call.channel_axis, device, prepared);
}

}  // namespace

Status prepare(const BatchNormBackward& call, Device device, Prepared& prepared) {
  if (call.statistics == Statistics::kXHatStd) {
    return {Code::kBadArgument,
            "statistics: expected mean and variance or mean and rstd, got x_hat"};
  }
  ChannelsProblem problem;
  problem.spread_is_rstd = call.statistics == Statistics::kMeanRstd;
  problem.eps = call.eps;
  problem.frozen = call.frozen;
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, !problem.spread_is_rstd));
  prepared.operands = operands_of(call);
  return prepare_channels(problem, call.channel_axis, device, prepared);
}

Status prepare(const BatchNormReduceBackward& call, Device device, Prepared& prepared) {
  return prepare_step(call, ChannelsStep::kReduce, device, prepared);
}

Status prepare(const BatchNormElementwiseBackward& call, Device device, Prepared& prepared) {
  return prepare_step(call, ChannelsStep::kElementwise, device, prepared);
}

}  // namespace normgrad
