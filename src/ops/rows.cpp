// Calls of LayerNorm and RMSNorm as problems of rows: shapes, strides, merged leading axes.
#include <initializer_list>
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

void see_row_scalar(Operand& operand, const Split& split, RowsShape::RowScalar& scalar) {
  if (operand.present) see(operand, operand.tensor.dtype, split.leading);
  scalar.present = operand.present;
  scalar.dtype = operand.tensor.dtype;
}

// An operand that has rows, and where its strides from row to row belong.
struct Source {
  const Operand& operand;
  RowsShape::LeadStrides& strides;
};

// Writes the leading axes into the problem, outermost first. Axes of extent 1 are dropped, and an
// axis joins its inner neighbour where every tensor steps over the neighbour without a gap.
void merge_leading_axes(std::initializer_list<Source> sources, const Split& split,
                        RowsShape& problem) {
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

// All operands together; the split is that of x.
Status check_rows(Operands& o, int normalized_axes) {
  NORMGRAD_RETURN_IF_ERROR(check_types(o));
  NORMGRAD_RETURN_IF_ERROR(check_shapes(o));
  NORMGRAD_RETURN_IF_ERROR(check_axes(o.x, normalized_axes));
  const Split split(o.x.tensor.shape, normalized_axes);
  for (const Operand* operand : {&o.gamma, &o.beta, &o.dgamma, &o.dbeta}) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(*operand, split.cols, "column"));
  }
  for (const Operand* operand : {&o.mean, &o.spread, &o.saved_mean, &o.saved_spread}) {
    NORMGRAD_RETURN_IF_ERROR(expect_count(*operand, split.rows, "row"));
  }
  return check_strides(o);
}

}  // namespace

Status prepare_rows_forward(const RowsForward& call, Device device, Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.eps_name, call.eps, /*used=*/true));
  NORMGRAD_RETURN_IF_ERROR(check_offset(call.gamma_offset));
  NORMGRAD_RETURN_IF_ERROR(check_rows(o, call.normalized_axes));
  const Split split(o.x.tensor.shape, call.normalized_axes);

  RowsForwardProblem problem;
  problem.dtype = o.x.tensor.dtype;
  problem.rows = split.rows;
  problem.cols = split.cols;
  problem.rms = call.rms;
  for (Operand* operand : {&o.x, &o.residual, &o.y, &o.h, &o.x_hat}) {
    see_rows(*operand, problem.dtype, split);
  }
  see_row_scalar(o.saved_mean, split, problem.mean);
  see_row_scalar(o.saved_spread, split, problem.spread);
  problem.has_residual = o.residual.present;
  problem.has_y = o.y.present;
  problem.has_h = o.h.present;
  problem.has_x_hat = o.x_hat.present;
  problem.statistics = call.statistics;
  problem.eps = call.eps;
  problem.gamma = see_gamma(o.gamma, call.gamma_offset, split.cols);
  problem.beta = see_vector(o.beta, split.cols);
  merge_leading_axes({{o.x, problem.x},
                      {o.residual, problem.residual},
                      {o.y, problem.y},
                      {o.h, problem.h},
                      {o.x_hat, problem.x_hat},
                      {o.saved_mean, problem.mean.lead},
                      {o.saved_spread, problem.spread.lead}},
                     split, problem);
  const bool writes = problem.has_y || problem.has_h || problem.has_x_hat || problem.mean.present ||
                      problem.spread.present;
  const bool empty = problem.rows == 0 || problem.cols == 0 || !writes;
  return bind(&Backend::rows_forward, problem, empty, device, prepared);
}

Status prepare_rows(const RowsBackward& call, Device device, Prepared& prepared) {
  Operands& o = prepared.operands;
  NORMGRAD_RETURN_IF_ERROR(check_offset(call.gamma_offset));
  NORMGRAD_RETURN_IF_ERROR(check_rows(o, call.normalized_axes));
  if (o.dh.present && !o.dx.present) {
    return {Code::kBadArgument, std::string(o.dh.name) + ": expected none without " + o.dx.name};
  }
  const Split split(o.x.tensor.shape, call.normalized_axes);

  RowsProblem problem;
  problem.dtype = data_type(o);
  for (Operand* operand : {&o.x, &o.dy, &o.dh, &o.dx}) see_rows(*operand, problem.dtype, split);
  see_row_scalar(o.mean, split, problem.mean);
  see_row_scalar(o.spread, split, problem.spread);
  problem.rows = split.rows;
  problem.cols = split.cols;
  problem.statistics = call.statistics;
  problem.eps = call.eps;
  problem.has_dx = o.dx.present;
  problem.has_dh = o.dh.present;
  problem.gamma = see_gamma(o.gamma, call.gamma_offset, split.cols);
  problem.dgamma = see_vector(o.dgamma, split.cols);
  problem.dbeta = see_vector(o.dbeta, split.cols);
  problem.dgamma.accumulate = o.dgamma.updated;
  problem.dbeta.accumulate = o.dbeta.updated;
  merge_leading_axes({{o.x, problem.x},
                      {o.dy, problem.dy},
                      {o.dh, problem.dh},
                      {o.dx, problem.dx},
                      {o.mean, problem.mean.lead},
                      {o.spread, problem.spread.lead}},
                     split, problem);
  const bool writes =
      problem.dgamma.present || problem.dbeta.present || (problem.has_dx && problem.rows > 0);
  return bind(&Backend::rows, problem, /*empty=*/problem.cols == 0 || !writes, device, prepared);
}

}  // namespace normgrad
