// Random data for the commands that make their own inputs.
#pragma once

#include <cstdint>

namespace normgrad::tool {

// Nearly normal values, two nanoseconds each: the sum of four 16-bit uniform ones.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  double normal() {
    uint64_t bits = state_ += 0x9E3779B97F4A7C15;  // splitmix64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    bits ^= bits >> 31;
    const uint64_t sum = (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) +
                         (bits >> 48);  // mean 2 * 65535, variance 65536^2 / 3
    return (static_cast<double>(sum) - 131070) / 37837.2;
  }

 private:
  uint64_t state_;
};

}  // namespace normgrad::tool
