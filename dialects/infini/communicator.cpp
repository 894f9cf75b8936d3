// Communicators: how they are made, checked and destroyed.
#include "communicator.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "normgrad/cuda.hpp"
#include "normgrad/nccl.hpp"
#include "normgrad/world.hpp"

namespace normgrad::infini {
namespace {

using Seconds = std::chrono::duration<double>;

// An id that is not NCCL's. The CPU's ranks are those of mpirun and need none.
constexpr char kCpuId[] = "normgrad: the processes that mpirun started";
static_assert(sizeof(infinicclUniqueId_t) == sizeof(NcclUniqueId) && sizeof(kCpuId) <= 128);

// Never destroyed: programs destroy communicators while the process exits, possibly after the
// destructors of this library's statics.
struct Live {
  std::mutex mutex;
  std::unordered_set<const InfinicclComm*> comms;
};
Live& live() {
  static auto& set = *new Live;
  return set;
}

infinicclComm_t publish(infiniDevice_t device, int id, std::unique_ptr<Communicator> engine) {
  const int rank = engine->rank(), size = engine->size();
  auto comm =
      std::make_unique<InfinicclComm>(InfinicclComm{device, id, std::move(engine), rank, size});
  const std::lock_guard lock(live().mutex);
  live().comms.insert(comm.get());
  return comm.release();
}

Status read_deadline(Seconds& deadline) {
  const char* const text = std::getenv("NORMGRAD_COMM_DEADLINE");
  if (!text || !*text) {
    deadline = Seconds(300);
    return {};
  }
  char* end = nullptr;
  deadline = Seconds(std::strtod(text, &end));
  if (*end == '\0' && deadline.count() > 0 && std::isfinite(deadline.count())) return {};
  return {Code::kBadArgument,
          "NORMGRAD_COMM_DEADLINE: expected seconds above 0, got '" + std::string(text) + "'"};
}

// `function` on a device that is there: as infinirt says.
infiniStatus_t check_device(const char* function, infiniDevice_t device, int id) {
  int count = 0;
  const bool known = device == INFINI_DEVICE_CPU || device == INFINI_DEVICE_NVIDIA;
  if (known) static_cast<void>(infinirtGetDeviceCount(device, &count));
  if (count == 0) {
    return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                "%s: device type %d is not in this build, or not in this machine", function,
                static_cast<int>(device));
  }
  if (device != INFINI_DEVICE_CPU && (id < 0 || id >= count)) {
    return fail(INFINI_STATUS_DEVICE_NOT_FOUND,
                "%s: device id: expected 0 to %d for device type %d, got %d", function, count - 1,
                static_cast<int>(device), id);
  }
  return INFINI_STATUS_SUCCESS;
}

// NCCL takes CUDA's current device, which programs may change behind infinirt's back.
Status nvidia_rank(int nranks, const infinicclUniqueId_t& comm_id, int rank, int device,
                   Seconds deadline, std::unique_ptr<Communicator>& engine) {
  int current = -1;
  if (Status bad = cuda::get_device(current); !bad.ok()) return bad;
  if (current != device) {
    return {Code::kBadArgument, "expected NVIDIA device " + std::to_string(device) +
                                    " as the thread's CUDA device, got " + std::to_string(current) +
                                    "; call infinirtSetDevice"};
  }
  if (std::strncmp(comm_id.internal, kCpuId, sizeof(kCpuId)) == 0) {
    return {Code::kBadArgument,
            "comm_id: expected one for GPUs, got the CPU's; call infinirtSetDevice before "
            "infinicclGetUniqueId"};
  }
  NcclUniqueId id;
  std::memcpy(id.bytes, comm_id.internal, sizeof(id.bytes));
  return nccl_communicator(nranks, id, rank, deadline, engine);
}

infiniStatus_t init_all_nvidia(const char* function, infinicclComm_t* comms,
                               const std::vector<int>& devices) {
  for (const int id : devices) {
    if (infiniStatus_t status = check_device(function, INFINI_DEVICE_NVIDIA, id)) return status;
  }
  Seconds deadline{};
  std::vector<std::unique_ptr<Communicator>> engines;
  Status status = read_deadline(deadline);
  if (status.ok()) status = nccl_communicators(devices, deadline, engines);
  if (!status.ok()) return answer(function, status);
  for (size_t i = 0; i < devices.size(); ++i) {
    comms[i] = publish(INFINI_DEVICE_NVIDIA, devices[i], std::move(engines[i]));
  }
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t init_cpu(const char* function, infinicclComm_t* comm, int nranks, int rank) {
  Seconds deadline{};
  std::unique_ptr<Communicator> engine;
  Status status = read_deadline(deadline);
  if (status.ok()) status = world_communicator(nranks, rank, deadline, engine);
  if (!status.ok()) return answer(function, status);
  *comm = publish(INFINI_DEVICE_CPU, 0, std::move(engine));
  return INFINI_STATUS_SUCCESS;
}

}  // namespace

infiniStatus_t check(const char* function, infinicclComm_t comm) noexcept {
  if (!comm) return fail(INFINI_STATUS_NULL_POINTER, "%s: comm is null", function);
  return guard([&] {
    const std::lock_guard lock(live().mutex);
    if (live().comms.count(comm) != 0) return INFINI_STATUS_SUCCESS;
    return fail(INFINI_STATUS_BAD_PARAM,
                "%s: comm: expected a live communicator, got %p, which was destroyed or is "
                "something else",
                function, static_cast<const void*>(comm));
  });
}

infiniStatus_t answer(const char* function, const Status& status) noexcept {
  infiniStatus_t code = INFINI_STATUS_INTERNAL_ERROR;
  switch (status.code()) {
    case Code::kOk:
      return INFINI_STATUS_SUCCESS;
    case Code::kNullPointer:
      code = INFINI_STATUS_NULL_POINTER;
      break;
    case Code::kBadDType:
      code = INFINI_STATUS_BAD_TENSOR_DTYPE;
      break;
    case Code::kUnsupportedDevice:
      code = INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED;
      break;
    case Code::kInternal:
    case Code::kCommunication:
      break;
    default:
      code = INFINI_STATUS_BAD_PARAM;
  }
  return fail(code, "%s: %s", function, status.message().c_str());
}

}  // namespace normgrad::infini

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

