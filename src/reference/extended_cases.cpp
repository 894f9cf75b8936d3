// The table of what gradients can do beyond the dialects: a residual's gradient, gamma's offset,
// and sums that are added to others.
#include "reference/tables.hpp"

namespace normgrad::reference {
namespace {

void add_rows(Table& table) {
  const auto add = [&](std::vector<int64_t> shape, Layout layout, InPlace in_place) {
    Case c = table.base(std::move(shape));
    c.has_dh = true;
    c.layout = layout;
    c.in_place = in_place;
    table.add_next_form(c);
  };
  for (int64_t cols : {1, 7, 33, 64, 255, 1024, 4096, 8193, 20000}) {
    for (int64_t rows : {3, 70}) {
      for (InPlace in_place : {InPlace::kNone, InPlace::kDh, InPlace::kDy}) {
        add({rows, cols}, Layout::kContiguous, in_place);
      }
    }
  }
  for (Layout layout : {Layout::kMixed, Layout::kNegative, Layout::kPermuted, Layout::kStrided,
                        Layout::kTransposed, Layout::kScattered}) {
    for (const int64_t cols : {40, 520, 521}) {
      add({6, 5, cols}, layout, InPlace::kNone);
      add({6, 5, cols}, layout, InPlace::kDh);
    }
  }
  for (const Values values : {Values::kZeroDenominators, Values::kNonFinite, Values::kSameSign}) {
    for (const int64_t cols : {50, 600}) {
      Case c = table.base({37, cols});
      c.has_dh = true;
      c.values = values;
      table.add_forms(c);
    }
  }
  Case typed = table.base({6, 40});
  typed.has_dh = true;
  table.add_dx_dtypes(typed);
  table.add_dtype_mixes(typed);
  for (const int64_t rows : {0, 1, 5, 70, 3000}) {
    for (const int64_t cols : {33, 4096}) {
      if (rows * cols > 1000000) continue;
      Case c = table.base({rows, cols});
      c.accumulate = true;
      table.add_masks(c);
      c.gamma_offset = 1;
      c.has_dh = true;
      table.add_next_form(c);
    }
  }
  for (const Layout layout : {Layout::kStridedParameters, Layout::kTransposed}) {
    Case c = table.base({20, 3, 16});
    c.normalized_axes = 2;
    c.accumulate = true;
    c.gamma_offset = -0.5;
    c.layout = layout;
    table.add_next_form(c);
  }
  Case mixed = table.base({12, 24});
  mixed.accumulate = true;
  table.add_dtype_mixes(mixed);
}

void add_channels(Table& table) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{4, 6, 50}, {300, 40, 1}, {2, 3, 20000}, {0, 3, 5}}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kChannelsLast}) {
      Case c = table.base(shape);
      c.accumulate = true;
      c.layout = layout;
      table.add_masks(c);
      c.frozen = true;
      table.add_next_form(c);
    }
  }
  Case c = table.base({5, 12, 24});
  c.accumulate = true;
  table.add_dtype_mixes(c);
  c.values = Values::kZeroDenominators;
  table.add_forms(c);
  c.values = Values::kNonFinite;
  table.add_forms(c);
}

}  // namespace

std::vector<Case> extended_cases(Op op) {
  Table table(op);
  if (op == Op::kBatchNorm) {
    add_channels(table);
  } else {
    add_rows(table);
  }
  return table.take();
}

}  // namespace normgrad::reference
