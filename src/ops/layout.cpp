#include "ops/layout.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace normgrad {
namespace {

constexpr int64_t kMax = std::numeric_limits<ptrdiff_t>::max();

// Is there a choice of integers d_k in [low_k, high_k], with sum of d_k * stride_k in (above,
// below)? Walks the strides from the largest down; each one leaves only the few d_k that the
// smaller strides can still correct, so nested layouts take one step per axis.
class StrideSum {
 public:
  void add(int64_t stride, int64_t low, int64_t high) { terms_[count_++] = {stride, low, high}; }

  // The same where only the sum matters: a stride that is there already widens its range.
  void merge(int64_t stride, int64_t low, int64_t high) {
    for (int k = 0; k < count_; ++k) {
      if (terms_[k].stride == stride) {
        terms_[k].low += low;
        terms_[k].high += high;
        return;
      }
    }
    add(stride, low, high);
  }

  // `nonzero`: the choice of all zeros does not count.
  bool reaches(__int128 above, __int128 below, bool nonzero) {
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    budget_ = 4096;
    return search(0, above, below, nonzero);
  }

 private:
  struct Term {
    int64_t stride;
    __int128 low, high;
  };

  static __int128 floor_div(__int128 a, __int128 b) { return a / b - (a % b != 0 && a < 0); }

  bool search(int k, __int128 above, __int128 below, bool nonzero) {
    if (k == count_) return above < 0 && 0 < below && !nonzero;
    if (--budget_ < 0) return true;
    __int128 rest_low = 0, rest_high = 0;
    for (int i = k + 1; i < count_; ++i) {
      rest_low += terms_[i].low * terms_[i].stride;
      rest_high += terms_[i].high * terms_[i].stride;
    }
    const Term& term = terms_[k];
    const __int128 first = std::max(term.low, floor_div(above - rest_high, term.stride) + 1);
    const __int128 last = std::min(term.high, floor_div(below - rest_low - 1, term.stride));
    for (__int128 d = first; d <= last; ++d) {
      if (search(k + 1, above - d * term.stride, below - d * term.stride, nonzero && d == 0)) {
        return true;
      }
    }
    return false;
  }

  std::array<Term, 2 * kMaxRank> terms_;
  int count_ = 0;
  int budget_ = 0;
};

Status bad_shape(const char* name, std::string what) {
  return {Code::kBadShape, std::string(name) + ": " + std::move(what)};
}

Status bad_strides(const char* name, std::string what) {
  return {Code::kBadStrides, std::string(name) + ": " + std::move(what)};
}

}  // namespace

std::string to_string(const std::vector<int64_t>& values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + ")";
}

View contiguous_view(DType dtype, std::span<const int64_t> shape) {
  View view{dtype, static_cast<int>(shape.size())};
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    view.extents[axis] = shape[axis];
    view.strides[axis] = stride;
    stride *= std::max<int64_t>(shape[axis], 1);
  }
  return view;
}

View view_of(const Tensor& tensor) {
  View view{tensor.dtype, static_cast<int>(tensor.shape.size())};
  std::copy(tensor.shape.begin(), tensor.shape.end(), view.extents.begin());
  std::copy(tensor.strides.begin(), tensor.strides.end(), view.strides.begin());
  return view;
}

bool reshape(const View& from, std::span<const int64_t> shape, View& to) {
  to = contiguous_view(from.dtype, shape);
  // The view with the fewest axes, innermost first: axes without a gap between them are one.
  Extent::Axis runs[kMaxRank];
  int count = 0;
  for (int axis = from.rank; axis-- > 0;) {
    const int64_t n = from.extents[axis], stride = from.strides[axis];
    if (n == 0) return true;
    if (n == 1) continue;
    if (count > 0 && static_cast<__int128>(runs[count - 1].stride) * runs[count - 1].extent ==
                         static_cast<__int128>(stride)) {
      runs[count - 1].extent *= n;
    } else {
      runs[count++] = {n, stride};
    }
  }
  // Each axis of the shape takes its share of one run.
  int run = 0;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 1) continue;
    if (runs[run].extent % shape[axis] != 0) return false;
    to.strides[axis] = runs[run].stride;
    runs[run].extent /= shape[axis];
    runs[run].stride *= shape[axis];
    if (runs[run].extent == 1) ++run;
  }
  return true;
}

