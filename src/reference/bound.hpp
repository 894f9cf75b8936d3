// The check of a computed tensor against the oracle, element by element. With u = 2^-24 and S the
// scale that the oracle gives, an output of type o passes if
//
//   |out - ref| <= u_o |ref| + eta_o + K u S + rows 2^-52 S
//
// u_o is the unit roundoff of the type and eta_o half its smallest subnormal: one rounding to the
// output type, and K roundings to fp32 on the way. The last term is that of a float64 sum.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "normgrad/tensor.hpp"

namespace normgrad::reference {

// K: how many fp32 roundings an element may be wrong.
struct Gates {
  double dx, dgamma, dbeta;
};
// Proven for any data.
inline constexpr Gates kProven = {12, 35, 31};
inline constexpr Gates kProvenFrozen = {3, 35, 31};
// Reached on random data, where roundings cancel.
inline constexpr Gates kRandomLayerNorm = {4, 3, 2};
inline constexpr Gates kRandomRmsNorm = {6, 3, 2};
inline constexpr Gates kRandomBatchNorm = {4, 3, 2};
inline constexpr Gates kRandomFrozen = {3, 3, 2};

// Of layers.
struct ForwardGates {
  double y, mean, spread;  // y also for x_hat; mean and spread also for running statistics
};
inline constexpr ForwardGates kProvenForward = {8, 2, 8};
inline constexpr ForwardGates kRandomForward = {4, 1, 2};

struct Verdict {
  int64_t elements = 0;
  int64_t failures = 0;
  double worst_k = 0;         // the smallest K that finite elements would pass with
  int64_t nearest = 0;        // elements that equal the oracle rounded to nearest
  std::string first_failure;  // "dx[12]: expected 1.5, got 1.25, allowed error 3e-08"
};

// NaN passes exactly where the oracle is NaN, Inf where it lies beyond the largest number of the
// type by half a unit or more; where the interval of ref straddles that threshold, both pass.
// summed_rows is the number of terms of a sum over rows, 0 for dx.
Verdict compare(const char* name, const Tensor& tensor, const void* data,
                std::span<const double> ref, std::span<const double> scale, double k,
                int64_t summed_rows);

}  // namespace normgrad::reference
