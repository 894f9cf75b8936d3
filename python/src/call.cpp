#include "call.hpp"

#include <bit>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "normgrad/cuda.hpp"

namespace normgrad::python {
namespace {

// Everything about a call but its pointers, as words: two calls with equal keys have equal plans.
class Key {
 public:
  explicit Key(const Call& call) {
    add(static_cast<int64_t>(call.op) | static_cast<int64_t>(call.device) << 8 |
        static_cast<int64_t>(call.statistics) << 16 | static_cast<int64_t>(call.frozen) << 24 |
        static_cast<int64_t>(call.accumulate) << 25 | static_cast<int64_t>(call.device_id) << 32);
    add(call.axis);
    for (const double value : {call.eps, call.gamma_offset, call.momentum}) {
      add(std::bit_cast<int64_t>(value));
    }
    for (int role = 0; role < kRoles; ++role) {
      const Operand& operand = call.operands[role];
      if (!operand.present()) continue;
      add(role | static_cast<int64_t>(operand.dtype) << 8 | operand.rank << 16);
      for (int axis = 0; axis < operand.rank; ++axis) add(operand.shape[axis]);
      for (int axis = 0; axis < operand.rank; ++axis) add(operand.strides[axis]);
    }
  }
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(words_.data()), count_ * sizeof(int64_t)};
  }

 private:
  void add(int64_t word) { words_[count_++] = word; }

  std::array<int64_t, 5 + kRoles*(1 + 2 * kMaxRank)> words_;
  size_t count_ = 0;
};

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
};

std::optional<Tensor> tensor_of(const Call& call, Role role) {
  const Operand& operand = call.operands[role];
  if (!operand.present()) return {};
  return Tensor{operand.dtype,
                {operand.shape.begin(), operand.shape.begin() + operand.rank},
                {operand.strides.begin(), operand.strides.begin() + operand.rank}};
}

Status make_plan(const Call& call, Plan& plan) {
  const auto given = [&](Role role) { return tensor_of(call, role); };
  const auto required = [&](Role role) { return tensor_of(call, role).value_or(Tensor{}); };
  const Device device = call.device;
  switch (call.op) {
    case Op::kLayerNorm:
      return Plan::create(LayerNorm{.x = required(kX),
                                    .residual = given(kResidual),
                                    .gamma = given(kGamma),
                                    .beta = given(kBeta),
                                    .gamma_offset = call.gamma_offset,
                                    .eps = call.eps,
                                    .normalized_axes = call.axis,
                                    .y = given(kY),
                                    .h = given(kH),
                                    .x_hat = given(kXHat),
                                    .mean = given(kSavedMean),
                                    .spread = given(kSavedSpread),
                                    .statistics = call.statistics},
                          device, plan);
    case Op::kRmsNorm:
      return Plan::create(RmsNorm{.x = required(kX),
                                  .residual = given(kResidual),
                                  .gamma = given(kGamma),
                                  .gamma_offset = call.gamma_offset,
                                  .eps = call.eps,
                                  .normalized_axes = call.axis,
                                  .y = given(kY),
                                  .h = given(kH),
                                  .spread = given(kSavedSpread)},
                          device, plan);
    case Op::kBatchNorm:
      return Plan::create(BatchNorm{.x = required(kX),
                                    .gamma = given(kGamma),
                                    .beta = given(kBeta),
                                    .eps = call.eps,
                                    .frozen = call.frozen,
                                    .channel_axis = call.axis,
                                    .running_mean = given(kRunningMean),
                                    .running_variance = given(kRunningVariance),
                                    .momentum = call.momentum,
                                    .y = given(kY),
                                    .mean = given(kSavedMean),
                                    .spread = given(kSavedSpread),
                                    .statistics = call.statistics},
                          device, plan);
    case Op::kBatchNormReduce:
      return Plan::create(BatchNormReduce{.x = required(kX),
                                          .channel_axis = call.axis,
                                          .mean = required(kSavedMean),
                                          .squares = required(kSquares),
                                          .count = given(kCount)},
                          device, plan);
    case Op::kBatchNormElementwise:
      return Plan::create(BatchNormElementwise{.x = required(kX),
                                               .gamma = given(kGamma),
                                               .beta = given(kBeta),
                                               .eps = call.eps,
                                               .channel_axis = call.axis,
                                               .mean = required(kMean),
                                               .squares = required(kSquares),
                                               .count = required(kCount),
                                               .running_mean = given(kRunningMean),
                                               .running_variance = given(kRunningVariance),
                                               .momentum = call.momentum,
                                               .y = given(kY),
                                               .saved_mean = given(kSavedMean),
                                               .saved_spread = given(kSavedSpread),
                                               .statistics = call.statistics},
                          device, plan);
    case Op::kLayerNormBackward:
      return Plan::create(LayerNormBackward{.x = required(kX),
                                            .dy = required(kDy),
                                            .gamma = given(kGamma),
                                            .gamma_offset = call.gamma_offset,
                                            .statistics = call.statistics,
                                            .mean = given(kMean),
                                            .spread = required(kSpread),
                                            .eps = call.eps,
                                            .normalized_axes = call.axis,
                                            .dh = given(kDh),
                                            .dx = given(kDx),
                                            .dgamma = given(kDgamma),
                                            .dbeta = given(kDbeta),
                                            .accumulate = call.accumulate},
                          device, plan);
    case Op::kRmsNormBackward:
      return Plan::create(RmsNormBackward{.x = required(kX),
                                          .dy = required(kDy),
                                          .gamma = given(kGamma),
                                          .gamma_offset = call.gamma_offset,
                                          .spread = given(kSpread),
                                          .eps = call.eps,
                                          .normalized_axes = call.axis,
                                          .dh = given(kDh),
                                          .dx = given(kDx),
                                          .dgamma = given(kDgamma),
                                          .accumulate = call.accumulate},
                          device, plan);
    case Op::kBatchNormBackward:
      return Plan::create(BatchNormBackward{.x = required(kX),
                                            .dy = required(kDy),
                                            .gamma = given(kGamma),
                                            .statistics = call.statistics,
                                            .mean = required(kMean),
                                            .spread = required(kSpread),
                                            .eps = call.eps,
                                            .frozen = call.frozen,
                                            .channel_axis = call.axis,
                                            .dx = given(kDx),
                                            .dgamma = given(kDgamma),
                                            .dbeta = given(kDbeta),
                                            .accumulate = call.accumulate},
                          device, plan);
    case Op::kBatchNormReduceBackward:
      return Plan::create(BatchNormReduceBackward{.x = required(kX),
                                                  .dy = required(kDy),
                                                  .mean = required(kMean),
                                                  .spread = required(kSpread),
                                                  .channel_axis = call.axis,
                                                  .sum_dy = given(kSumDy),
                                                  .sum_dy_xmu = given(kSumDyXmu),
                                                  .count = given(kCount),
                                                  .dgamma = given(kDgamma),
                                                  .dbeta = given(kDbeta)},
                          device, plan);
    case Op::kBatchNormElementwiseBackward:
      return Plan::create(BatchNormElementwiseBackward{.x = required(kX),
                                                       .dy = required(kDy),
                                                       .gamma = given(kGamma),
                                                       .mean = required(kMean),
                                                       .spread = required(kSpread),
                                                       .channel_axis = call.axis,
                                                       .sum_dy = required(kSumDy),
                                                       .sum_dy_xmu = required(kSumDyXmu),
                                                       .count = required(kCount),
                                                       .dx = required(kDx)},
                          device, plan);
  }
  return {Code::kInternal, "op: not an operator"};
}

