// The case table of BatchNorm.
#include "reference/tables.hpp"

namespace normgrad::reference {
namespace {

// Planes (N, C, L) and, with L > 1, the same channels-last.
void add_both_layouts(Table& table, Case c) {
  table.add_next_form(c);
  if (c.shape[2] == 1) return;
  c.layout = Layout::kChannelsLast;
  table.add_next_form(c);
}

void add_shapes(Table& table) {
  for (int64_t width : {1, 4, 8, 16, 32, 64, 1024}) {
    for (int64_t length : {width - 1, width, width + 1}) {
      if (length > 0) add_both_layouts(table, table.base({4, 3, length}));
    }
  }
  for (int64_t length : {49, 3136, 8191, 8193, 16385}) {
    add_both_layouts(table, table.base({2, 3, length}));
  }
  for (int64_t width : {1, 8, 16, 64, 256}) {
    for (int64_t channels : {width - 1, width, width + 1}) {
      if (channels == 0) continue;
      add_both_layouts(table, table.base({33, channels, 1}));
      add_both_layouts(table, table.base({3, channels, 6}));
    }
  }
  for (int64_t bound : {32, 64, 1024, 2048}) {
    for (int64_t samples : {bound - 1, bound, bound + 1}) {
      add_both_layouts(table, table.base({samples, 3, 1}));
      add_both_layouts(table, table.base({samples, 2, 5}));
    }
  }
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 1, 1},
                                            {1, 5, 1},
                                            {1, 64, 49},
                                            {2, 257, 49},
                                            {1, 2, 70000},
                                            {20000, 2, 1},
                                            {70001, 1, 1},
                                            {10000, 3, 4},
                                            {8, 64, 196}}) {
    Case c = table.base(shape);
    add_both_layouts(table, c);
    c.eps = 1e-5;
    c.frozen = true;
    add_both_layouts(table, c);
  }
}

void add_layouts(Table& table) {
  for (Layout layout : {Layout::kPadded, Layout::kMixed, Layout::kNegative, Layout::kBroadcastDy,
                        Layout::kBroadcastInputs, Layout::kPermuted, Layout::kChannelsLast,
                        Layout::kStridedParameters}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{3, 5, 17}, {40, 2, 64}, {7, 33, 1}}) {
      if (shape[2] == 1 && layout == Layout::kChannelsLast) continue;
      Case c = table.base(shape);
      c.layout = layout;
      table.add_next_form(c);
      c.frozen = true;
      if (shape[2] == 17) table.add_next_form(c);
    }
  }
  for (InPlace in_place : {InPlace::kDy, InPlace::kX}) {
    for (Layout layout : {Layout::kContiguous, Layout::kPadded, Layout::kMixed, Layout::kNegative,
                          Layout::kPermuted, Layout::kChannelsLast}) {
      Case c = table.base({35, 4, 31});
      c.layout = layout;
      c.in_place = in_place;
      table.add_next_form(c);
    }
    Case c = table.base({2, 3, 20000});
    c.in_place = in_place;
    table.add_next_form(c);
  }
}

// Channels too few for a vector, of which the kernel folds several positions into one row: whole
// rows within a sample, rows over the end of one and the incomplete last one. And the same along
// the length, where vectors reach from one channel into the next.
void add_few_channels(Table& table) {
  for (int64_t channels : {1, 2, 3, 5, 7, 15, 31, 33, 63}) {
    Case planes = table.base({3, channels, 67});
    table.add_next_form(planes);
    planes.values = Values::kZeroDenominators;
    table.add_next_form(planes);
    Case last = planes;
    last.in_place = InPlace::kX;
    last.offset = 7;
    for (Layout layout : {Layout::kChannelsLast, Layout::kChannelsLastGaps}) {
      last.layout = layout;
      table.add_next_form(last);
    }
    last = table.base({3, channels, 67});
    for (Layout layout : {Layout::kChannelsLast, Layout::kChannelsLastGaps}) {
      last.layout = layout;
      table.add_next_form(last);
    }
    last = table.base({3, 67, channels});
    last.channel_axis = 2;
    for (Layout layout : {Layout::kPadded, Layout::kMixed, Layout::kNegative}) {
      last.layout = layout;
      table.add_next_form(last);
    }
  }
}

