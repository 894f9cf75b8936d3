// Plan: one checked call. Making a plan checks every argument, picks a kernel and fixes the order
// of every sum; executing it only computes. Plans are immutable: copy them, share them between
// threads.
#pragma once

#include <memory>
#include <string>

#include "normgrad/export.hpp"
#include "normgrad/status.hpp"

namespace normgrad {

struct LayerNorm;
struct RmsNorm;
struct BatchNorm;
struct BatchNormReduce;
struct BatchNormElementwise;
struct LayerNormBackward;
struct RmsNormBackward;
struct BatchNormBackward;
struct BatchNormReduceBackward;
struct BatchNormElementwiseBackward;

enum class Device { kCpu, kCuda };

// The data of a call. A pointer is read only if the plan has that operand; pointers of empty
// tensors may be null. dx may be exactly dy, x or dh, and y and h exactly x or residual, with the
// same layout; no output may overlap anything else.
struct Buffers {
  const void* x = nullptr;
  const void* dy = nullptr;
  const void* gamma = nullptr;
  const void* mean = nullptr;
  const void* spread = nullptr;
  void* dx = nullptr;
  void* dgamma = nullptr;
  void* dbeta = nullptr;
  // Of a BatchNorm in two steps: the first writes these, the second reads them. (BatchNormReduce
  // writes its mean to saved_mean; BatchNormElementwise reads mean, and saves to saved_mean.)
  void* sum_dy = nullptr;
  void* sum_dy_xmu = nullptr;
  void* count = nullptr;
  void* squares = nullptr;
  // Of a gradient with a residual.
  const void* dh = nullptr;
  // Of the forward operators; what they save is what the gradients take.
  const void* residual = nullptr;
  const void* beta = nullptr;
  void* y = nullptr;
  void* h = nullptr;
  void* x_hat = nullptr;
  void* saved_mean = nullptr;
  void* saved_spread = nullptr;
  void* running_mean = nullptr;
  void* running_variance = nullptr;
};

// What error sentences call the arguments; a front end with other names sets its own. The plan
// keeps the pointers: use string literals.
struct OperandNames {
  const char* x = "x";
  const char* dy = "dy";
  const char* gamma = "gamma";
  const char* mean = "mean";
  const char* spread = "spread";
  const char* dx = "dx";
  const char* dgamma = "dgamma";
  const char* dbeta = "dbeta";
  const char* sum_dy = "sum_dy";
  const char* sum_dy_xmu = "sum_dy_xmu";
  const char* count = "count";
  const char* squares = "squares";
  const char* dh = "dh";
  const char* residual = "residual";
  const char* beta = "beta";
  const char* y = "y";
  const char* h = "h";
  const char* x_hat = "x_hat";
  const char* saved_mean = "saved_mean";  // of BatchNormElementwise, which has two means
  const char* saved_spread = "saved_spread";
  const char* running_mean = "running_mean";
  const char* running_variance = "running_variance";
  const char* eps = "eps";
};

class NORMGRAD_EXPORT Plan {
 public:
  // An empty plan: its workspace is 0 and executing it is an error.
  Plan() = default;

  // Throws Error when the call is refused.
  explicit Plan(const LayerNorm& call, Device device = Device::kCpu);
  explicit Plan(const RmsNorm& call, Device device = Device::kCpu);
  explicit Plan(const BatchNorm& call, Device device = Device::kCpu);
  explicit Plan(const BatchNormReduce& call, Device device = Device::kCpu);
  explicit Plan(const BatchNormElementwise& call, Device device = Device::kCpu);
  explicit Plan(const LayerNormBackward& call, Device device = Device::kCpu);
  explicit Plan(const RmsNormBackward& call, Device device = Device::kCpu);
  explicit Plan(const BatchNormBackward& call, Device device = Device::kCpu);
  explicit Plan(const BatchNormReduceBackward& call, Device device = Device::kCpu);
  explicit Plan(const BatchNormElementwiseBackward& call, Device device = Device::kCpu);

  // The same without exceptions: `plan` is changed only on success.
  static Status create(const LayerNorm& call, Device device, Plan& plan) noexcept;
  static Status create(const RmsNorm& call, Device device, Plan& plan) noexcept;
  static Status create(const BatchNorm& call, Device device, Plan& plan) noexcept;
  static Status create(const BatchNormReduce& call, Device device, Plan& plan) noexcept;
  static Status create(const BatchNormElementwise& call, Device device, Plan& plan) noexcept;
  static Status create(const LayerNormBackward& call, Device device, Plan& plan) noexcept;
  static Status create(const RmsNormBackward& call, Device device, Plan& plan) noexcept;
  static Status create(const BatchNormBackward& call, Device device, Plan& plan) noexcept;
  static Status create(const BatchNormReduceBackward& call, Device device, Plan& plan) noexcept;
  static Status create(const BatchNormElementwiseBackward& call, Device device,
                       Plan& plan) noexcept;

  // Bytes of workspace that execute needs: device memory, any content, any alignment.
  size_t workspace_size() const noexcept;

  // "cpu:avx3 rows, copy of x": the implementation, the kernel that will run and, if any, the
  // operands that pass through workspace.
  std::string kernel() const;

  // Overwrites the outputs, but for what it adds to or moves. Allocates nothing, waits for nothing;
  // on a GPU the work is queued on `stream` (null: the legacy default stream). A refused call
  // changes no byte of any output.
  Status execute(const Buffers& buffers, void* workspace, size_t workspace_size,
                 void* stream = nullptr) const noexcept;

  // execute, throwing Error on failure.
  void run(const Buffers& buffers, void* workspace, size_t workspace_size,
           void* stream = nullptr) const;

 private:
  struct Impl;
  template <class Call>
  static Status make(const Call& call, Device device, Plan& plan) noexcept;

  std::shared_ptr<const Impl> impl_;
};

}  // namespace normgrad
