// Overlap and reshaping of strided tensors, against a comparison element by element.
#include "ops/layout.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

namespace normgrad {
namespace {

// The offsets of all elements, in elements.
std::vector<int64_t> offsets_of(const Tensor& tensor) {
  std::vector<int64_t> offsets = {0};
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
        next.push_back(offset + i * tensor.strides[axis]);
      }
    }
    offsets = next;
  }
  return offsets;
}

Tensor any_tensor() {
  const auto rank = *rc::gen::inRange<size_t>(0, 4);
  Tensor tensor{*rc::gen::element(DType::kF32, DType::kBF16), {}, {}};
  for (size_t axis = 0; axis < rank; ++axis) {
    tensor.shape.push_back(*rc::gen::inRange<int64_t>(0, 5));
    tensor.strides.push_back(*rc::gen::inRange<int64_t>(-12, 13));
  }
  return tensor;
}

Extent extent_of(const Tensor& tensor) {
  Extent extent;
  const Status status = check_strides("t", tensor, /*output=*/false, extent);
  RC_ASSERT(status.ok());
  return extent;
}

RC_GTEST_PROP(Layout, OverlapIsExact, ()) {
  const Tensor a = any_tensor(), b = any_tensor();
  const int64_t shift = *rc::gen::inRange<int64_t>(-40, 41);  // of b from a, in bytes
  std::set<int64_t> bytes;
  const auto a_size = static_cast<int64_t>(size_of(a.dtype));
  const auto b_size = static_cast<int64_t>(size_of(b.dtype));
  for (const int64_t offset : offsets_of(a)) {
    for (int64_t k = 0; k < a_size; ++k) bytes.insert(offset * a_size + k);
  }
  bool expected = false;
  for (const int64_t offset : offsets_of(b)) {
    for (int64_t k = 0; k < b_size; ++k) {
      expected = expected || bytes.count(shift + offset * b_size + k) > 0;
    }
  }
  const char* base = reinterpret_cast<const char*>(uintptr_t{1} << 20);
  RC_ASSERT(overlap(extent_of(a), base, extent_of(b), base + shift) == expected);
  RC_ASSERT(overlap(extent_of(b), base + shift, extent_of(a), base) == expected);
}

RC_GTEST_PROP(Layout, OutputsThatOverlapThemselvesAreRefused, ()) {
  const Tensor tensor = any_tensor();
  const std::vector<int64_t> offsets = offsets_of(tensor);
  const bool expected = std::set<int64_t>(offsets.begin(), offsets.end()).size() < offsets.size();
  Extent extent;
  const Status status = check_strides("t", tensor, /*output=*/true, extent);
  RC_ASSERT(status.ok() == !expected);
  if (expected) RC_ASSERT(status.code() == Code::kBadStrides);
}

// Offsets in row-major order are the same in the new shape; where reshape says that no strides can
// do that, none do.
RC_GTEST_PROP(Layout, ReshapeKeepsEveryElementInItsPlace, ()) {
  const Tensor tensor = any_tensor();
  const std::vector<int64_t> offsets = offsets_of(tensor);
  std::vector<int64_t> shape;
  auto rest = static_cast<int64_t>(offsets.size());
  while (rest > 1 && shape.size() < 5) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= rest; ++d) {
      if (rest % d == 0) divisors.push_back(d);
    }
    shape.push_back(*rc::gen::elementOf(divisors));
    rest /= shape.back();
  }
  shape.push_back(rest);
  View view;
  if (reshape(view_of(tensor), shape, view)) {
    const Tensor seen{view.dtype, shape, {view.strides.begin(), view.strides.begin() + view.rank}};
    RC_ASSERT(offsets_of(seen) == offsets);
    return;
  }
  // With the strides that the first step along each axis takes, some element is elsewhere.
  Tensor guess{tensor.dtype, shape, std::vector<int64_t>(shape.size())};
  size_t step = 1;
  for (size_t axis = shape.size(); axis-- > 0; step *= static_cast<size_t>(shape[axis])) {
    if (shape[axis] > 1) guess.strides[axis] = offsets[step] - offsets[0];
  }
  RC_ASSERT(offsets_of(guess) != offsets);
}

TEST(Layout, RefusesWhatDoesNotFitAPointer) {
  Extent extent;
  Tensor huge{DType::kF32, {int64_t{1} << 31, int64_t{1} << 30}};
  EXPECT_EQ(check_shape("t", huge).code(), Code::kBadShape);
  Tensor hidden{DType::kF32, {0, int64_t{1} << 31, int64_t{1} << 31}};
  EXPECT_EQ(check_shape("t", hidden).code(), Code::kBadShape);
  Tensor negative{DType::kF32, {4, -1}};
  EXPECT_EQ(check_shape("t", negative).code(), Code::kBadShape);
  Tensor ranks{DType::kF32, std::vector<int64_t>(9, 1)};
  EXPECT_EQ(check_shape("t", ranks).code(), Code::kBadShape);
  const Tensor far{DType::kF32, {3, 2}, {int64_t{1} << 61, 1}};
  EXPECT_EQ(check_strides("t", far, false, extent).code(), Code::kBadStrides);
  const Tensor count{DType::kF32, {3, 2}, {2}};
  EXPECT_EQ(check_strides("t", count, false, extent).code(), Code::kBadStrides);
}

}  // namespace
}  // namespace normgrad
