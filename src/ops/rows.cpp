// Calls of LayerNorm and RMSNorm as a problem of rows: shapes, strides, merged leading axes.
#include <string>

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

// How the axes of x split into rows and columns.
struct Split {
  std::vector<int64_t> leading;
  int64_t rows = 1, cols = 1;

  Split(const std::vector<int64_t>& shape, int normalized_axes)
      : leading(shape.begin(), shape.end() - normalized_axes) {
    for (const int64_t extent : leading) rows *= extent;
    for (size_t axis = leading.size(); axis < shape.size(); ++axis) cols *= shape[axis];
  }
};

Status check_axes(const Operand& x, int normalized_axes) {
  const int rank = static_cast<int>(x.tensor.shape.size());
  if (rank == 0) return {Code::kBadShape, std::string(x.name) + ": expected 1 to 8 axes, got 0"};
  if (normalized_axes >= 1 && normalized_axes <= rank) return {};
  return {Code::kBadArgument, "normalized_axes: expected 1 to " + std::to_string(rank) +
                                  ", the axes of " + x.name + ", got " +
                                  std::to_string(normalized_axes)};
}

// Kernels walk along rows without gaps.
void see_rows(Operand& operand, DType dtype, const Split& split) {
  if (!operand.present) return;
  std::vector<int64_t> shape = split.leading;
  shape.push_back(split.cols);
  see(operand, dtype, shape);
  const int64_t step = operand.view.strides[shape.size() - 1];
  if (split.cols > 1 && step != 1) {
    operand.staged = true;
    operand.view = contiguous_view(dtype, shape);
  }
}

void see_row_scalar(Operand& operand, const Split& split) {
  if (operand.present) see(operand, operand.tensor.dtype, split.leading);
}

// Writes the leading axes into the problem, outermost first. Axes of extent 1 are dropped, and an
// axis joins its inner neighbour where every tensor steps over the neighbour without a gap.
void merge_leading_axes(const Operands& operands, const Split& split, RowsProblem& problem) {
  struct Source {
    const Operand& operand;
    RowsProblem::LeadStrides& strides;
  };
  const Source sources[] = {{operands.x, problem.x},
                            {operands.dy, problem.dy},
                            {operands.dx, problem.dx},
                            {operands.mean, problem.mean.lead},
                            {operands.spread, problem.spread.lead}};
  int rank = 0;
  for (size_t axis = 0; axis < split.leading.size(); ++axis) {
    const int64_t extent = split.leading[axis];
    if (extent == 1) continue;
    bool merges = rank > 0;
    for (const Source& source : sources) {
      if (!source.operand.present) continue;
      // The strides of empty tensors may be anything: the product may not fit 64 bits.
      const auto inner = static_cast<__int128>(source.operand.view.strides[axis]);
      merges = merges && source.strides[rank - 1] == inner * extent;
    }
    if (!merges) problem.lead_extent[rank++] = 1;
    problem.lead_extent[rank - 1] *= extent;
    for (const Source& source : sources) {
      if (source.operand.present) source.strides[rank - 1] = source.operand.view.strides[axis];
    }
  }
  problem.lead_rank = rank;
}

}  // namespace

Status prepare_rows(RowStatistics statistics, double eps, int normalized_axes, Device device,
                    Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_types(o));
  NORMGRAD_RETURN_IF_ERROR(check_shapes(o));
  NORMGRAD_RETURN_IF_ERROR(check_axes(o.x, normalized_axes));
  const Split split(o.x.tensor.shape, normalized_axes);
  for (const Operand* operand : {&o.gamma, &o.dgamma, &o.dbeta}) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(*operand, split.cols, "column"));
  }
  for (const Operand* operand : {&o.mean, &o.spread}) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(*operand, split.rows, "row"));
  }
  NORMGRAD_RETURN_IF_ERROR(check_strides(o));

  RowsProblem problem;
  problem.dtype = data_type(o);
  for (Operand* operand : {&o.x, &o.dy, &o.dx}) see_rows(*operand, problem.dtype, split);
  for (Operand* operand : {&o.mean, &o.spread}) see_row_scalar(*operand, split);
  problem.rows = split.rows;
  problem.cols = split.cols;
  problem.statistics = statistics;
  problem.mean.dtype = o.mean.tensor.dtype;
  problem.spread.dtype = o.spread.tensor.dtype;
  problem.eps = eps;
  problem.has_dx = o.dx.present;
  problem.gamma = see_vector(o.gamma, split.cols);
  problem.dgamma = see_vector(o.dgamma, split.cols);
  problem.dbeta = see_vector(o.dbeta, split.cols);
  merge_leading_axes(o, split, problem);
  const bool writes =
      problem.dgamma.present || problem.dbeta.present || (problem.has_dx && problem.rows > 0);
  return bind(&Backend::rows, problem, /*empty=*/problem.cols == 0 || !writes, device, prepared);
}

}  // namespace normgrad
