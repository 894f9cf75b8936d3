// Mean and variance of a row or channel, in float64.
#pragma once

#include <cmath>

namespace normgrad::cpu {

// The sums of x - pivot and of its square. The pivot is one of the elements: it lies within
// sqrt(count) standard deviations of the mean, so that E[d^2] - E[d]^2 loses log2(count) of 53 bits
// at most.
struct ShiftedSums {
  double pivot = 0;
  double sum = 0, squares = 0;
};

// Of some elements: how many, their mean, and the sum of squared differences from it.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  Moments() = default;
  Moments(double count_, const ShiftedSums& sums)
      : count(count_), mean(sums.pivot + sums.sum / count_) {
    squares = sums.squares - sums.sum * (sums.sum / count);
    if (squares < 0) squares = 0;  // by a rounding; NaN stays
  }

  // Chan's formula: positive terms only. Equal means stay exactly what they are.
  Moments& operator+=(const Moments& other) {
    if (count == 0) return *this = other;
    const double total = count + other.count;
    const double delta = other.mean - mean;
    squares += other.squares + delta * delta * (count * (other.count / total));
    mean = std::isfinite(delta) ? mean + delta * (other.count / total) : mean + other.mean;
    count = total;
    return *this;
  }

  double variance() const { return squares / count; }
};

// An element to shift by, unless that would make NaN of everything.
inline double pivot_of(double element) { return std::isfinite(element) ? element : 0; }

}  // namespace normgrad::cpu
