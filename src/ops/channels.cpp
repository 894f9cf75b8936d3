// Calls of BatchNorm as problems of channels: shapes, and the axis that kernels walk along.
#include <cstdint>
#include <initializer_list>
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

// What passes between the two steps of a BatchNorm. `parts`: that sums and moments come in; as many
// as there are counts, or one where they are of the whole batch.
Status check_step(const Operands& o, ChannelsStep step, int64_t channels, int64_t& parts) {
  parts = 1;
  if (step == ChannelsStep::kReduce) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(o.count, 1, "batch"));
  } else if (step == ChannelsStep::kElementwise) {
    const int64_t counts = elements_of(o.count);
    if (counts == 0) {
      return {Code::kBadShape,
              std::string(o.count.name) + ": expected an element per part, got none"};
    }
    const bool whole = o.sum_dy.present && elements_of(o.sum_dy) == channels;
    if (!whole) parts = counts;
  }
  int64_t elements;  // what overflows is more than any tensor has
  if (__builtin_mul_overflow(parts, channels, &elements)) elements = INT64_MAX;
  for (const Operand* operand : {&o.squares, &o.sum_dy, &o.sum_dy_xmu}) {
    NORMGRAD_RETURN_IF_ERROR(
        expect_count(*operand, elements, parts == 1 ? "channel" : "part and channel"));
  }
  if (!o.squares.present) return expect_count(o.mean, channels, "channel");
  return expect_count(o.mean, elements, parts == 1 ? "channel" : "part and channel");
}

// All operands together; the shape of x becomes that of the problem.
template <class Problem>
Status check_channels(Operands& o, int channel_axis, Problem& problem) {
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
  for (const Operand* operand : {&o.gamma, &o.beta, &o.spread, &o.dgamma, &o.dbeta, &o.saved_mean,
                                 &o.saved_spread, &o.running_mean, &o.running_variance}) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(*operand, problem.channels, "channel"));
  }
  NORMGRAD_RETURN_IF_ERROR(check_step(o, problem.step, problem.channels, problem.parts));
  return check_strides(o);
}

// An operand of the shape of x, and where its strides belong.
struct Source {
  Operand& operand;
  ChannelsShape::Strides& strides;
};

// Kernels walk along the length or along the channels, in all tensors alike. The axis that suits
// more tensors wins; the others get copies in its order.
void see_data(std::initializer_list<Source> sources, const ChannelsShape& problem) {
  const int64_t shape[] = {problem.samples, problem.channels, problem.length};
  int along_length = 0, along_channels = 0;
  for (const Source& source : sources) {
    Operand& operand = source.operand;
    if (!operand.present) continue;
    see(operand, problem.dtype, shape);
    if (operand.staged) continue;
    along_length += problem.length <= 1 || operand.view.strides[2] == 1;
    along_channels += problem.channels <= 1 || operand.view.strides[1] == 1;
  }
  const bool channels_last = along_channels > along_length;
  const int axis = channels_last ? 1 : 2;
  View copy = contiguous_view(problem.dtype, shape);
  if (channels_last) copy.strides = {problem.length * problem.channels, 1, problem.channels};
  for (const Source& source : sources) {
    Operand& operand = source.operand;
    if (!operand.present) continue;
    const View& view = operand.view;
    if (operand.staged || (shape[axis] > 1 && view.strides[axis] != 1)) {
      operand.staged = true;
      operand.view = copy;
    }
    source.strides = {view.strides[0], view.strides[1], view.strides[2]};
  }
}

}  // namespace

Status prepare_channels_forward(ChannelsForwardProblem problem, int channel_axis, Device device,
                                Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_channels(o, channel_axis, problem));
  problem.dtype = o.x.tensor.dtype;
  problem.has_y = o.y.present;
  see_data({{o.x, problem.x}, {o.y, problem.y}}, problem);
  problem.gamma = see_vector(o.gamma, problem.channels);
  problem.beta = see_vector(o.beta, problem.channels);
  problem.mean = see_vector(o.saved_mean, problem.channels);
  problem.spread = see_vector(o.saved_spread, problem.channels);
  problem.running_mean = see_vector(o.running_mean, problem.channels);
  problem.running_variance = see_vector(o.running_variance, problem.channels);
  problem.part_mean = see_parts(o.mean, problem.parts, problem.channels);
  problem.squares = see_parts(o.squares, problem.parts, problem.channels);
  problem.count = see_vector(o.count, problem.parts);
  const bool nothing = problem.samples * problem.length == 0;
  const bool moves = !problem.frozen && (!nothing || problem.step == ChannelsStep::kElementwise);
  const bool writes = (problem.has_y && !nothing) || problem.mean.present ||
                      problem.spread.present || (problem.running_mean.present && moves);
  return bind(&Backend::channels_forward, problem, /*empty=*/problem.channels == 0 || !writes,
              device, prepared);
}

Status prepare_channels(ChannelsProblem problem, int channel_axis, Device device,
                        Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_channels(o, channel_axis, problem));
  problem.dtype = data_type(o);
  problem.has_dx = o.dx.present;
  see_data({{o.x, problem.x}, {o.dy, problem.dy}, {o.dx, problem.dx}}, problem);
  problem.mean = see_vector(o.mean, problem.channels);
  problem.spread = see_vector(o.spread, problem.channels);
  problem.gamma = see_vector(o.gamma, problem.channels);
  problem.dgamma = see_vector(o.dgamma, problem.channels);
  problem.dbeta = see_vector(o.dbeta, problem.channels);
  problem.dgamma.accumulate = o.dgamma.updated;
  problem.dbeta.accumulate = o.dbeta.updated;
  problem.sum_dy = see_parts(o.sum_dy, problem.parts, problem.channels);
  problem.sum_dy_xmu = see_parts(o.sum_dy_xmu, problem.parts, problem.channels);
  problem.counts = o.count.extent.elements;
  problem.count = see_vector(o.count, problem.counts);
  bool writes = problem.has_dx && problem.samples * problem.length > 0;
  for (const Operand* operand : {&o.dgamma, &o.dbeta, &o.sum_dy, &o.sum_dy_xmu, &o.count}) {
    writes = writes || (operand->present && operand->output);
  }
  return bind(&Backend::channels, problem, /*empty=*/problem.channels == 0 || !writes, device,
              prepared);
}

}  // namespace normgrad
