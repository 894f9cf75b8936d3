// How the case tables are put together. Each function adds variations of a base case.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/cases.hpp"

namespace normgrad::reference {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class Table {
 public:
  explicit Table(Op op, bool forward = false) : op_(op), forward_(forward) {}

  Op op() const { return op_; }

  // All operands f32, the first form of statistics of the operator.
  Case base(std::vector<int64_t> shape) const;

  // The forms of statistics that the operator has.
  const std::vector<Statistics>& forms() const;

  void add(const Case& c) { cases_.push_back(c); }
  void add_dtypes(const Case& c);  // each type for all operands
  void add_forms(Case c);          // each form of statistics, each type
  void add_next_form(Case c);      // each type, with forms taking turns
  void add_masks(const Case& c);   // each set of outputs
  void add_dtype_mixes(const Case& c);
  void add_dx_dtypes(const Case& c);
  void add_offsets(const Case& c);
  void add_eps(const Case& c);
  void add_values(const Case& c);  // adversarial data
  void add_exact(const Case& c);   // the sums must have a power of two terms, 256 at most
  void add_scales(const Case& c);
  void add_means(const Case& c);

  // The cases with their names and gates.
  std::vector<Case> take();

 private:
  Op op_;
  bool forward_;
  size_t turn_ = 0;
  std::vector<Case> cases_;
};

Case with_dtype(Case c, DType dtype);

std::vector<Case> rows_cases(Op op, bool long_mode);
std::vector<Case> channels_cases(bool long_mode);

}  // namespace normgrad::reference