Status check_shape(const char* name, Tensor& tensor) {
  if (tensor.shape.size() > kMaxRank) {
    return bad_shape(name, "expected at most " + std::to_string(kMaxRank) + " axes, got " +
                               std::to_string(tensor.shape.size()));
  }
  // Zero extents must not hide an overflow of the others: strides are made from them.
  int64_t bytes = static_cast<int64_t>(size_of(tensor.dtype));
  for (const int64_t extent : tensor.shape) {
    if (extent < 0) return bad_shape(name, "negative extent in shape " + to_string(tensor.shape));
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes)) {
      return bad_shape(name, "shape " + to_string(tensor.shape) + " has more than 2^63 - 1 bytes");
    }
  }
  if (tensor.strides.empty()) {
    const View view = contiguous_view(tensor.dtype, tensor.shape);
    tensor.strides.assign(view.strides.begin(), view.strides.begin() + view.rank);
  }
  return {};
}

Status check_strides(const char* name, const Tensor& tensor, bool output, Extent& extent) {
  extent = {};
  if (tensor.strides.size() != tensor.shape.size()) {
    return bad_strides(name, "expected " + std::to_string(tensor.shape.size()) + " strides, got " +
                                 std::to_string(tensor.strides.size()));
  }
  extent.run = static_cast<int64_t>(size_of(tensor.dtype));
  extent.elements = 1;
  for (const int64_t n : tensor.shape) extent.elements *= n;
  if (extent.elements == 0) return {};

  __int128 low = 0, high = extent.run;
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const int64_t n = tensor.shape[axis];
    if (n == 1) continue;
    const __int128 stride = static_cast<__int128>(tensor.strides[axis]) * extent.run;
    (stride < 0 ? low : high) += stride * (n - 1);
    if (low < -kMax || high > kMax) {
      return bad_strides(
          name, "strides " + to_string(tensor.strides) + " reach further than 2^63 - 1 bytes");
    }
    if (stride == 0) {
      if (!output) continue;
      return bad_strides(
          name, "an output must not have stride 0 on an axis of extent " + std::to_string(n));
    }
    extent.axes[extent.rank++] = {n, static_cast<int64_t>(stride < 0 ? -stride : stride)};
  }
  extent.low = static_cast<int64_t>(low);
  extent.high = static_cast<int64_t>(high);

  std::sort(extent.axes.begin(), extent.axes.begin() + extent.rank,
            [](const Extent::Axis& a, const Extent::Axis& b) { return a.stride > b.stride; });
  if (output) {
    StrideSum distance;
    for (int k = 0; k < extent.rank; ++k) {
      distance.add(extent.axes[k].stride, 1 - extent.axes[k].extent, extent.axes[k].extent - 1);
    }
    if (distance.reaches(-extent.run, extent.run, /*nonzero=*/true)) {
      return bad_strides(name, "elements of an output overlap with shape " +
                                   to_string(tensor.shape) + " and strides " +
                                   to_string(tensor.strides));
    }
  }
  while (extent.rank > 0 && extent.axes[extent.rank - 1].stride == extent.run) {
    extent.run *= extent.axes[--extent.rank].extent;
  }
  return {};
}

bool overlap(const Extent& a, const void* a_data, const Extent& b, const void* b_data) {
  if (a.elements == 0 || b.elements == 0) return false;
  const auto a_base = static_cast<__int128>(reinterpret_cast<uintptr_t>(a_data));
  const auto b_base = static_cast<__int128>(reinterpret_cast<uintptr_t>(b_data));
  if (a_base + a.high <= b_base + b.low || b_base + b.high <= a_base + a.low) return false;
  // Runs at p and q share a byte if q - p lies in (-b.run, a.run).
  StrideSum distance;
  for (int k = 0; k < a.rank; ++k) distance.merge(a.axes[k].stride, 1 - a.axes[k].extent, 0);
  for (int k = 0; k < b.rank; ++k) distance.merge(b.axes[k].stride, 0, b.axes[k].extent - 1);
  const __int128 start = (b_base + b.low) - (a_base + a.low);
  return distance.reaches(-b.run - start, a.run - start, /*nonzero=*/false);
}

}  // namespace normgrad
