#include "normgrad/communicator.hpp"

#include <cstring>
#include <memory>
#include <new>
#include <string>

namespace normgrad {

Communicator::~Communicator() = default;

// A message from every rank to every rank: as many as an all-to-all has, in one group.
Status Communicator::all_gather_v(const void* mine, void* all, const size_t* bytes,
                                  void* stream) noexcept {
  if (!bytes) return {Code::kNullPointer, "all_gather_v: bytes is null"};
  const int own = rank();
  if (!mine && bytes[own] > 0) return {Code::kNullPointer, "all_gather_v: mine is null"};
  size_t total = 0;
  for (int peer = 0; peer < size(); ++peer) total += bytes[peer];
  if (!all && total > 0) return {Code::kNullPointer, "all_gather_v: all is null"};

  if (Status bad = group_start(); !bad.ok()) return bad;
  Status status;
  auto* part = static_cast<std::byte*>(all);
  for (int peer = 0; peer < size() && status.ok(); part += bytes[peer++]) {
    if (peer == own && part == mine) continue;
    if (bytes[own] > 0) status = send(mine, bytes[own], peer, stream);
    if (bytes[peer] > 0 && status.ok()) status = recv(part, bytes[peer], peer, stream);
  }
  const Status ended = group_end();
  return status.ok() ? ended : status;
}

// Every rank reduces all parts and keeps its own: twice the bytes of a reduce_scatter, for calls
// that are rare.
Status Communicator::reduce_scatter_v(const void* from, void* to, const int64_t* counts,
                                      Element element, Reduction reduction, void* stream) noexcept
    try {
  if (device() != Device::kCpu) {
    return {Code::kUnsupportedDevice, "reduce_scatter_v: this engine has it on the CPU only"};
  }
  if (!counts) return {Code::kNullPointer, "reduce_scatter_v: counts is null"};
  const int own = rank();
  int64_t total = 0, before = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (counts[peer] < 0 || counts[peer] > INT64_MAX / 8 - total) {
      return {Code::kBadArgument, "reduce_scatter_v: counts: expected 0 to 2^60 in all, got " +
                                      std::to_string(counts[peer]) + " for rank " +
                                      std::to_string(peer)};
    }
    if (peer < own) before += counts[peer];
    total += counts[peer];
  }
  if (!to && counts[own] > 0) return {Code::kNullPointer, "reduce_scatter_v: to is null"};
  const size_t width = size_of(element);
  const auto all = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(total) * width);
  Status status = all_reduce(from, all.get(), total, element, reduction, stream);
  if (status.ok() && counts[own] > 0) {
    std::memcpy(to, all.get() + static_cast<size_t>(before) * width,
                static_cast<size_t>(counts[own]) * width);
  }
  return status;
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "reduce_scatter_v: out of memory"};
}

}  // namespace normgrad
