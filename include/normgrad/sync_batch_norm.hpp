// BatchNorm of a batch that is spread over the ranks of a communicator: each has a part of it, of
// any size, also none, and gets what BatchNorm makes of that part in the whole batch. One
// all_gather each way: per rank 16 bytes and 16 bytes per channel, which are float64 moments, or
// sums, and a 64-bit count. All ranks merge them in the same order, so statistics have the same
// bits everywhere, whatever the engine and its network.
//
//   SyncBatchNorm layer(communicator, {.x = ..., .gamma = ..., ...});   together, once
//   const SyncPlan forward = layer.plan(BatchNorm{...});                each rank for its part
//   forward.run(buffers, workspace, size);                              together, every step
#pragma once

#include <memory>

#include "normgrad/batch_norm.hpp"
#include "normgrad/batch_norm_backward.hpp"
#include "normgrad/communicator.hpp"

namespace normgrad {

// A pass over the whole batch; immutable, like a Plan. It refers to the communicator.
class NORMGRAD_EXPORT SyncPlan {
 public:
  // An empty plan: its workspace is 0 and executing it is an error.
  SyncPlan() = default;

  // Bytes of workspace, in the communicator's memory: any content, any alignment.
  size_t workspace_size() const noexcept;

  // Called by all ranks. Buffers are those of the call that the plan was made of. Outputs are
  // written after the ranks have exchanged their sums: when that fails, no byte of them has
  // changed. On a GPU the pass is queued and wait() tells how it ended; a graph that captured it
  // needs the plan for as long as it is launched.
  Status execute(const Buffers& buffers, void* workspace, size_t workspace_size,
                 void* stream = nullptr) const noexcept;

  // Returns when `stream` is done, a rank failed, or the deadline passed, and whether all ranks ran
  // this pass; `workspace` is as execute left it. On the CPU execute has said all that already.
  Status wait(const void* workspace, void* stream = nullptr) const noexcept;

  // execute, throwing Error on failure.
  void run(const Buffers& buffers, void* workspace, size_t workspace_size,
           void* stream = nullptr) const;

 private:
  friend class SyncBatchNorm;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

class NORMGRAD_EXPORT SyncBatchNorm {
 public:
  // A layer of nothing: it makes no plans.
  SyncBatchNorm() = default;

  // Made by all ranks together, which compare what they have in common: the number of channels, the
  // type of x, which of gamma, beta and running statistics there are, eps, momentum and the kind
  // of statistics. Ranks that differ get an error, and so do all others. Other extents and the
  // layout of x are free. The communicator must outlive the layer and its plans.
  SyncBatchNorm(Communicator& communicator, const BatchNorm& call);
  static Status create(Communicator& communicator, const BatchNorm& call,
                       SyncBatchNorm& layer) noexcept;

  // The pass over this rank's part, which fits the layer. No other rank is asked. The gradient
  // takes the mean and the rstd that the layer saved, and has a dx; its dgamma and dbeta are
  // those of this rank, without gaps and not accumulated (all_reduce_gradients adds them up).
  // Frozen statistics need no other rank: that is BatchNorm.
  SyncPlan plan(const BatchNorm& part) const;
  SyncPlan plan(const BatchNormBackward& part) const;
  Status plan(const BatchNorm& part, SyncPlan& plan) const noexcept;
  Status plan(const BatchNormBackward& part, SyncPlan& plan) const noexcept;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace normgrad
