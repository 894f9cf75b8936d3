#include "fake_nccl.hpp"

#include <thread>

#include "comm/nccl_library.hpp"

namespace fake_nccl {

__attribute__((visibility("default"))) Script script;

namespace {

using namespace normgrad::comm;

struct Comm {
  int rank;
  int left = 0;  // polls that are still in progress
};

int depth = 0;

NcclResult note(const std::string& call, NcclComm comm = nullptr) {
  const int rank = comm ? static_cast<Comm*>(comm)->rank : -1;
  script.calls.push_back(rank < 0 ? call : call + " " + std::to_string(rank));
  if (script.at_once != 0 && (!*script.where || call == script.where)) {
    return static_cast<NcclResult>(script.at_once);
  }
  return kNcclSuccess;
}

// A call that other ranks take part in: in progress, unless it waits for the end of a group.
NcclResult begin(const char* call, NcclComm comm) {
  const NcclResult result = note(call, comm);
  if (result != kNcclSuccess) return result;
  static_cast<Comm*>(comm)->left = script.polls;
  return depth > 0 || script.polls == 0 ? kNcclSuccess : kNcclInProgress;
}

}  // namespace
}  // namespace fake_nccl

using namespace fake_nccl;  // NOLINT

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE NcclResult ncclGetVersion(int* version) {
  *version = 22105;
  return kNcclSuccess;
}
FAKE const char* ncclGetErrorString(NcclResult) { return "an error"; }
FAKE const char* ncclGetLastError(NcclComm) { return "its details"; }
FAKE NcclResult ncclGetUniqueId(normgrad::NcclUniqueId* id) {
  *id = {};
  return note("unique_id");
}
FAKE NcclResult ncclCommInitRankConfig(NcclComm* comm, int, normgrad::NcclUniqueId, int rank,
                                       NcclConfig* config) {
  const bool right = config->size == sizeof(NcclConfig) && config->magic == 0xcafebeef &&
                     config->version == 21700 && config->blocking == 0;
  if (!right) return kNcclSystemError;
  *comm = new Comm{rank};
  return begin("init", *comm);
}
FAKE NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* state) {
  Comm& it = *static_cast<Comm*>(comm);
  *state = it.left == 0 ? static_cast<NcclResult>(script.later) : kNcclInProgress;
  if (it.left > 0) --it.left;
  return kNcclSuccess;
}
FAKE NcclResult ncclCommFinalize(NcclComm comm) { return begin("finalize", comm); }
FAKE NcclResult ncclCommDestroy(NcclComm comm) {
  const NcclResult result = note("destroy", comm);
  delete static_cast<Comm*>(comm);
  return result;
}
FAKE NcclResult ncclCommAbort(NcclComm comm) {
  const NcclResult result = note("abort", comm);
  std::this_thread::sleep_for(script.abort_for);
  delete static_cast<Comm*>(comm);
  return result;
}
FAKE NcclResult ncclAllGather(const void*, void*, size_t, NcclType, NcclComm comm, void*) {
  return begin("all_gather", comm);
}
FAKE NcclResult ncclAllReduce(const void*, void*, size_t, NcclType, NcclReduction, NcclComm comm,
                              void*) {
  return begin("all_reduce", comm);
}
FAKE NcclResult ncclReduceScatter(const void*, void*, size_t, NcclType, NcclReduction,
                                  NcclComm comm, void*) {
  return begin("reduce_scatter", comm);
}
FAKE NcclResult ncclReduce(const void*, void*, size_t count, NcclType, NcclReduction, int root,
                           NcclComm comm, void*) {
  script.calls.push_back(std::to_string(count) + " to " + std::to_string(root));
  return begin("reduce", comm);
}
FAKE NcclResult ncclBroadcast(const void*, void*, size_t, NcclType, int, NcclComm comm, void*) {
  return begin("broadcast", comm);
}
FAKE NcclResult ncclSend(const void*, size_t, NcclType, int, NcclComm comm, void*) {
  return begin("send", comm);
}
FAKE NcclResult ncclRecv(void*, size_t, NcclType, int, NcclComm comm, void*) {
  return begin("recv", comm);
}
FAKE NcclResult ncclGroupStart() {
  ++depth;
  return note("group_start");
}
FAKE NcclResult ncclGroupEnd() {
  --depth;
  const NcclResult result = note("group_end");
  return result != kNcclSuccess || depth > 0 || script.polls == 0 ? result : kNcclInProgress;
}
