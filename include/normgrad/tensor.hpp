// Tensor: the type, shape and strides of an operand. It holds no data: pointers come at execution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace normgrad {

enum class DType {
  kF32,
  kF16,
  kBF16,
  kI32,  // for counts only
  kF64,  // for the sums and moments between the steps of a BatchNorm only
  kI64,  // for counts only
};

constexpr size_t size_of(DType dtype) {
  constexpr size_t kSizes[] = {4, 2, 2, 4, 8, 8};
  return kSizes[static_cast<int>(dtype)];
}
constexpr const char* name_of(DType dtype) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "i32", "f64", "i64"};
  return kNames[static_cast<int>(dtype)];
}

// Any strides will do. Layouts that kernels walk without a detour: rows (the normalized axes of
// LayerNorm and RMSNorm) without gaps, and BatchNorm tensors whose spatial axes, or channels, lie
// side by side. Others pass through workspace on their way.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides = {};  // in elements; empty: contiguous, last axis fastest
};

// How a forward pass left the statistics of a row or channel. `mean` and `spread` are the operands
// that carry them, r is the factor in x_hat = (x - mean) * r.
enum class Statistics {
  kXHatStd,       // x holds x_hat; spread = standard deviation, r = 1 / spread; no mean
  kMeanRstd,      // spread = rstd, r = spread
  kMeanVariance,  // spread = biased variance, r = 1 / sqrt(spread + eps)
};
// A denominator of exactly zero gives r = 0 and x_hat = 0: that row or channel gets dx = 0 (if dy
// is finite) and adds nothing to dgamma. Small positive denominators are never clamped.

}  // namespace normgrad
