// Walks the rows of a problem in order and knows each one's offset in every tensor.
#pragma once

#include <array>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cpu {

// In elements.
template <class Problem>
struct RowOffsets;

template <>
struct RowOffsets<RowsProblem> {
  int64_t x = 0, dy = 0, dh = 0, dx = 0, mean = 0, spread = 0;

  void move(const RowsProblem& problem, int axis, int64_t steps) {
    x += steps * problem.x[axis];
    dy += steps * problem.dy[axis];
    dh += steps * problem.dh[axis];
    dx += steps * problem.dx[axis];
    mean += steps * problem.mean.lead[axis];
    spread += steps * problem.spread.lead[axis];
  }
};

template <>
struct RowOffsets<RowsForwardProblem> {
  int64_t x = 0, residual = 0, y = 0, h = 0, x_hat = 0, mean = 0, spread = 0;

  void move(const RowsForwardProblem& problem, int axis, int64_t steps) {
    x += steps * problem.x[axis];
    residual += steps * problem.residual[axis];
    y += steps * problem.y[axis];
    h += steps * problem.h[axis];
    x_hat += steps * problem.x_hat[axis];
    mean += steps * problem.mean.lead[axis];
    spread += steps * problem.spread.lead[axis];
  }
};

template <class Problem>
class RowCursor : public RowOffsets<Problem> {
 public:
  RowCursor(const Problem& problem, int64_t row) : problem_(problem) {
    for (int axis = problem.lead_rank - 1; axis >= 0; --axis) {
      const int64_t index = row % problem.lead_extent[axis];
      row /= problem.lead_extent[axis];
      index_[axis] = index;
      this->move(problem, axis, index);
    }
  }

  void next() {
    for (int axis = problem_.lead_rank - 1; axis >= 0; --axis) {
      this->move(problem_, axis, 1);
      if (++index_[axis] < problem_.lead_extent[axis]) return;
      this->move(problem_, axis, -index_[axis]);
      index_[axis] = 0;
    }
  }

  // How many rows from this one on have the same distances, and moving on by some of them.
  int64_t even_rows() const {
    const int last = problem_.lead_rank - 1;
    return last < 0 ? 1 : problem_.lead_extent[last] - index_[last];
  }
  void skip(int64_t rows) {
    const int last = problem_.lead_rank - 1;
    if (last < 0) return;
    this->move(problem_, last, rows - 1);
    index_[last] += rows - 1;
    next();
  }

 private:
  const Problem& problem_;
  RowsShape::LeadStrides index_{};
};

}  // namespace normgrad::cpu
