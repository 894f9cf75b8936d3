#include "normgrad/sync_batch_norm.hpp"

#include <bit>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "comm/sync_plan.hpp"
#include "normgrad/cuda.hpp"
#include "ops/return_if_error.hpp"

namespace normgrad {
namespace {

// What the ranks have in common, in words that can be compared one by one.
struct Common {
  int64_t channels = -1;  // -1: the rank's call was refused
  DType dtype = DType::kF32;
  Statistics statistics = Statistics::kMeanVariance;
  int64_t gamma = 0, beta = 0, running = 0;  // whether they are there
  double eps = 0, momentum = 0;

  bool operator==(const Common&) const = default;
};

Common common_of(const BatchNorm& call) {
  const bool running = call.running_mean.has_value();
  return {.channels = call.x.shape[static_cast<size_t>(call.channel_axis)],
          .dtype = call.x.dtype,
          .statistics = call.statistics,
          .gamma = call.gamma.has_value(),
          .beta = call.beta.has_value(),
          .running = running,
          .eps = call.eps,
          .momentum = running ? call.momentum : 0};
}

// "channels: rank 1 has 64, rank 0 has 32", or nothing.
std::string difference(const Common& a, const std::string& of_a, const Common& b,
                       const std::string& of_b) {
  std::string found;
  const auto compare = [&](const char* name, const auto& x, const auto& y, const auto& text) {
    if (!found.empty() || x == y) return;
    found = std::string(name) + ": " + of_a + " has " + text(x) + ", " + of_b + " has " + text(y);
  };
  const auto number = [](auto value) { return std::to_string(value); };
  const auto real = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", value);
    return std::string(text);
  };
  const auto kind = [](Statistics s) {
    return std::string(s == Statistics::kMeanRstd ? "rstd" : "variance");
  };
  const auto type = [](DType dtype) { return std::string(name_of(dtype)); };
  const auto presence = [](int64_t there) { return std::string(there ? "one" : "none"); };
  compare("channels", a.channels, b.channels, number);
  compare("dtype of x", a.dtype, b.dtype, type);
  compare("statistics", a.statistics, b.statistics, kind);
  compare("gamma", a.gamma, b.gamma, presence);
  compare("beta", a.beta, b.beta, presence);
  compare("running statistics", a.running, b.running, presence);
  compare("eps", a.eps, b.eps, real);
  compare("momentum", a.momentum, b.momentum, real);
  return found;
}

// FNV-1a of what the ranks have in common; the lowest bit tells the gradient from the layer.
uint64_t tag_of(const Common& common, bool backward) {
  const uint64_t words[] = {
      static_cast<uint64_t>(common.channels),
      static_cast<uint64_t>(common.dtype),
      static_cast<uint64_t>(common.statistics),
      static_cast<uint64_t>(common.gamma | common.beta << 1 | common.running << 2),
      std::bit_cast<uint64_t>(common.eps),
      std::bit_cast<uint64_t>(common.momentum)};
  uint64_t hash = 0xCBF29CE484222325;
  for (const uint64_t word : words) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (word >> shift & 0xFF)) * 0x100000001B3;
    }
  }
  return (hash & ~uint64_t{1}) | static_cast<uint64_t>(backward);
}

// all_gather of host memory, on every device.
Status gather(Communicator& communicator, const void* mine, void* all, size_t bytes) {
  if (communicator.device() == Device::kCpu) {
    return communicator.all_gather(mine, all, bytes, nullptr);
  }
  const size_t total = bytes * static_cast<size_t>(communicator.size());
  void* memory = nullptr;
  NORMGRAD_RETURN_IF_ERROR(cuda::allocate(total, memory));
  std::byte* own =
      static_cast<std::byte*>(memory) + bytes * static_cast<size_t>(communicator.rank());
  Status status = cuda::copy(own, mine, bytes);
  if (status.ok()) status = communicator.all_gather(own, memory, bytes, nullptr);
  if (status.ok()) status = communicator.wait(nullptr);
  if (status.ok()) status = cuda::copy(all, memory, total);
  // Memory that a failed collective may still write to is left to it.
  if (status.ok()) return cuda::release(memory);
  return status;
}