// Other ranks and channel axes, and what reaches the kernel through workspace.
void add_detours(Table& table) {
  struct Form {
    std::vector<int64_t> shape;
    int channel_axis;
  };
  for (const Form& form : {Form{{9, 5}, 1},
                           {{9, 5}, 0},
                           {{3, 4, 7}, 2},
                           {{4, 3, 5, 7}, 1},
                           {{2, 3, 5, 4}, 3},
                           {{2, 3, 2, 3, 5}, 1},
                           {{1, 2, 1, 3, 2, 1, 2, 5}, 3},
                           {{60, 70, 9}, 1}}) {
    for (Layout layout : {Layout::kContiguous, Layout::kPadded, Layout::kStrided,
                          Layout::kTransposed, Layout::kScattered}) {
      Case c = table.base(form.shape);
      c.channel_axis = form.channel_axis;
      c.layout = layout;
      table.add_next_form(c);
      c.in_place = InPlace::kX;
      table.add_next_form(c);
      c.frozen = true;
      table.add_next_form(c);
    }
  }
  for (Layout layout : {Layout::kContiguous, Layout::kChannelsLast, Layout::kScattered}) {
    Case c = table.base({4, 6, 10});
    c.layout = layout;
    table.add_dx_dtypes(c);
  }
}

void add_options(Table& table) {
  for (bool frozen : {false, true}) {
    for (bool channels_last : {false, true}) {
      Case c = table.base({6, 5, 14});
      c.frozen = frozen;
      c.layout = channels_last ? Layout::kChannelsLast : Layout::kContiguous;
      table.add_masks(c);
      table.add_offsets(c);
      c.has_gamma = false;
      table.add_forms(c);
    }
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0, 3, 4}, {2, 0, 4}, {2, 3, 0}, {0, 0, 0}}) {
      Case empty = table.base(shape);
      empty.frozen = frozen;
      table.add_next_form(empty);
    }
  }
  table.add_dtype_mixes(table.base({9, 4, 10}));
  table.add_eps(table.base({9, 4, 10}));
}

void add_data(Table& table) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1, 3, 8}, {32, 5, 1}, {4, 33, 16}, {64, 3, 4}}) {
    Case c = table.base(shape);
    table.add_exact(c);
    c.frozen = true;
    table.add_exact(c);
    c.layout = Layout::kChannelsLast;
    c.frozen = false;
    if (shape[2] > 1) table.add_exact(c);
  }
  Case c = table.base({5, 6, 38});
  table.add_values(c);
  table.add_scales(c);
  c.frozen = true;
  table.add_values(c);
  c.frozen = false;
  c.layout = Layout::kChannelsLast;
  table.add_values(c);
  table.add_scales(c);
  // dy * (x - mean) would vanish in float32, dy * x_hat does not.
  Case small = with_dtype(table.base({5, 6, 38}), DType::kBF16);
  small.statistics = Statistics::kMeanRstd;
  small.scale = 1e-29;
  small.dy_scale = 1e-16;
  table.add(small);
  small.layout = Layout::kChannelsLast;
  table.add(small);
  Case many = table.base({40, 3, 500});
  many.values = Values::kSameSign;
  table.add_forms(many);
  many.layout = Layout::kChannelsLast;
  table.add_forms(many);
  // One running fp32 sum of these is more than 100 roundings wrong.
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{200000, 3, 1}, {2, 3, 100000}}) {
    Case growing = table.base(shape);
    growing.values = Values::kSameSign;
    table.add(growing);
    growing.layout = Layout::kChannelsLast;
    if (shape[2] > 1) table.add(growing);
  }
  table.add_means(table.base({8, 4, 64}));
  table.add_means(table.base({300, 5, 1}));
}

// Up to 10^8 elements.
void add_long(Table& table) {
  add_both_layouts(table, table.base({10000000, 3, 1}));
  add_both_layouts(table, table.base({1000000, 2, 10}));
  table.add(table.base({1, 2, 40000000}));
  table.add(with_dtype(table.base({256, 64, 3136}), DType::kBF16));
  Case many = table.base({10000000, 3, 2});
  many.values = Values::kSameSign;
  table.add(many);
  many.layout = Layout::kChannelsLast;
  table.add(many);
}

}  // namespace

std::vector<Case> channels_cases(bool long_mode) {
  Table table(Op::kBatchNorm);
  add_shapes(table);
  add_layouts(table);
  add_few_channels(table);
  add_detours(table);
  add_options(table);
  add_data(table);
  if (long_mode) add_long(table);
  return table.take();
}

}  // namespace normgrad::reference
