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

  // This thread's first unit of gamma, asked for before anything else is done.
  struct Asked {
    bool in_units = false;  // they have the type of x, and lie side by side
    uint4 unit = {};
  };
  __device__ Asked ask(const RowsLaunch& launch, int64_t first, int columns) const {
    const Vector& gamma = launch.problem.gamma;
    const auto* data = static_cast<const T*>(launch.buffers.gamma) + first;
    Asked asked;
    asked.in_units = gamma.present && gamma.dtype == dtype_of<T>() && gamma.stride == 1 &&
                     reinterpret_cast<uintptr_t>(data) % 16 == 0;
    if (asked.in_units) asked.unit = unit_at(data, threadIdx.x, columns);
    return asked;
  }

  // From column `first` on; ones if there is no gamma, zeros behind the last column. By all threads
  // of the block.
  __device__ void put(const RowsLaunch& launch, int64_t first, int columns, Asked asked) const {
    if (!asked.in_units) return put_values(launch, first, columns);
    const auto* data = static_cast<const T*>(launch.buffers.gamma) + first;
#pragma unroll 1
    for (int u = threadIdx.x; u < units_; u += launch.geometry.threads()) {
      if (u >= launch.geometry.threads()) asked.unit = unit_at(data, u, columns);
      float values[kE];
      unpack<T>(asked.unit, values);
#pragma unroll
      for (int e = 0; e < kE; e += 4) {
        *reinterpret_cast<float4*>(at(u * kE + e)) = {values[e], values[e + 1], values[e + 2],
                                                      values[e + 3]};
      }
    }
  }

 private:
  __device__ static uint4 unit_at(const T* data, int u, int columns) {
    if ((u + 1) * kE <= columns) return reinterpret_cast<const uint4*>(data)[u];
    float values[kE] = {};
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      if (u * kE + e < columns) values[e] = widen(data[u * kE + e]);
    }
    return pack<T>(values);
  }

  // Of any type and stride.
  __device__ void put_values(const RowsLaunch& launch, int64_t first, int columns) const {
    const Vector& gamma = launch.problem.gamma;
    with_type(gamma.dtype, [&](auto type) {
      const auto* values = static_cast<const decltype(type)*>(launch.buffers.gamma);
#pragma unroll 4
      for (int c = threadIdx.x; c < units_ * kE; c += launch.geometry.threads()) {
        float value = c < columns ? 1 : 0;
        if (gamma.present && c < columns) value = widen(values[(first + c) * gamma.stride]);
        *at(c) = value;
      }
    });
  }

  __device__ float* at(int column) const {
    const int e = column % kE;
    return data_ + (e / 4 * units_ + column / kE) * 4 + e % 4;
  }

  float* const data_;
  const int units_;
};

}  // namespace normgrad::cuda
