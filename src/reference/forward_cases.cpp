// The case tables of the layers themselves.
#include "reference/tables.hpp"

namespace normgrad::reference {
namespace {

Case with_eps(Case c) {
  c.eps = 1e-5;
  return c;
}

void add_row_shapes(Table& table) {
  const auto add = [&](int64_t rows, int64_t cols) {
    Case c = with_eps(table.base({rows, cols}));
    c.has_residual = c.want_h = cols % 2 == 1;
    table.add_next_form(c);
  };
  for (int64_t width = 1; width <= 2048; width *= 2) {
    for (int64_t cols : {width - 1, width, width + 1}) {
      if (cols > 0) add(5, cols);
    }
  }
  for (int64_t width : {4096, 8192, 16384, 65536}) {
    for (int64_t cols : {width - 1, width, width + 1}) add(2, cols);
  }
  Case one_row = with_eps(table.base({1, 1000003}));
  table.add(one_row);
  one_row.shape = {1, 1048576};
  table.add(with_dtype(one_row, DType::kBF16));
  for (int64_t rows : {1, 7, 33, 1025}) add(rows, 40);
  add(65537, 3);
  add(257, 512);
  add(300, 768);
  add(70, 8300);
}

void add_plane_shapes(Table& table) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 1, 1},
                                            {1, 3, 1},
                                            {2, 1, 1},
                                            {3, 5, 7},
                                            {2, 3, 64},
                                            {4, 2, 65},
                                            {8, 33, 1},
                                            {1000, 7, 1},
                                            {70, 64, 1},
                                            {5, 3, 1000},
                                            {2, 2, 40000},
                                            {1, 1, 300001},
                                            {32, 17, 49},
                                            {16, 24, 196},
                                            {3, 130, 12}}) {
    for (const Layout layout :
         {Layout::kContiguous, Layout::kPadded, Layout::kChannelsLast, Layout::kChannelsLastGaps}) {
      Case c = with_eps(table.base(shape));
      c.layout = layout;
      table.add_next_form(c);
      c.frozen = true;
      table.add_dtypes(c);
    }
  }
}

void add_layouts(Table& table, const Case& base) {
  for (Layout layout :
       {Layout::kPadded, Layout::kMixed, Layout::kNegative, Layout::kBroadcastDy, Layout::kPermuted,
        Layout::kStridedParameters, Layout::kStrided, Layout::kTransposed, Layout::kScattered}) {
    Case c = base;
    c.layout = layout;
    table.add_next_form(c);
    if (layout == Layout::kBroadcastDy) continue;  // outputs do not lie in what overlaps itself
    c.in_place = c.has_residual ? InPlace::kBoth : InPlace::kX;
    table.add_next_form(c);
  }
}

// Which outputs, and where.
void add_row_outputs(Table& table) {
  for (const int64_t cols : {33, 256, 2500}) {
    Case base = with_eps(table.base({3, cols}));
    base.has_residual = true;
    for (int mask = 0; mask < 32; ++mask) {
      Case c = base;
      c.want_y = mask & 1;
      c.want_h = mask & 2;
      c.want_x_hat = (mask & 4) && table.op() == Op::kLayerNorm;
      c.want_mean = mask & 8;
      c.want_spread = mask & 16;
      table.add_next_form(c);
    }
    base.want_h = true;
    for (const InPlace in_place : {InPlace::kX, InPlace::kResidual, InPlace::kBoth}) {
      Case c = base;
      c.in_place = in_place;
      table.add_next_form(c);
    }
    base.has_residual = false;  // h is a copy of x
    table.add_next_form(base);
    base.want_h = false;
    base.in_place = InPlace::kX;
    table.add_next_form(base);
    base.gamma_offset = 1;
    table.add_next_form(base);
  }
}

void add_plane_outputs(Table& table) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6, 5, 33}, {40, 20, 1}}) {
    for (int mask = 0; mask < 16; ++mask) {
      Case c = with_eps(table.base(shape));
      c.want_y = mask & 1;
      c.want_mean = mask & 2;
      c.want_spread = mask & 4;
      c.has_running = mask & 8;
      table.add_next_form(c);
    }
    Case c = with_eps(table.base(shape));
    c.in_place = InPlace::kX;
    table.add_next_form(c);
    c.frozen = true;
    table.add_next_form(c);
  }
}

void add_data(Table& table, const Case& base) {
  for (const bool gamma : {false, true}) {
    for (const bool beta : {false, true}) {
      Case c = with_eps(base);
      c.has_gamma = gamma;
      c.has_beta = beta;
      table.add_next_form(c);
    }
  }
  table.add_dtype_mixes(with_eps(base));
  table.add_offsets(with_eps(base));
  for (const double eps : {0.0, 1e-12, 1e-3, 1.0}) {
    for (const Values values : {Values::kRandom, Values::kZeroDenominators}) {
      Case c = base;
      c.eps = eps;
      c.values = values;
      table.add_forms(c);
    }
  }
  for (const Values values :
       {Values::kSameSign, Values::kWide, Values::kNonFinite, Values::kOutliers}) {
    Case c = with_eps(base);
    c.values = values;
    for (const DType dtype : kDTypes) {
      if (values != Values::kWide || dtype != DType::kF16) table.add(with_dtype(c, dtype));
    }
  }
  for (const double mean : {1.0, 100.0, 1e4, 1e6}) {
    Case c = base;
    c.mean_over_std = mean;
    for (const DType dtype : kDTypes) {
      if (dtype == DType::kF32 || mean <= 100) table.add(with_dtype(c, dtype));
    }
  }
  for (const double scale : {1e-38, 1e-30, 1e-10, 1e10, 1e20, 1e30}) {
    Case c = base;
    c.scale = scale;
    table.add(c);
    table.add(with_dtype(c, DType::kBF16));
  }
}

}  // namespace

std::vector<Case> forward_cases(Op op) {
  Table table(op, /*forward=*/true);
  if (op == Op::kBatchNorm) {
    add_plane_shapes(table);
    add_plane_outputs(table);
    add_layouts(table, with_eps(table.base({4, 6, 20})));
    add_data(table, table.base({7, 12, 30}));
    add_data(table, table.base({150, 12, 1}));
    table.add_exact(table.base({4, 6, 16}));
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0, 3, 5}, {2, 0, 5}, {2, 3, 0}}) {
      table.add_next_form(with_eps(table.base(shape)));
    }
    return table.take();
  }
  add_row_shapes(table);
  add_row_outputs(table);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{70, 33}, {3, 5, 17}, {2, 3, 4, 64}}) {
    Case c = with_eps(table.base(shape));
    c.has_residual = c.want_h = true;
    add_layouts(table, c);
    c.normalized_axes = 2;
    add_layouts(table, c);
  }
  add_data(table, table.base({37, 50}));
  add_data(table, table.base({3, 1500}));
  for (const int64_t cols : {2, 64, 1024}) table.add_exact(table.base({5, cols}));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 8}, {3, 0, 8}}) {
    table.add_next_form(with_eps(table.base(shape)));
  }
  return table.take();
}

}  // namespace normgrad::reference
