// The executor between the two stages: run once or repeatedly, given other addresses, destroyed.
#include <memory>

#include "base/live.hpp"
#include "normgrad/cuda.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

// What a run needs of its executor, which another thread may destroy meanwhile.
struct Run {
  normgrad::Plan plan;
  Sum sum;
  size_t workspace_size = 0;
  int gpu = -1;
  Operands operands;
  std::unique_ptr<aclOpExecutor> ended;  // deletes the executor when the run is over
};

// Decides, while nobody else can, whether this run may use the executor and whether it ends it: a
// run ends every executor that is not repeatable, and a missing workspace ends any. One that is
// too small ends none, so that the caller can come again with a larger one.
int32_t claim(const char* op, const void* workspace, uint64_t workspace_size,
              aclOpExecutor* executor, Run& run) {
  LiveLock lock(executor);
  if (!lock.live(Kind::kExecutor)) {
    return refuse(kInvalid,
                  "executor: %p has run and was not repeatable, was destroyed or is something else",
                  static_cast<const void*>(executor));
  }
  if (executor->op != op) {
    return refuse(kInvalid, "executor: expected one of %s, got one of %s", op, executor->op);
  }
  const size_t needed = executor->workspace_size();
  const bool missing = !workspace && workspace_size > 0;
  if (!missing && workspace_size < needed) {
    return refuse(kInvalid, "workspaceSize: expected at least %zu bytes, got %llu", needed,
                  static_cast<unsigned long long>(workspace_size));
  }
  run.plan = executor->plan;
  run.sum = executor->sum;
  run.workspace_size = needed;
  run.gpu = executor->gpu;
  run.operands = executor->operands;
  if (missing || !executor->repeatable) {
    lock.leave();
    run.ended.reset(executor);
  }
  return missing ? null_argument("workspace") : kSuccess;
}

// The addresses that the tensors have now. kNoObject if one of them is not what it was.
int32_t read_addresses(const Operands& operands, normgrad::Buffers& buffers) {
  const aclTensor* changed = nullptr;
  const auto data = [&](const Operand& operand) -> void* {
    const aclTensor* tensor = operand.tensor;
    if (!tensor) return nullptr;
    if (!normgradAclIsLive(tensor, Kind::kTensor) || tensor->serial != operand.serial) {
      changed = tensor;
      return nullptr;
    }
    return tensor->data ? static_cast<char*>(tensor->data) + operand.offset : nullptr;
  };
  buffers = {.x = data(operands.x),
             .dy = data(operands.dy),
             .gamma = data(operands.gamma),
             .mean = data(operands.mean),
             .spread = data(operands.spread),
             .dx = data(operands.dx),
             .dgamma = data(operands.dgamma),
             .dbeta = data(operands.dbeta),
             .sum_dy = data(operands.sum_dy),
             .sum_dy_xmu = data(operands.sum_dy_xmu),
             .count = data(operands.count),
             .dh = data(operands.dh),
             .residual = data(operands.residual),
             .beta = data(operands.beta),
             .y = data(operands.y),
             .saved_mean = data(operands.saved_mean),
             .saved_spread = data(operands.saved_spread)};
  if (!changed) return kSuccess;
  return refuse(kNoObject, "executor: its tensor %p was destroyed or described anew",
                static_cast<const void*>(changed));
}

// Work given to another GPU than the current one would fail later, and take the program along.
int32_t check_gpu(int gpu) {
  if (gpu < 0) return kSuccess;
  int current = -1;
  if (const int32_t status = answer(normgrad::cuda::get_device(current), kInner)) return status;
  if (current == gpu) return kSuccess;
  return refuse(kRuntime, "executor: made for device %d, but the thread's is %d", gpu, current);
}

// The elements of a tensor, and the gaps between them.
bool overlaps(const Operand& operand, const void* data, uintptr_t begin, uintptr_t end) {
  if (!operand.tensor || !data) return false;
  const normgrad::Tensor& view = operand.tensor->view;
  int64_t last = 0;
  for (size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 0) return false;
    if (view.shape[axis] > 1) last += (view.shape[axis] - 1) * view.strides[axis];
  }
  const auto first = reinterpret_cast<uintptr_t>(data);
  return first < end && begin < first + static_cast<size_t>(last + 1) * size_of(view.dtype);
}

// Makes the sum and puts it where the plan looks for x; the workspace becomes what is left of it.
// The plan looks after its own workspace, but is asked when the sum is there already.
int32_t add_up(const Run& run, normgrad::Buffers& buffers, char*& workspace, size_t& size,
               aclrtStream stream) {
  const auto begin = reinterpret_cast<uintptr_t>(workspace), end = begin + run.workspace_size;
  const Operands& o = run.operands;
  const normgrad::Buffers& b = buffers;
  const std::pair<const Operand*, const void*> tensors[] = {
      {&o.x, b.x},           {&o.residual, b.residual}, {&o.dy, b.dy}, {&o.gamma, b.gamma},
      {&o.mean, b.mean},     {&o.spread, b.spread},     {&o.dh, b.dh}, {&o.dx, b.dx},
      {&o.dgamma, b.dgamma}, {&o.dbeta, b.dbeta}};
  for (const auto& [operand, data] : tensors) {
    if (overlaps(*operand, data, begin, end)) {
      return refuse(kInvalid, "workspace: overlaps the tensor at %p in memory", data);
    }
  }
  const size_t padding = -begin % Sum::kAlignment;
  void* const h = workspace + padding;
  workspace += padding + run.sum.bytes;
  size -= padding + run.sum.bytes;
  const normgrad::Buffers terms = {.x = b.x, .residual = b.residual, .h = h};
  buffers.x = h;
  return answer(run.sum.plan.execute(terms, workspace, size, stream), kInner);
}