// What messages hold, as tensors: of `ranks` messages, one after the other.
Tensor counts(int64_t ranks, int64_t channels) {
  return {DType::kI64, {ranks}, {2 + 2 * channels}};
}
Tensor sums(int64_t ranks, int64_t channels) {
  return {DType::kF64, {ranks, channels}, {2 + 2 * channels, 1}};
}

// Whether the call would do for one process.
template <class Call>
Status check(const Call& call, Device device) {
  Plan plan;
  NORMGRAD_RETURN_IF_ERROR(Plan::create(call, device, plan));
  if (!call.frozen) return {};
  return {Code::kBadArgument, "frozen: expected false: frozen statistics need no other rank"};
}

bool is_dense(const Tensor& tensor) {
  if (tensor.strides.empty()) return true;
  int64_t stride = 1;
  for (size_t axis = tensor.shape.size(); axis-- > 0; stride *= tensor.shape[axis]) {
    if (tensor.shape[axis] > 1 && tensor.strides[axis] != stride) return false;
  }
  return true;
}

// Bytes of dgamma or dbeta, which wait in workspace as they will lie in memory.
Status measure(const std::optional<Tensor>& tensor, const char* name, int64_t channels,
               size_t& bytes) {
  if (!tensor) return {};
  if (!is_dense(*tensor)) {
    return {Code::kBadStrides, std::string(name) + ": expected a tensor without gaps"};
  }
  bytes = size_of(tensor->dtype) * static_cast<size_t>(channels);
  return {};
}

void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace

struct SyncBatchNorm::Impl {
  Communicator* communicator;
  Common common;
};

SyncBatchNorm::SyncBatchNorm(Communicator& communicator, const BatchNorm& call) {
  throw_if_error(create(communicator, call, *this));
}

// A rank whose call is refused takes part in the comparison, so that no other waits for it.
Status SyncBatchNorm::create(Communicator& communicator, const BatchNorm& call,
                             SyncBatchNorm& layer) noexcept try {
  const Status refused = check(call, communicator.device());
  const Common mine = refused.ok() ? common_of(call) : Common();
  const auto ranks = static_cast<size_t>(communicator.size());
  std::vector<Common> all(ranks);
  NORMGRAD_RETURN_IF_ERROR(gather(communicator, &mine, all.data(), sizeof mine));
  NORMGRAD_RETURN_IF_ERROR(refused);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::string theirs = "rank " + std::to_string(rank);
    if (all[rank].channels < 0) {
      return {Code::kCommunication, "sync_batch_norm: the call of " + theirs + " was refused"};
    }
    const std::string found =
        difference(all[rank], theirs, mine, "rank " + std::to_string(communicator.rank()));
    if (!found.empty()) return {Code::kCommunication, "sync_batch_norm: " + found};
  }
  layer.impl_ = std::make_shared<Impl>(Impl{&communicator, mine});
  return {};
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

