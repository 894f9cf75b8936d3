// Walks the rows of a problem in order and knows each one's offset in every tensor.
#pragma once

#include <array>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cpu {

class RowCursor {
 public:
  RowCursor(const RowsProblem& problem, int64_t row) : problem_(problem) {
    for (int axis = problem.lead_rank - 1; axis >= 0; --axis) {
      const int64_t index = row % problem.lead_extent[axis];
      row /= problem.lead_extent[axis];
      index_[axis] = index;
      move(axis, index);
    }
  }

  void next() {
    for (int axis = problem_.lead_rank - 1; axis >= 0; --axis) {
      move(axis, 1);
      if (++index_[axis] < problem_.lead_extent[axis]) return;
      move(axis, -index_[axis]);
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
    move(last, rows - 1);
    index_[last] += rows - 1;
    next();
  }

  int64_t x = 0, dy = 0, dx = 0, mean = 0, spread = 0;  // in elements

 private:
  void move(int axis, int64_t steps) {
    x += steps * problem_.x[axis];
    dy += steps * problem_.dy[axis];
    dx += steps * problem_.dx[axis];
    mean += steps * problem_.mean.lead[axis];
    spread += steps * problem_.spread.lead[axis];
  }

  const RowsProblem& problem_;
  RowsProblem::LeadStrides index_{};
};

}  // namespace normgrad::cpu
