#include "comm/nccl_library.hpp"

#include <dlfcn.h>

#include <string>

namespace normgrad::comm {
namespace {

constexpr int kOldest = 21700;

std::string version_of(int number) {
  return std::to_string(number / 10000) + "." + std::to_string(number % 10000 / 100) + "." +
         std::to_string(number % 100);
}

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

Status load(Nccl& nccl) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return {Code::kUnsupportedDevice,
            "NCCL: libnccl.so.2 could not be loaded (" + std::string(dlerror()) +
                "); install NVIDIA's NCCL, or set LD_LIBRARY_PATH to where it is"};
  }
  int version = 0;
  if (find(library, "ncclGetVersion", nccl.get_version)) (void)nccl.get_version(&version);
  if (version < kOldest) {
    return {Code::kUnsupportedDevice, "NCCL: expected version " + version_of(kOldest) +
                                          " or newer in libnccl.so.2, got " + version_of(version)};
  }
  const bool found = find(library, "ncclGetErrorString", nccl.get_error_string) &&
                     find(library, "ncclGetLastError", nccl.get_last_error) &&
                     find(library, "ncclGetUniqueId", nccl.get_unique_id) &&
                     find(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config) &&
                     find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error) &&
                     find(library, "ncclCommFinalize", nccl.comm_finalize) &&
                     find(library, "ncclCommDestroy", nccl.comm_destroy) &&
                     find(library, "ncclCommAbort", nccl.comm_abort) &&
                     find(library, "ncclAllGather", nccl.all_gather) &&
                     find(library, "ncclAllReduce", nccl.all_reduce) &&
                     find(library, "ncclReduceScatter", nccl.reduce_scatter) &&
                     find(library, "ncclReduce", nccl.reduce) &&
                     find(library, "ncclBroadcast", nccl.broadcast) &&
                     find(library, "ncclSend", nccl.send) && find(library, "ncclRecv", nccl.recv) &&
                     find(library, "ncclGroupStart", nccl.group_start) &&
                     find(library, "ncclGroupEnd", nccl.group_end);
  if (found) return {};
  return {Code::kUnsupportedDevice,
          "NCCL: libnccl.so.2 lacks a function: " + std::string(dlerror())};
}

}  // namespace

Status load_nccl(const Nccl*& nccl) {
  static Nccl functions;
  static const Status status = load(functions);
  nccl = &functions;
  return status;
}

std::string explain(const Nccl& nccl, NcclResult result, NcclComm comm) {
  std::string text = std::string("NCCL says '") + nccl.get_error_string(result) + "'";
  const char* const detail = nccl.get_last_error(comm);
  if (detail && *detail) text += ", " + std::string(detail);
  return text;
}

NcclType type_of(Element element) {
  constexpr NcclType kTypes[] = {kNcclF32, kNcclF16, kNcclBF16, kNcclF64,
                                 kNcclI32, kNcclI64, kNcclU32,  kNcclU64};
  return kTypes[static_cast<int>(element)];
}

NcclReduction reduction_of(Reduction reduction) {
  constexpr NcclReduction kReductions[] = {kNcclSum, kNcclProduct, kNcclMax, kNcclMin,
                                           kNcclAverage};
  return kReductions[static_cast<int>(reduction)];
}

}  // namespace normgrad::comm