Buffers buffers_of(const Call& call) {
  const auto data = [&](Role role) { return call.operands[role].data; };
  return {.x = data(kX),
          .dy = data(kDy),
          .gamma = data(kGamma),
          .mean = data(kMean),
          .spread = data(kSpread),
          .dx = data(kDx),
          .dgamma = data(kDgamma),
          .dbeta = data(kDbeta),
          .sum_dy = data(kSumDy),
          .sum_dy_xmu = data(kSumDyXmu),
          .count = data(kCount),
          .squares = data(kSquares),
          .dh = data(kDh),
          .residual = data(kResidual),
          .beta = data(kBeta),
          .y = data(kY),
          .h = data(kH),
          .x_hat = data(kXHat),
          .saved_mean = data(kSavedMean),
          .saved_spread = data(kSavedSpread),
          .running_mean = data(kRunningMean),
          .running_variance = data(kRunningVariance)};
}

// The calling thread's, kept for its next call up to a size that no longer matters beside the
// call's own work; a larger one goes back at once.
class CpuWorkspace {
 public:
  char* get(size_t bytes) {
    constexpr size_t kKept = size_t{16} << 20;
    if (bytes > kKept) {
      large_.reset(new (std::nothrow) char[bytes]);
      return large_.get();
    }
    if (bytes > size_) {
      kept_.reset(new (std::nothrow) char[bytes]);
      size_ = kept_ ? bytes : 0;
    }
    return kept_.get();
  }
  void done() { large_.reset(); }

 private:
  std::unique_ptr<char[]> kept_, large_;
  size_t size_ = 0;
};

// Makes `id` the thread's CUDA device while it lives.
class OnDevice {
 public:
  explicit OnDevice(int id) {
    status_ = cuda::get_device(before_);
    if (!status_.ok() || before_ == id) return;
    status_ = cuda::set_device(id);
    changed_ = status_.ok();
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (changed_) (void)cuda::set_device(before_);
  }
  const Status& status() const { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  Status status_;
};

}  // namespace

Status plan_of(const Call& call, Plan& plan) try {
  static std::mutex mutex;
  static std::unordered_map<std::string, Plan, Hash, std::equal_to<>> plans;
  constexpr size_t kMost =
      4096;  // then the cache starts again: shapes that change with every batch

  const Key key(call);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(key.bytes()); found != plans.end()) {
      plan = found->second;
      return {};
    }
  }
  std::optional<OnDevice> on;
  if (call.device == Device::kCuda) {
    on.emplace(call.device_id);
    if (!on->status().ok()) return on->status();
  }
  const Status status = make_plan(call, plan);
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex);
  if (plans.size() >= kMost) plans.clear();
  plans.emplace(key.bytes(), plan);
  return {};
} catch (const std::exception&) {  // std::bad_alloc; a longer message could throw again
  return {Code::kInternal, "out of memory"};
}

Status execute(const Plan& plan, const Call& call, void* workspace, void* stream) {
  const size_t size = plan.workspace_size();
  if (call.device == Device::kCuda) {
    const OnDevice on(call.device_id);
    if (!on.status().ok()) return on.status();
    return plan.execute(buffers_of(call), workspace, size, stream);
  }
  static thread_local CpuWorkspace memory;
  char* const own = size > 0 ? memory.get(size) : nullptr;
  if (size > 0 && own == nullptr) {
    return {Code::kInternal, "workspace: no " + std::to_string(size) + " bytes of memory left"};
  }
  Status status = plan.execute(buffers_of(call), own, size);
  memory.done();
  return status;
}

}  // namespace normgrad::python
