// One call of the library as data: which operator, its operands with their pointers, its scalars.
// What stands behind every function of the Python modules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "normgrad/normgrad.hpp"

namespace normgrad::python {

enum class Op : uint8_t {
  kLayerNorm,
  kRmsNorm,
  kBatchNorm,
  kBatchNormReduce,
  kBatchNormElementwise,
  kLayerNormBackward,
  kRmsNormBackward,
  kBatchNormBackward,
  kBatchNormReduceBackward,
  kBatchNormElementwiseBackward,
};

// The names of normgrad::Buffers.
enum Role : uint8_t {
  kX,
  kDy,
  kGamma,
  kMean,
  kSpread,
  kDx,
  kDgamma,
  kDbeta,
  kSumDy,
  kSumDyXmu,
  kCount,
  kSquares,
  kDh,
  kResidual,
  kBeta,
  kY,
  kH,
  kXHat,
  kSavedMean,
  kSavedSpread,
  kRunningMean,
  kRunningVariance,
  kRoles,
};

constexpr int kMaxRank = 8;  // what the library takes

struct Operand {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = -1;  // absent
  std::array<int64_t, kMaxRank> shape, strides;

  bool present() const { return rank >= 0; }
};

struct Call {
  Op op;
  Device device = Device::kCpu;
  int device_id = 0;
  Statistics statistics = Statistics::kMeanRstd;
  bool frozen = false;
  bool accumulate = false;
  int axis = 1;  // normalized_axes or channel_axis
  double eps = 0;
  double gamma_offset = 0;
  double momentum = 0;
  std::array<Operand, kRoles> operands = {};
};

// The plan of the call, from a cache: a call like one before costs a look-up instead of the checks.
// Plans know nothing of pointers. Safe to call from any thread.
Status plan_of(const Call& call, Plan& plan);

// Runs the plan with the call's pointers on the call's device. On a GPU `workspace` holds
// plan.workspace_size() bytes there; on the CPU it is ignored, the calling thread keeps one.
Status execute(const Plan& plan, const Call& call, void* workspace, void* stream);

}  // namespace normgrad::python
