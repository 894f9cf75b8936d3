#include "normgrad/nccl.hpp"

#include <algorithm>
#include <cmath>

#include "comm/nccl_communicator.hpp"

namespace normgrad {
namespace {

using namespace comm;

Status check_deadline(Seconds deadline) {
  if (deadline.count() > 0 && std::isfinite(deadline.count())) return {};
  return {Code::kBadArgument,
          "deadline: expected seconds above 0, got " + std::to_string(deadline.count())};
}

// Begins all of them in one group: each alone would wait for the others.
NcclResult begin_all(const Nccl& nccl, std::span<const int> devices, Seconds deadline,
                     std::vector<std::unique_ptr<NcclCommunicator>>& made) {
  NcclUniqueId id;
  NcclResult result = nccl.get_unique_id(&id);
  if (result == kNcclSuccess) result = nccl.group_start();
  if (result != kNcclSuccess) return result;
  const int size = static_cast<int>(devices.size());
  for (int rank = 0; rank < size && result == kNcclSuccess; ++rank) {
    const OnDevice on_device(devices[rank]);
    made.push_back(std::make_unique<NcclCommunicator>(nccl, rank, size, devices[rank], deadline));
    result = on_device.status().ok() ? made.back()->begin(id) : kNcclCudaError;
    if (result == kNcclInProgress) result = kNcclSuccess;
  }
  const NcclResult ended = nccl.group_end();
  return result == kNcclSuccess ? ended : result;
}

Status check_devices(std::span<const int> devices) {
  const int count = cuda::device_count();
  if (count == 0) return {Code::kUnsupportedDevice, "devices: expected a CUDA device, found none"};
  if (devices.empty()) return {Code::kBadArgument, "devices: expected one or more, got none"};
  for (auto id = devices.begin(); id != devices.end(); ++id) {
    if (*id < 0 || *id >= count) {
      return {Code::kBadArgument, "devices: expected numbers below " + std::to_string(count) +
                                      ", got " + std::to_string(*id)};
    }
    if (std::find(devices.begin(), id, *id) != id) {
      return {Code::kBadArgument,
              "devices: expected different ones, got " + std::to_string(*id) + " twice"};
    }
  }
  return {};
}

}  // namespace

Status nccl_unique_id(NcclUniqueId& id) noexcept try {
  const Nccl* nccl = nullptr;
  if (Status bad = load_nccl(nccl); !bad.ok()) return bad;
  NcclUniqueId made;
  const NcclResult result = nccl->get_unique_id(&made);
  if (result != kNcclSuccess)
    return {Code::kCommunication, "nccl_unique_id: " + explain(*nccl, result, nullptr)};
  id = made;
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status nccl_communicator(int size, const NcclUniqueId& id, int rank, Seconds deadline,
                         std::unique_ptr<Communicator>& communicator) noexcept try {
  if (size < 1) {
    return {Code::kBadArgument, "size: expected 1 or more, got " + std::to_string(size)};
  }
  if (rank < 0 || rank >= size) {
    return {Code::kBadArgument,
            "rank: expected 0 to " + std::to_string(size - 1) + ", got " + std::to_string(rank)};
  }
  if (Status bad = check_deadline(deadline); !bad.ok()) return bad;
  int device = 0;
  if (Status bad = cuda::get_device(device); !bad.ok()) return bad;
  const Nccl* nccl = nullptr;
  if (Status bad = load_nccl(nccl); !bad.ok()) return bad;
  auto made = std::make_unique<NcclCommunicator>(*nccl, rank, size, device, deadline);
  if (Status bad = made->end("nccl_communicator", made->begin(id)); !bad.ok()) return bad;
  communicator = std::move(made);
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status nccl_communicators(std::span<const int> devices, Seconds deadline,
                          std::vector<std::unique_ptr<Communicator>>& communicators) noexcept try {
  if (Status bad = check_devices(devices); !bad.ok()) return bad;
  if (Status bad = check_deadline(deadline); !bad.ok()) return bad;
  const Nccl* nccl = nullptr;
  if (Status bad = load_nccl(nccl); !bad.ok()) return bad;
  std::vector<std::unique_ptr<NcclCommunicator>> made;
  NcclResult result = begin_all(*nccl, devices, deadline, made);
  if (made.empty())
    return {Code::kCommunication, "nccl_communicators: " + explain(*nccl, result, nullptr)};
  if (result == kNcclSuccess) result = kNcclInProgress;
  for (auto& each : made) {
    if (Status bad = each->end("nccl_communicators", result); !bad.ok()) return bad;
  }
  communicators.clear();
  for (auto& each : made) communicators.push_back(std::move(each));
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace normgrad
