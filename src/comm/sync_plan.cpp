#include "comm/sync_plan.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "normgrad/cuda.hpp"
#include "ops/return_if_error.hpp"

namespace normgrad {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kWord = 8;

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <class Byte>
Byte* aligned(Byte* memory) {
  return memory + -reinterpret_cast<uintptr_t>(memory) % kAlignment;
}

Status copy(Device device, void* to, const void* from, size_t bytes, void* stream) {
  if (device == Device::kCuda) return cuda::copy(to, from, bytes, stream);
  std::memcpy(to, from, bytes);
  return {};
}

}  // namespace

size_t SyncPlan::Impl::messages() const {
  return align(message() * static_cast<size_t>(communicator->size()));
}
size_t SyncPlan::Impl::parameters() const { return align(dgamma_bytes) + align(dbeta_bytes); }
size_t SyncPlan::Impl::steps() const {
  return std::max(reduce.workspace_size(), elementwise.workspace_size());
}
size_t SyncPlan::Impl::workspace() const {
  return messages() + parameters() + steps() + kAlignment;
}

Status SyncPlan::Impl::check_tags(const std::byte* all) const {
  for (int rank = 0; rank < communicator->size(); ++rank) {
    uint64_t theirs;
    std::memcpy(&theirs, all + static_cast<size_t>(rank) * message(), sizeof theirs);
    if (theirs == tag) continue;
    const char* what = (theirs ^ tag) != 1 ? "another layer"
                       : backward          ? "the layer"
                                           : "the gradient";
    return {Code::kCommunication, std::string(name()) + ": rank " + std::to_string(rank) +
                                      " runs " + what + ", rank " +
                                      std::to_string(communicator->rank()) + " runs " +
                                      (backward ? "the gradient" : "the layer")};
  }
  return {};
}

Status SyncPlan::Impl::check_workspace(const void* memory, size_t size) const {
  if (size < workspace()) {
    return {Code::kInsufficientWorkspace, "workspace_size: expected at least " +
                                              std::to_string(workspace()) + " bytes, got " +
                                              std::to_string(size)};
  }
  if (memory) return {};
  return {Code::kNullPointer,
          "workspace: expected " + std::to_string(workspace()) + " bytes, got null"};
}

Status SyncPlan::Impl::save_parameters(const Buffers& buffers, const std::byte* from,
                                       void* stream) const {
  const Device device = communicator->device();
  if (dgamma_bytes > 0) {
    NORMGRAD_RETURN_IF_ERROR(copy(device, buffers.dgamma, from, dgamma_bytes, stream));
  }
  if (dbeta_bytes > 0) {
    NORMGRAD_RETURN_IF_ERROR(
        copy(device, buffers.dbeta, from + align(dgamma_bytes), dbeta_bytes, stream));
  }
  return {};
}

size_t SyncPlan::workspace_size() const noexcept { return impl_ ? impl_->workspace() : 0; }

Status SyncPlan::execute(const Buffers& buffers, void* workspace, size_t size,
                         void* stream) const noexcept try {
  if (!impl_) return {Code::kBadArgument, "plan: is empty"};
  const Impl& plan = *impl_;
  Communicator& communicator = *plan.communicator;
  NORMGRAD_RETURN_IF_ERROR(plan.check_workspace(workspace, size));
  if (plan.dgamma_bytes > 0 && !buffers.dgamma) return {Code::kNullPointer, "dgamma: is null"};
  if (plan.dbeta_bytes > 0 && !buffers.dbeta) return {Code::kNullPointer, "dbeta: is null"};

  std::byte* all = aligned(static_cast<std::byte*>(workspace));
  std::byte* own = all + plan.message() * static_cast<size_t>(communicator.rank());
  std::byte* parameters = all + plan.messages();
  std::byte* steps = parameters + plan.parameters();
  const auto sums_of = [&](std::byte* message, int which) {
    return message + (2 + static_cast<size_t>(which) * plan.channels) * kWord;
  };

  Buffers mine = buffers;
  mine.count = own + kWord;
  mine.saved_mean = mine.sum_dy = sums_of(own, 0);
  mine.squares = mine.sum_dy_xmu = sums_of(own, 1);
  mine.dgamma = parameters;
  mine.dbeta = parameters + align(plan.dgamma_bytes);
  NORMGRAD_RETURN_IF_ERROR(plan.reduce.execute(mine, steps, plan.steps(), stream));
  NORMGRAD_RETURN_IF_ERROR(copy(communicator.device(), own, &plan.tag, kWord, stream));

  NORMGRAD_RETURN_IF_ERROR(communicator.all_gather(own, all, plan.message(), stream));
  if (communicator.device() == Device::kCpu) NORMGRAD_RETURN_IF_ERROR(plan.check_tags(all));

  Buffers whole = buffers;
  whole.count = all + kWord;
  if (!plan.backward) whole.mean = sums_of(all, 0);
  whole.sum_dy = sums_of(all, 0);
  whole.squares = whole.sum_dy_xmu = sums_of(all, 1);
  NORMGRAD_RETURN_IF_ERROR(plan.elementwise.execute(whole, steps, plan.steps(), stream));
  return plan.save_parameters(buffers, parameters, stream);
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

Status SyncPlan::wait(const void* workspace, void* stream) const noexcept try {
  if (!impl_) return {Code::kBadArgument, "plan: is empty"};
  Communicator& communicator = *impl_->communicator;
  NORMGRAD_RETURN_IF_ERROR(communicator.wait(stream));
  if (communicator.device() == Device::kCpu) return {};
  std::vector<std::byte> all(impl_->messages());
  NORMGRAD_RETURN_IF_ERROR(
      cuda::copy(all.data(), aligned(static_cast<const std::byte*>(workspace)), all.size()));
  return impl_->check_tags(all.data());
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

void SyncPlan::run(const Buffers& buffers, void* workspace, size_t size, void* stream) const {
  if (const Status status = execute(buffers, workspace, size, stream); !status.ok()) {
    throw Error(status);
  }
}

}  // namespace normgrad
