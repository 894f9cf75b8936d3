// The case table of LayerNorm and RMSNorm.
#include "reference/tables.hpp"

namespace normgrad::reference {
namespace {

// Rows around the widths of vectors and around the changes of kernel.
void add_shapes(Table& table) {
  for (int64_t width = 1; width <= 1024; width *= 2) {
    for (int64_t cols : {width - 1, width, width + 1}) {
      if (cols > 0) table.add_next_form(table.base({5, cols}));
    }
  }
  for (int64_t width : {4096, 8192, 16384, 65536}) {
    for (int64_t cols : {width - 1, width, width + 1}) table.add_next_form(table.base({2, cols}));
  }
  table.add_next_form(table.base({70, 8300}));  // long rows, and enough of them for blocks
  for (int64_t cols : {1000003, 1048576}) table.add_next_form(table.base({1, cols}));
  for (int64_t bound : {1, 8, 32, 64, 1024, 2048}) {
    for (int64_t rows : {bound - 1, bound, bound + 1}) {
      for (int64_t cols : {8, 40}) {
        if (rows > 0) table.add_next_form(table.base({rows, cols}));
      }
    }
  }
  for (int64_t rows : {65535, 65537}) table.add_next_form(table.base({rows, 3}));
  table.add_forms(table.base({300000, 1}));
  table.add_forms(table.base({257, 512}));
  table.add_next_form(table.base({300, 768}));
  table.add_next_form(table.base({64, 4096}));
}

void add_ranks(Table& table) {
  const std::vector<int64_t> shape = {2, 1, 3, 2, 1, 2, 2, 19};
  for (size_t rank = 1; rank <= shape.size(); ++rank) {
    Case c = table.base({shape.end() - static_cast<std::ptrdiff_t>(rank), shape.end()});
    table.add_next_form(c);
    c.keep_axis = true;
    if (table.op() == Op::kLayerNorm) table.add_next_form(c);
  }
}

void add_layouts(Table& table) {
  for (Layout layout : {Layout::kPadded, Layout::kMixed, Layout::kNegative, Layout::kBroadcastDy,
                        Layout::kBroadcastInputs, Layout::kPermuted, Layout::kStridedParameters}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{70, 33}, {3, 5, 17}, {2, 3, 4, 64}}) {
      Case c = table.base(shape);
      c.layout = layout;
      c.keep_axis = table.op() == Op::kLayerNorm && shape.size() == 3;
      table.add_next_form(c);
    }
  }
  for (InPlace in_place : {InPlace::kDy, InPlace::kX}) {
    for (Layout layout : {Layout::kContiguous, Layout::kPadded, Layout::kMixed, Layout::kNegative,
                          Layout::kPermuted}) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 3, 33}, {70, 1, 24}}) {
        Case c = table.base(shape);
        c.layout = layout;
        c.in_place = in_place;
        table.add_next_form(c);
      }
    }
    Case c = table.base({2, 20000});
    c.in_place = in_place;
    table.add_next_form(c);
    // Rows that are done in float64, element by element.
    c = table.base({37, 50});
    c.in_place = in_place;
    c.values = Values::kZeroDenominators;
    table.add_forms(c);
  }
}

// What reaches the kernel through workspace, and several normalized axes.
void add_detours(Table& table) {
  for (Layout layout : {Layout::kContiguous, Layout::kPadded, Layout::kStrided, Layout::kTransposed,
                        Layout::kScattered}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{70, 33}, {3, 5, 17}, {2, 3, 4, 20}, {130, 100}}) {
      for (int axes = 1; axes <= static_cast<int>(shape.size()); ++axes) {
        Case c = table.base(shape);
        c.layout = layout;
        c.normalized_axes = axes;
        table.add_next_form(c);
        c.keep_axis = table.op() == Op::kLayerNorm && layout != Layout::kScattered;
        c.in_place = axes % 2 == 0 ? InPlace::kDy : InPlace::kX;
        table.add_next_form(c);
      }
    }
    Case wide = table.base({1, 2, 1, 3, 2, 1, 2, 5});
    wide.layout = layout;
    wide.normalized_axes = 4;
    table.add_next_form(wide);
    Case typed = table.base({6, 40});
    typed.layout = layout;
    table.add_dx_dtypes(typed);
  }
  Case empty = table.base({0, 2, 3});
  empty.normalized_axes = 2;
  empty.layout = Layout::kTransposed;
  table.add_next_form(empty);
}

void add_edges(Table& table) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 8}, {3, 0, 8}, {0, 8193}, {4, 0}, {0, 0}, {0}}) {
    table.add_next_form(table.base(shape));
  }
  for (double eps : {1e-12, 1e-5}) {
    Case one = table.base({7, 1});
    one.eps = eps;
    table.add_forms(one);
    one.mean_over_std = 100;
    table.add_forms(one);
  }
  for (int64_t cols : {1, 33, 1024}) {
    Case c = table.base({9, cols});
    c.has_gamma = false;
    table.add_forms(c);
  }
}

void add_data(Table& table) {
  for (int64_t rows : {1, 33, 1000}) {
    for (int64_t cols : {8, 64, 256}) table.add_exact(table.base({rows, cols}));
  }
  table.add_values(table.base({37, 50}));
  Case many = table.base({5000, 8});
  many.values = Values::kSameSign;
  table.add_forms(many);
  many.values = Values::kCancelling;
  table.add_forms(many);
  // One running fp32 sum of these is more than 100 roundings wrong.
  Case growing = table.base({200000, 3});
  growing.values = Values::kSameSign;
  table.add(growing);
  table.add_scales(table.base({12, 100}));
  table.add_means(table.base({64, 8}));
  table.add_means(table.base({64, 768}));
}

// Up to 10^8 elements.
void add_long(Table& table) {
  table.add_forms(table.base({10000000, 1}));
  table.add_next_form(table.base({10000000, 8}));
  table.add(with_dtype(table.base({1000000, 64}), DType::kF16));
  table.add(with_dtype(table.base({100000, 768}), DType::kBF16));
  table.add(table.base({1, 1 << 24}));
  Case many = table.base({10000000, 8});
  many.values = Values::kSameSign;
  table.add(many);
}

}  // namespace

std::vector<Case> rows_cases(Op op, bool long_mode) {
  Table table(op);
  add_shapes(table);
  add_ranks(table);
  add_layouts(table);
  add_detours(table);
  table.add_masks(table.base({7, 33}));
  table.add_masks(table.base({70, 40}));
  table.add_dtype_mixes(table.base({35, 41}));
  table.add_offsets(table.base({5, 33}));
  table.add_offsets(table.base({40, 256}));
  table.add_eps(table.base({10, 48}));
  add_edges(table);
  add_data(table);
  if (long_mode) add_long(table);
  return table.take();
}

}  // namespace normgrad::reference