aclnnStatus set_address(aclOpExecutor* executor, aclTensor* tensor, void* addr) noexcept {
  if (!tensor) return refuse(kNoObject, "tensor is null");
  if (!normgradAclIsLive(tensor, Kind::kTensor)) return not_live("tensor", tensor);
  tensor->data = addr;  // before the executor is looked at: aclnn's order
  if (!executor) return refuse(kNoObject, "executor is null");
  if (!normgradAclIsLive(executor, Kind::kExecutor)) return not_live("executor", executor);
  return kSuccess;
}

aclnnStatus set_member_address(aclOpExecutor* executor, size_t index, aclTensorList* tensors,
                               void* addr) noexcept {
  if (!tensors) return refuse(kNoObject, "tensors is null");
  if (!normgradAclIsLive(tensors, Kind::kTensorList)) return not_live("tensors", tensors);
  if (index >= tensors->values.size()) {
    return refuse(kInvalid, "relativeIndex: expected less than %zu, the size of the list, got %zu",
                  tensors->values.size(), index);
  }
  return set_address(executor, tensors->values[index], addr);
}

}  // namespace

int32_t normgradAclRun(const char* op, void* workspace, uint64_t workspace_size,
                       aclOpExecutor* executor, aclrtStream stream) noexcept {
  if (!executor) return null_argument("executor");
  return guarded(kInner, [&]() -> int32_t {
    Run run;
    if (const int32_t status = claim(op, workspace, workspace_size, executor, run)) return status;
    if (!normgradAclIsStream(stream)) return not_live("stream", stream, kRuntime);
    if (const int32_t status = check_gpu(run.gpu)) return status;
    normgrad::Buffers buffers;
    if (const int32_t status = read_addresses(run.operands, buffers)) return status;
    auto* rest = static_cast<char*>(workspace);
    if (run.sum.bytes > 0) {
      if (const int32_t status = add_up(run, buffers, rest, workspace_size, stream)) return status;
    }
    return answer(run.plan.execute(buffers, rest, workspace_size, stream), kInner);
  });
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  if (!executor) return refuse(kNoObject, "executor is null");
  return guarded(kInner, [&]() -> int32_t {
    const LiveLock lock(executor);
    if (!lock.live(Kind::kExecutor)) {
      return refuse(kInner, "executor: %p has run, was destroyed or is something else",
                    static_cast<const void*>(executor));
    }
    executor->repeatable = true;
    return kSuccess;
  });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  if (!executor) return refuse(kNoObject, "executor is null");
  return destroy(executor, "executor");
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, const size_t, aclTensor* tensor,
                                  void* addr) {
  return set_address(executor, tensor, addr);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, const size_t, aclTensor* tensor,
                                   void* addr) {
  return set_address(executor, tensor, addr);
}

aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, const size_t, aclTensor* tensor, void* addr) {
  return set_address(executor, tensor, addr);
}

aclnnStatus aclSetDynamicInputTensorAddr(aclOpExecutor* executor, size_t,
                                         const size_t relativeIndex, aclTensorList* tensors,
                                         void* addr) {
  return set_member_address(executor, relativeIndex, tensors, addr);
}

aclnnStatus aclSetDynamicOutputTensorAddr(aclOpExecutor* executor, size_t,
                                          const size_t relativeIndex, aclTensorList* tensors,
                                          void* addr) {
  return set_member_address(executor, relativeIndex, tensors, addr);
}

aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor* executor, size_t, const size_t relativeIndex,
                                    aclTensorList* tensors, void* addr) {
  return set_member_address(executor, relativeIndex, tensors, addr);
}

aclnnStatus AclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                  void* addr) {
  return aclSetInputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                   void* addr) {
  return aclSetOutputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                             void* addr) {
  return aclSetTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetDynamicInputTensorAddr(aclOpExecutor* executor, size_t irIndex,
                                         const size_t relativeIndex, aclTensorList* tensors,
                                         void* addr) {
  return aclSetDynamicInputTensorAddr(executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus AclSetDynamicOutputTensorAddr(aclOpExecutor* executor, size_t irIndex,
                                          const size_t relativeIndex, aclTensorList* tensors,
                                          void* addr) {
  return aclSetDynamicOutputTensorAddr(executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus AclSetDynamicTensorAddr(aclOpExecutor* executor, size_t irIndex,
                                    const size_t relativeIndex, aclTensorList* tensors,
                                    void* addr) {
  return aclSetDynamicTensorAddr(executor, irIndex, relativeIndex, tensors, addr);
}

aclnnStatus aclDumpOpTensors(const char* opType, const char* opName, aclTensor** tensors,
                             size_t inputTensorNum, size_t outputTensorNum, aclrtStream stream) {
  if (!opType) return null_argument("opType");
  if (!opName) return null_argument("opName");
  if (!tensors) return null_argument("tensors");
  for (size_t i = 0; i < inputTensorNum + outputTensorNum; ++i) {
    if (!tensors[i]) return null_argument("a tensor");
    if (!normgradAclIsLive(tensors[i], Kind::kTensor)) return not_live("a tensor", tensors[i]);
  }
  return normgradAclIsStream(stream) ? kSuccess : not_live("stream", stream, kRuntime);
}
