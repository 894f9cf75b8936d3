// The table of BatchNorm's two steps, of the layer and of its gradient.
#include "reference/tables.hpp"

namespace normgrad::reference {
namespace {

// Parts of a batch: one, several, of all sizes, empty ones, and more elements than float32 or
// int32 can count.
const std::vector<std::vector<int64_t>> kCounts = {{1},
                                                   {40},
                                                   {3, 5},
                                                   {0, 1, 7, 1000},
                                                   {7, 0, 0, 1000, 1},
                                                   {0},
                                                   {0, 0, 0},
                                                   {16777217, 1, 3},
                                                   {4294967296 + 5, 1099511627776, 9}};

void add_first_steps(Table& table) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 1, 1},
                                            {3, 5, 7},
                                            {4, 2, 65},
                                            {8, 33, 1},
                                            {1000, 7, 1},
                                            {5, 3, 1000},
                                            {2, 2, 40000},
                                            {16, 24, 196},
                                            {0, 3, 4},
                                            {2, 3, 0},
                                            {2, 0, 3}}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kChannelsLast}) {
      Case c = table.base(shape);
      c.step = Step::kReduce;
      c.layout = layout;
      table.add_dtypes(c);
      c.sums = DType::kF32;
      table.add_dtypes(c);
    }
  }
  for (const Layout layout : {Layout::kMixed, Layout::kStridedParameters, Layout::kStrided,
                              Layout::kScattered, Layout::kNegative}) {
    Case c = table.base({4, 6, 20});
    c.step = Step::kReduce;
    c.layout = layout;
    table.add_dtypes(c);
  }
  for (const Layout layout : {Layout::kContiguous, Layout::kChannelsLast}) {
    Case c = table.base({7, 12, 30});
    c.step = Step::kReduce;
    c.layout = layout;
    for (const double mean : {100.0, 1e6}) {
      c.mean_over_std = mean;
      table.add(c);
    }
    c.mean_over_std = 0;
    for (const Values values :
         {Values::kSameSign, Values::kZeroDenominators, Values::kNonFinite, Values::kOutliers}) {
      c.values = values;
      table.add_dtypes(c);
    }
    c.values = Values::kRandom;
    for (const double scale : {1e-30, 1e20}) {
      c.scale = scale;
      table.add(c);
    }
  }
}

void add_second_steps(Table& table) {
  for (const std::vector<int64_t>& counts : kCounts) {
    for (const Layout layout :
         {Layout::kContiguous, Layout::kChannelsLast, Layout::kStridedParameters}) {
      Case c = table.base({6, 5, 14});
      c.step = Step::kElementwise;
      c.eps = 1e-5;
      c.counts = counts;
      c.layout = layout;
      table.add_next_form(c);
      c.sums = DType::kF32;
      table.add_next_form(c);
    }
    Case empty = table.base({0, 5, 14});
    empty.step = Step::kElementwise;
    empty.eps = 1e-5;
    empty.counts = counts;
    table.add_next_form(empty);
  }
  Case c = table.base({40, 6, 33});
  c.step = Step::kElementwise;
  c.eps = 1e-5;
  c.counts = {1000, 0, 320, 7};
  for (const DType counts : {DType::kI64, DType::kI32, DType::kF32}) {
    for (const DType sums : {DType::kF64, DType::kF32, DType::kBF16}) {
      c.count_dtype = counts;
      c.sums = sums;
      table.add_next_form(c);
    }
  }
  c.count_dtype = DType::kI64;
  c.sums = DType::kF64;
  for (const Layout layout : {Layout::kMixed, Layout::kStrided, Layout::kScattered,
                              Layout::kTransposed, Layout::kContiguous}) {
    c.layout = layout;
    table.add_next_form(c);
    c.in_place = InPlace::kX;
    table.add_next_form(c);
    c.in_place = InPlace::kNone;
  }
  c.has_gamma = c.has_beta = false;
  table.add_next_form(c);
  c.has_gamma = c.has_beta = true;
  for (const Values values : {Values::kZeroDenominators, Values::kNonFinite}) {
    c.values = values;
    table.add_next_form(c);
  }
  c.values = Values::kRandom;
  for (const double mean : {100.0, 1e6}) {
    c.mean_over_std = mean;
    table.add(c);
    c.layout = Layout::kChannelsLast;
    table.add(c);
    c.layout = Layout::kContiguous;
  }
  c.mean_over_std = 0;
  for (const double scale : {1e-30, 1e20}) {
    c.scale = scale;
    table.add(c);
  }
  c.scale = 1;
  c.counts.assign(1000, 12);  // more parts than a block has threads
  table.add_next_form(c);
}

// Each set of the layer's outputs, also of a process that has no elements.
void add_outputs(Table& table) {
  for (const int64_t samples : {0, 6}) {
    for (int mask = 0; mask < 16; ++mask) {
      Case c = table.base({samples, 5, 14});
      c.step = Step::kElementwise;
      c.eps = 1e-5;
      c.counts = {30, 0, 8};
      c.want_y = mask & 1;
      c.want_mean = mask & 2;
      c.want_spread = mask & 4;
      c.has_running = mask & 8;
      table.add_next_form(c);
    }
  }
}

}  // namespace

std::vector<Case> step_cases(Op op) {
  std::vector<Case> all;
  if (op != Op::kBatchNorm) return all;
  for (const bool forward : {true, false}) {
    Table table(op, forward);
    add_first_steps(table);
    add_second_steps(table);
    if (forward) add_outputs(table);
    for (Case& c : table.take()) {
      if (!forward) c.statistics = Statistics::kMeanRstd;
      if (!forward) c.eps = 0;
      all.push_back(c);
    }
  }
  return all;
}

}  // namespace normgrad::reference
