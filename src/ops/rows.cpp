// Calls of LayerNorm and RMSNorm as a problem of rows: shapes, strides, merged leading axes.
#include <string>

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

// The shape of x without its last axis, or with that axis 1.
Status check_row_scalar(const Operand& operand, const std::vector<int64_t>& shape) {
  if (!operand.present) return {};
  std::vector<int64_t> leading(shape.begin(), shape.end() - 1);
  std::vector<int64_t> kept = leading;
  kept.push_back(1);
  if (operand.tensor.shape == leading || operand.tensor.shape == kept) return {};
  return {Code::kBadShape, std::string(operand.name) + ": expected shape " + to_string(leading) +
                               " or " + to_string(kept) + ", got " +
                               to_string(operand.tensor.shape)};
}

Status check_last_axis(const Operand& operand) {
  if (!operand.present || operand.tensor.shape.back() <= 1 || operand.tensor.strides.back() == 1) {
    return {};
  }
  return {Code::kBadStrides, std::string(operand.name) +
                                 ": expected stride 1 on the last axis, got strides " +
                                 to_string(operand.tensor.strides)};
}

// Writes the leading axes of x into the problem, outermost first. Axes of extent 1 are dropped, and
// an axis joins its inner neighbour where every tensor steps over the neighbour without a gap.
void merge_leading_axes(const Operands& operands, RowsProblem& problem) {
  struct Source {
    const Operand& operand;
    RowsProblem::LeadStrides& strides;
  };
  const Source sources[] = {{operands.x, problem.x},
                            {operands.dy, problem.dy},
                            {operands.dx, problem.dx},
                            {operands.mean, problem.mean.lead},
                            {operands.spread, problem.spread.lead}};
  const std::vector<int64_t>& shape = operands.x.tensor.shape;
  int rank = 0;
  for (size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool merges = rank > 0;
    for (const Source& source : sources) {
      if (!source.operand.present) continue;
      // The strides of empty tensors may be anything: the product may not fit 64 bits.
      const auto inner = static_cast<__int128>(source.operand.tensor.strides[axis]);
      merges = merges && source.strides[rank - 1] == inner * shape[axis];
    }
    if (!merges) problem.lead_extent[rank++] = 1;
    problem.lead_extent[rank - 1] *= shape[axis];
    for (const Source& source : sources) {
      if (source.operand.present) source.strides[rank - 1] = source.operand.tensor.strides[axis];
    }
  }
  problem.lead_rank = rank;
}

}  // namespace

Status prepare_rows(RowStatistics statistics, double eps, Device device, Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_types(o));
  NORMGRAD_RETURN_IF_ERROR(check_shapes(o));
  const std::vector<int64_t>& shape = o.x.tensor.shape;
  if (shape.empty()) {
    return {Code::kBadShape, std::string(o.x.name) + ": expected 1 to 8 axes, got 0"};
  }
  for (const Operand* operand : {&o.gamma, &o.dgamma, &o.dbeta}) {
    NORMGRAD_RETURN_IF_ERROR(expect_shape(*operand, {shape.back()}));
  }
  for (const Operand* operand : {&o.mean, &o.spread}) {
    NORMGRAD_RETURN_IF_ERROR(check_row_scalar(*operand, shape));
  }
  NORMGRAD_RETURN_IF_ERROR(check_strides(o));
  for (const Operand* operand : {&o.x, &o.dy, &o.dx}) {
    NORMGRAD_RETURN_IF_ERROR(check_last_axis(*operand));
  }

  RowsProblem problem;
  problem.dtype = o.x.tensor.dtype;
  problem.cols = shape.back();
  problem.rows = 1;
  for (size_t axis = 0; axis + 1 < shape.size(); ++axis) problem.rows *= shape[axis];
  problem.statistics = statistics;
  problem.mean.dtype = o.mean.tensor.dtype;
  problem.spread.dtype = o.spread.tensor.dtype;
  problem.eps = eps;
  problem.has_dx = o.dx.present;
  problem.gamma = vector_of(o.gamma);
  problem.dgamma = vector_of(o.dgamma);
  problem.dbeta = vector_of(o.dbeta);
  merge_leading_axes(o, problem);
  const bool writes =
      problem.dgamma.present || problem.dbeta.present || (problem.has_dx && problem.rows > 0);
  return bind(&Backend::rows, problem, /*empty=*/problem.cols == 0 || !writes, device, prepared);
}

}  // namespace normgrad
