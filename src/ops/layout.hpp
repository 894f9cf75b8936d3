// Where the elements of a tensor lie: which bytes it covers, and whether two tensors share any.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "normgrad/status.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

inline constexpr int kMaxRank = 8;

// A tensor's bytes: runs of `run` bytes at low + i0 * stride0 + i1 * stride1 + ... from its
// pointer. Strides are positive and descend; axes of extent 1 and broadcast axes are gone, and
// whatever is contiguous is part of the run.
struct Extent {
  struct Axis {
    int64_t extent, stride;
  };
  int64_t elements = 0;
  int64_t low = 0, high = 0;  // all bytes lie in [low, high) relative to the pointer
  int64_t run = 0;
  int rank = 0;
  std::array<Axis, kMaxRank> axes{};
};

// "(8, 512)"
std::string to_string(const std::vector<int64_t>& values);

// A tensor as a kernel sees it: as Tensor, with strides always there and nothing allocated.
struct View {
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> extents{};
  std::array<int64_t, kMaxRank> strides{};
};

// The view of row-major elements without gaps.
View contiguous_view(DType dtype, std::span<const int64_t> shape);

// The tensor as it is; its strides are filled in.
View view_of(const Tensor& tensor);

// Shows the elements of a view, in row-major order, in another shape of as many elements. False
// where no strides can do that.
bool reshape(const View& from, std::span<const int64_t> shape, View& to);

// Fills in contiguous strides, then checks rank and extents (kBadShape), and strides: their number,
// that no offset overflows, and that no element of an output has the place of another
// (kBadStrides).
Status check_shape(const char* name, Tensor& tensor);
Status check_strides(const char* name, const Tensor& tensor, bool output, Extent& extent);

// Whether any byte belongs to both. Exact for the layouts people use; where deciding would take
// long (strides without any common structure), the answer is true.
bool overlap(const Extent& a, const void* a_data, const Extent& b, const void* b_data);

}  // namespace normgrad
