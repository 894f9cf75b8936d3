// gamma in shared memory as float32, for the columns of a block.
#pragma once

#include "cuda/rows_launch.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {

// Four columns of each unit side by side, then the other four: neighbouring lanes, which read
// neighbouring units, do not meet in a bank.
template <class T>
class Gamma {
 public:
  static constexpr int kE = kUnit<T>;

  __device__ Gamma(const RowsLaunch& launch, char* memory)
      : data_(reinterpret_cast<float*>(memory + launch.gamma_at)),
        units_(launch.geometry.team_units()) {}

  __device__ void unit(int u, float (&values)[kE]) const {
#pragma unroll
    for (int i = 0; i < kE / 4; ++i) {
      const float4 four = reinterpret_cast<const float4*>(data_)[i * units_ + u];
      values[4 * i] = four.x;
      values[4 * i + 1] = four.y;
      values[4 * i + 2] = four.z;
      values[4 * i + 3] = four.w;
    }
  }
  __device__ float operator[](int column) const { return *at(column); }

  // From column `first` on; ones if there is no gamma, zeros behind the last column. By all threads
  // of the block.
  __device__ void load(const RowsLaunch& launch, int64_t first, int columns) {
    const Vector& gamma = launch.problem.gamma;
    const auto from = first * gamma.stride * static_cast<int64_t>(size_of(gamma.dtype));
    const void* data = static_cast<const char*>(launch.buffers.gamma) + from;
    const int threads = launch.geometry.threads();
    if (gamma.present && gamma.dtype == dtype_of<T>() && gamma.stride == 1 &&
        reinterpret_cast<uintptr_t>(data) % 16 == 0) {
#pragma unroll 2
      for (int u = threadIdx.x; u < units_; u += threads) {
        float values[kE] = {};
        if ((u + 1) * kE <= columns) {
          unpack<T>(static_cast<const uint4*>(data)[u], values);
        } else {
#pragma unroll
          for (int e = 0; e < kE; ++e) {
            if (u * kE + e < columns) values[e] = widen(static_cast<const T*>(data)[u * kE + e]);
          }
        }
#pragma unroll
        for (int e = 0; e < kE; ++e) *at(u * kE + e) = values[e];
      }
      return;
    }
    with_type(gamma.dtype, [&](auto type) {
      const auto* values = static_cast<const decltype(type)*>(data);
#pragma unroll 4
      for (int c = threadIdx.x; c < units_ * kE; c += threads) {
        float value = c < columns ? 1 : 0;
        if (gamma.present && c < columns) value = widen(values[c * gamma.stride]);
        *at(c) = value;
      }
    });
  }

 private:
  __device__ float* at(int column) const {
    const int e = column % kE;
    return data_ + (e / 4 * units_ + column / kE) * 4 + e % 4;
  }

  float* const data_;
  const int units_;
};

}  // namespace normgrad::cuda
