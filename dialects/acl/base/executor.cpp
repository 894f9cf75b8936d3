// The executor between the two stages: run once or repeatedly, given other addresses, destroyed.
#include <memory>

#include "base/live.hpp"
#include "normgrad/cuda.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

// What a run needs of its executor, which another thread may destroy meanwhile.
struct Run {
  normgrad::Plan plan;
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
  const size_t needed = executor->plan.workspace_size();
  const bool missing = !workspace && workspace_size > 0;
  if (!missing && workspace_size < needed) {
    return refuse(kInvalid, "workspaceSize: expected at least %zu bytes, got %llu", needed,
                  static_cast<unsigned long long>(workspace_size));
  }
  run.plan = executor->plan;
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
             .count = data(operands.count)};
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
    return answer(run.plan.execute(buffers, workspace, workspace_size, stream), kInner);
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