infiniStatus_t infinicclCommInitAll(infiniDevice_t device_type, infinicclComm_t* comms, int ndevice,
                                    const int* device_ids) {
  if (!comms) return fail(INFINI_STATUS_NULL_POINTER, "%s: comms is null", __func__);
  if (infiniStatus_t status = check_device(__func__, device_type, 0)) return status;
  if (ndevice < 1) {
    return fail(INFINI_STATUS_BAD_PARAM, "%s: ndevice: expected 1 or more, got %d", __func__,
                ndevice);
  }
  if (device_type == INFINI_DEVICE_CPU && ndevice != 1) {
    return fail(INFINI_STATUS_BAD_PARAM,
                "%s: ndevice: expected 1 for the CPU, got %d; ranks on CPUs are processes: start "
                "them with mpirun and call infinicclCommInitRank",
                __func__, ndevice);
  }
  const char* const function = __func__;
  return guard([&] {
    for (int i = 0; i < ndevice; ++i) comms[i] = nullptr;
    if (device_type == INFINI_DEVICE_CPU) return init_cpu(function, comms, 1, 0);
    std::vector<int> devices(static_cast<size_t>(ndevice));
    for (int i = 0; i < ndevice; ++i) devices[i] = device_ids ? device_ids[i] : i;
    return init_all_nvidia(function, comms, devices);
  });
}

// A thread that is on the CPU may make the id for those on GPUs: it is NCCL's where that can be
// had.
infiniStatus_t infinicclGetUniqueId(infinicclUniqueId_t* unique_id) {
  if (!unique_id) return fail(INFINI_STATUS_NULL_POINTER, "%s: unique_id is null", __func__);
  infiniDevice_t device = INFINI_DEVICE_CPU;
  int id = 0;
  if (infiniStatus_t status = infinirtGetDevice(&device, &id)) return status;
  if (infiniStatus_t status = check_device(__func__, device, id)) return status;
  const char* const function = __func__;
  return guard([&] {
    infinicclUniqueId_t made = {};
    normgrad::NcclUniqueId nccl;
    normgrad::Status status(normgrad::Code::kUnsupportedDevice, "there is no GPU");
    if (normgrad::cuda::device_count() > 0) status = nccl_unique_id(nccl);
    if (status.ok()) {
      std::memcpy(made.internal, nccl.bytes, sizeof(nccl.bytes));
    } else if (device == INFINI_DEVICE_CPU) {
      std::memcpy(made.internal, kCpuId, sizeof(kCpuId));
    } else {
      return answer(function, status);
    }
    *unique_id = made;
    return INFINI_STATUS_SUCCESS;
  });
}

infiniStatus_t infinicclCommInitRank(infinicclComm_t* comm, int nranks, infinicclUniqueId_t comm_id,
                                     int rank) {
  if (!comm) return fail(INFINI_STATUS_NULL_POINTER, "%s: comm is null", __func__);
  *comm = nullptr;
  infiniDevice_t device = INFINI_DEVICE_CPU;
  int id = 0;
  if (infiniStatus_t status = infinirtGetDevice(&device, &id)) return status;
  if (infiniStatus_t status = check_device(__func__, device, id)) return status;
  if (nranks < 1) {
    return fail(INFINI_STATUS_BAD_PARAM, "%s: nranks: expected 1 or more, got %d", __func__,
                nranks);
  }
  if (rank < 0 || rank >= nranks) {
    return fail(INFINI_STATUS_BAD_PARAM, "%s: rank: expected 0 to %d, got %d", __func__, nranks - 1,
                rank);
  }
  const char* const function = __func__;
  return guard([&] {
    if (device == INFINI_DEVICE_CPU) return init_cpu(function, comm, nranks, rank);
    Seconds deadline{};
    std::unique_ptr<normgrad::Communicator> engine;
    normgrad::Status status = read_deadline(deadline);
    if (status.ok()) status = nvidia_rank(nranks, comm_id, rank, id, deadline, engine);
    if (!status.ok()) return answer(function, status);
    *comm = publish(device, id, std::move(engine));
    return INFINI_STATUS_SUCCESS;
  });
}

infiniStatus_t infinicclCommDestroy(infinicclComm_t comm) {
  if (!comm) return INFINI_STATUS_SUCCESS;
  if (infiniStatus_t status = check(__func__, comm)) return status;
  return guard([&] {
    {
      const std::lock_guard lock(live().mutex);
      live().comms.erase(comm);
    }
    delete comm;
    return INFINI_STATUS_SUCCESS;
  });
}
