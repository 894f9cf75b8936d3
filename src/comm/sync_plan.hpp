#pragma once

#include "normgrad/sync_batch_norm.hpp"

namespace normgrad {

// The workspace: the messages of all ranks, in their order, of which this rank writes its own; then
// dgamma and dbeta, until they may be written; then the workspace of the two steps.
//
// A message is 2 + 2 C words of 8 bytes: a tag that says which pass of which layer it belongs to,
// the count, and two float64 per channel: mean and squares, or sum_dy and sum_dy_xmu.
struct SyncPlan::Impl {
  Communicator* communicator = nullptr;
  bool backward = false;
  uint64_t tag = 0;
  size_t channels = 0;
  Plan reduce, elementwise;
  size_t dgamma_bytes = 0, dbeta_bytes = 0;

  const char* name() const { return backward ? "sync_batch_norm_backward" : "sync_batch_norm"; }
  // In bytes.
  size_t message() const { return (2 + 2 * channels) * 8; }
  size_t messages() const;
  size_t parameters() const;
  size_t steps() const;
  size_t workspace() const;

  Status check_tags(const std::byte* all) const;
  Status check_workspace(const void* workspace, size_t size) const;
  Status save_parameters(const Buffers& buffers, const std::byte* from, void* stream) const;
};

}  // namespace normgrad
