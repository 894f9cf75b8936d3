// The parts that the case tables share.
#include "reference/cases.hpp"

#include <cmath>
#include <cstdio>
#include <set>

#include "reference/elements.hpp"
#include "reference/tables.hpp"

namespace normgrad::reference {
namespace {

const char* name_of(Statistics statistics) {
  static const char* const kNames[] = {"x_hat_std", "mean_rstd", "mean_variance"};
  return kNames[static_cast<int>(statistics)];
}

const char* name_of(Values values) {
  static const char* const kNames[] = {
      "random",  "same_sign",        "cancelling",        "wide",       "exact",
      "zero_dy", "zero_denominator", "negative_variance", "non_finite", "outliers"};
  return kNames[static_cast<int>(values)];
}

const char* name_of(Layout layout) {
  static const char* const kNames[] = {
      "contiguous",       "padded",     "mixed_strides", "negative_strides",   "broadcast_dy",
      "broadcast_inputs", "permuted",   "channels_last", "channels_last_gaps", "strided_parameters",
      "strided",          "transposed", "scattered"};
  return kNames[static_cast<int>(layout)];
}

std::string number(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// "layer_norm 5x33 f32 mean_rstd" and whatever is not as usual.
std::string describe(const Case& c) {
  std::string name = reference::name_of(c.op);
  if (c.forward) name += " forward";
  static const char* const kSteps[] = {"", " reduce", " elementwise"};
  name += kSteps[static_cast<int>(c.step)];
  for (size_t axis = 0; axis < c.shape.size(); ++axis) {
    name += (axis == 0 ? " " : "x") + std::to_string(c.shape[axis]);
  }
  name += std::string(" ") + normgrad::name_of(c.data);
  if (c.op != Op::kRmsNorm) name += std::string(" ") + name_of(c.statistics);
  if (c.op == Op::kRmsNorm && c.has_spread()) name += " rstd";
  if (c.dx_dtype) name += std::string(" dx=") + normgrad::name_of(*c.dx_dtype);
  if (c.normalized_axes != 1) name += " normalized_axes=" + std::to_string(c.normalized_axes);
  if (c.channel_axis != 1) name += " channel_axis=" + std::to_string(c.channel_axis);
  if (c.has_gamma && c.gamma != c.data) name += std::string(" gamma=") + normgrad::name_of(c.gamma);
  if (c.has_spread() && c.statistics_dtype != c.data) {
    name += std::string(" statistics=") + normgrad::name_of(c.statistics_dtype);
  }
  if (c.params != c.data) name += std::string(" params=") + normgrad::name_of(c.params);
  if (c.keep_axis) name += " keep_axis";
  if (!c.has_gamma) name += " no_gamma";
  if (c.gamma_offset != 0) name += number(" gamma_offset=%g", c.gamma_offset);
  if (c.has_dh) name += " dh";
  if (c.accumulate) name += " accumulate";
  if (!c.has_beta) name += " no_beta";
  if (c.has_residual) name += " residual";
  if (!c.has_running) name += " no_running";
  if (!c.want_y) name += " no_y";
  if (c.want_h) name += " h";
  if (c.want_x_hat) name += " x_hat";
  if (!c.want_mean) name += " no_mean";
  if (!c.want_spread) name += " no_spread";
  if (!c.want_dx) name += " no_dx";
  if (!c.want_dgamma) name += " no_dgamma";
  if (!c.want_dbeta && c.op != Op::kRmsNorm) name += " no_dbeta";
  if (c.step != Step::kNone) name += std::string(" sums=") + normgrad::name_of(c.sums);
  if (c.step == Step::kElementwise) {
    name += std::string(" counts=") + normgrad::name_of(c.count_dtype);
    for (const int64_t each : c.counts) name += "," + std::to_string(each);
    if (c.whole_sums) name += " whole_sums";
  }
  if (c.eps != 0) name += number(" eps=%g", c.eps);
  if (c.frozen) name += " frozen";
  if (c.mean_over_std != 0) name += number(" mean=%g", c.mean_over_std);
  if (c.scale != 1) name += number(" scale=%g", c.scale);
  if (c.dy_scale != 1) name += number(" dy_scale=%g", c.dy_scale);
  if (c.values != Values::kRandom) name += std::string(" ") + name_of(c.values);
  if (c.layout != Layout::kContiguous) name += std::string(" ") + name_of(c.layout);
  static const char* const kPlaces[] = {"", "dy", "x", "dh", "residual", "x,residual"};
  if (c.in_place != InPlace::kNone) {
    name += std::string(" in_place=") + kPlaces[static_cast<int>(c.in_place)];
  }
  if (c.offset != 0) name += " offset=" + std::to_string(c.offset);
  return name;
}

// The statistics of kBroadcastInputs are those of one row for many, and a tiny or huge x takes the
// variance out of the range of fp32: neither is what the smaller gates are about.
bool is_random(const Case& c) {
  return c.values == Values::kRandom && c.layout != Layout::kBroadcastInputs && c.scale == 1 &&
         c.dy_scale == 1;
}

}  // namespace

const char* name_of(Op op) {
  static const char* const kNames[] = {"layer_norm", "rms_norm", "batch_norm"};
  return kNames[static_cast<int>(op)];
}

int64_t Case::groups() const {
  if (op == Op::kBatchNorm) return shape[channel_axis];
  return count({data, {shape.begin(), shape.end() - normalized_axes}});
}

int64_t Case::line() const {
  if (op != Op::kBatchNorm) return count({data, parameters()});
  return count({data, {shape.begin() + channel_axis + 1, shape.end()}});
}

std::vector<int64_t> Case::parameters() const {
  if (op == Op::kBatchNorm) return {shape[channel_axis]};
  return {shape.end() - normalized_axes, shape.end()};
}

std::vector<Case> cases(Op op, bool long_mode) {
  return op == Op::kBatchNorm ? channels_cases(long_mode) : rows_cases(op, long_mode);
}

Case with_dtype(Case c, DType dtype) {
  c.data = c.gamma = c.statistics_dtype = c.params = dtype;
  return c;
}

const std::vector<Statistics>& Table::forms() const {
  static const std::vector<Statistics> kForms[] = {
      {Statistics::kXHatStd, Statistics::kMeanRstd, Statistics::kMeanVariance},
      {Statistics::kMeanVariance, Statistics::kMeanRstd},
      {Statistics::kMeanVariance, Statistics::kMeanRstd}};
  return kForms[static_cast<int>(op_)];
}

Case Table::base(std::vector<int64_t> shape) const {
  Case c;
  c.op = op_;
  c.forward = forward_;
  c.shape = std::move(shape);
  c.statistics = forms().front();
  return c;
}

void Table::add_dtypes(const Case& c) {
  for (DType dtype : kDTypes) add(with_dtype(c, dtype));
}

void Table::add_forms(Case c) {
  for (Statistics form : forms()) {
    c.statistics = form;
    add_dtypes(c);
  }
}

void Table::add_next_form(Case c) {
  for (DType dtype : kDTypes) {
    c.statistics = forms()[turn_++ % forms().size()];
    add(with_dtype(c, dtype));
  }
  ++turn_;  // so that a type does not keep its form when there are three of each
}

void Table::add_masks(const Case& c) {
  for (int mask = 0; mask < (op_ == Op::kRmsNorm ? 4 : 8); ++mask) {
    Case masked = c;
    masked.want_dx = mask & 1;
    masked.want_dgamma = mask & 2;
    masked.want_dbeta = mask & 4;
    add_next_form(masked);
  }
}

void Table::add_dtype_mixes(const Case& c) {
  for (DType data : kDTypes) {
    for (DType gamma : kDTypes) {
      for (DType params : kDTypes) {
        for (DType statistics_dtype : kDTypes) {
          Case mixed = c;
          mixed.data = data;
          mixed.gamma = gamma;
          mixed.params = params;
          mixed.statistics_dtype = statistics_dtype;
          mixed.statistics = forms()[turn_++ % forms().size()];
          add(mixed);
        }
        ++turn_;
      }
    }
  }
}

void Table::add_dx_dtypes(const Case& c) {
  for (DType data : kDTypes) {
    for (DType dx : kDTypes) {
      if (dx == data) continue;
      Case other = with_dtype(c, data);
      other.dx_dtype = dx;
      for (Statistics form : forms()) {
        other.statistics = form;
        add(other);
      }
    }
  }
}

void Table::add_offsets(const Case& c) {
  for (int offset : {1, 3, 7, 31, 63}) {
    Case shifted = c;
    shifted.offset = offset;
    add_next_form(shifted);
  }
}

void Table::add_eps(const Case& c) {
  for (double eps : {0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3, 1.0}) {
    for (Values values : {Values::kRandom, Values::kZeroDenominators}) {
      Case other = c;
      other.eps = eps;
      other.values = values;
      other.statistics = Statistics::kMeanVariance;
      add_dtypes(other);
    }
  }
}

void Table::add_values(const Case& c) {
  for (Values values : {Values::kSameSign, Values::kCancelling, Values::kWide, Values::kZeroDy,
                        Values::kZeroDenominators, Values::kNonFinite}) {
    for (Statistics form : forms()) {
      for (DType dtype : kDTypes) {
        if (values == Values::kWide && dtype == DType::kF16) continue;
        Case other = with_dtype(c, dtype);
        other.statistics = form;
        other.values = values;
        add(other);
      }
    }
  }
  if (op_ == Op::kRmsNorm) return;
  Case negative = c;
  negative.statistics = Statistics::kMeanVariance;
  negative.values = Values::kNegativeVariance;
  add_dtypes(negative);
}

void Table::add_exact(const Case& c) {
  Case exact = c;
  exact.values = Values::kExact;
  add_forms(exact);
}

void Table::add_scales(const Case& c) {
  const auto add_scaled = [&](DType dtype, double scale, double dy_scale, double gamma_scale = 1) {
    for (Statistics form : forms()) {
      Case scaled = with_dtype(c, dtype);
      scaled.statistics = form;
      scaled.scale = scale;
      scaled.dy_scale = dy_scale;
      scaled.gamma_scale = gamma_scale;
      add(scaled);
    }
  };
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (double scale : {1e-38, 1e-30, 1e-20, 1e-10, 1e10, 1e20, 1e30}) add_scaled(dtype, scale, 1);
    for (double scale : {1e-30, 1e30}) add_scaled(dtype, 1, scale);
    // g is moderate where dy / std is not, and the other way round.
    for (double scale : {1e-25, 1e25}) add_scaled(dtype, 1 / std::sqrt(scale), scale, 1 / scale);
    add_scaled(dtype, 1, 1e20, 1e20);
  }
  for (double scale : {1e-6, 1e-3, 1e3}) add_scaled(DType::kF16, scale, 1);
  for (double scale : {1e-6, 1e3}) add_scaled(DType::kF16, 1, scale);
}

void Table::add_means(const Case& c) {
  for (double mean : {1.0, 10.0, 100.0, 1e3, 1e4, 1e5}) {
    for (Statistics form : forms()) {
      for (DType dtype : kDTypes) {
        if (dtype != DType::kF32 && mean > 100) continue;  // 16-bit x would be constant, or Inf
        Case shifted = with_dtype(c, dtype);
        shifted.statistics = form;
        shifted.mean_over_std = mean;
        add(shifted);
      }
    }
  }
}

std::vector<Case> Table::take() {
  std::vector<Case> named;
  std::set<std::string> seen;
  for (Case& c : cases_) {
    if (forward_ && op_ == Op::kRmsNorm) c.statistics = Statistics::kMeanRstd;  // all it saves
    c.name = describe(c);
    c.random = is_random(c);
    if (seen.insert(c.name).second) named.push_back(std::move(c));
  }
  cases_.clear();
  return named;
}

}  // namespace normgrad::reference