Status SyncBatchNorm::plan(const BatchNorm& part, SyncPlan& plan) const noexcept try {
  if (!impl_) return {Code::kBadArgument, "layer: is empty"};
  const Device device = impl_->communicator->device();
  const int64_t ranks = impl_->communicator->size(), channels = impl_->common.channels;
  NORMGRAD_RETURN_IF_ERROR(check(part, device));
  const std::string found = difference(common_of(part), "the part", impl_->common, "the layer");
  if (!found.empty()) return {Code::kBadArgument, found};

  auto made = std::make_shared<SyncPlan::Impl>();
  made->communicator = impl_->communicator;
  made->tag = tag_of(impl_->common, false);
  made->channels = static_cast<size_t>(channels);
  const BatchNormReduce reduce{.x = part.x,
                               .channel_axis = part.channel_axis,
                               .mean = sums(1, channels),
                               .squares = sums(1, channels),
                               .count = counts(1, channels),
                               .names = part.names};
  BatchNormElementwise elementwise{.x = part.x,
                                   .gamma = part.gamma,
                                   .beta = part.beta,
                                   .eps = part.eps,
                                   .channel_axis = part.channel_axis,
                                   .mean = sums(ranks, channels),
                                   .squares = sums(ranks, channels),
                                   .count = counts(ranks, channels),
                                   .running_mean = part.running_mean,
                                   .running_variance = part.running_variance,
                                   .momentum = part.momentum,
                                   .y = part.y,
                                   .saved_mean = part.mean,
                                   .saved_spread = part.spread,
                                   .statistics = part.statistics,
                                   .names = part.names};
  elementwise.names.saved_mean = part.names.mean;
  elementwise.names.saved_spread = part.names.spread;
  NORMGRAD_RETURN_IF_ERROR(Plan::create(reduce, device, made->reduce));
  NORMGRAD_RETURN_IF_ERROR(Plan::create(elementwise, device, made->elementwise));
  plan.impl_ = std::move(made);
  return {};
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

// dgamma and dbeta come from the first step.
Status SyncBatchNorm::plan(const BatchNormBackward& part, SyncPlan& plan) const noexcept try {
  if (!impl_) return {Code::kBadArgument, "layer: is empty"};
  const Device device = impl_->communicator->device();
  const int64_t ranks = impl_->communicator->size(), channels = impl_->common.channels;
  NORMGRAD_RETURN_IF_ERROR(check(part, device));
  Common common = impl_->common;
  common.channels = part.x.shape[static_cast<size_t>(part.channel_axis)];
  common.dtype = part.x.dtype;
  common.gamma = part.gamma.has_value();
  const std::string found = difference(common, "the part", impl_->common, "the layer");
  if (!found.empty()) return {Code::kBadArgument, found};
  if (part.statistics != Statistics::kMeanRstd || common.statistics != Statistics::kMeanRstd) {
    return {Code::kBadArgument,
            std::string(part.names.spread) +
                ": expected a layer and a gradient with kMeanRstd, got kMeanVariance"};
  }
  if (!part.dx) return {Code::kBadArgument, std::string(part.names.dx) + ": expected an output"};
  if (part.accumulate) return {Code::kBadArgument, "accumulate: expected false, got true"};

  auto made = std::make_shared<SyncPlan::Impl>();
  made->communicator = impl_->communicator;
  made->backward = true;
  made->tag = tag_of(impl_->common, true);
  made->channels = static_cast<size_t>(channels);
  NORMGRAD_RETURN_IF_ERROR(measure(part.dgamma, part.names.dgamma, channels, made->dgamma_bytes));
  NORMGRAD_RETURN_IF_ERROR(measure(part.dbeta, part.names.dbeta, channels, made->dbeta_bytes));
  const BatchNormReduceBackward reduce{.x = part.x,
                                       .dy = part.dy,
                                       .mean = part.mean,
                                       .spread = part.spread,
                                       .channel_axis = part.channel_axis,
                                       .sum_dy = sums(1, channels),
                                       .sum_dy_xmu = sums(1, channels),
                                       .count = counts(1, channels),
                                       .dgamma = part.dgamma,
                                       .dbeta = part.dbeta,
                                       .names = part.names};
  const BatchNormElementwiseBackward elementwise{.x = part.x,
                                                 .dy = part.dy,
                                                 .gamma = part.gamma,
                                                 .mean = part.mean,
                                                 .spread = part.spread,
                                                 .channel_axis = part.channel_axis,
                                                 .sum_dy = sums(ranks, channels),
                                                 .sum_dy_xmu = sums(ranks, channels),
                                                 .count = counts(ranks, channels),
                                                 .dx = *part.dx,
                                                 .names = part.names};
  NORMGRAD_RETURN_IF_ERROR(Plan::create(reduce, device, made->reduce));
  NORMGRAD_RETURN_IF_ERROR(Plan::create(elementwise, device, made->elementwise));
  plan.impl_ = std::move(made);
  return {};
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

SyncPlan SyncBatchNorm::plan(const BatchNorm& part) const {
  SyncPlan made;
  throw_if_error(plan(part, made));
  return made;
}

SyncPlan SyncBatchNorm::plan(const BatchNormBackward& part) const {
  SyncPlan made;
  throw_if_error(plan(part, made));
  return made;
}

}  // namespace normgrad
