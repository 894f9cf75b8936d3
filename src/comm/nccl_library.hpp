// NCCL's C interface, as its documentation describes it, found in libnccl.so.2 at run time.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "normgrad/nccl.hpp"
#include "normgrad/status.hpp"

namespace normgrad::comm {

using NcclComm = void*;

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclCudaError = 1,
  kNcclSystemError = 2,
  kNcclInProgress = 7
};
enum NcclType : int {
  kNcclU8 = 1,
  kNcclI32 = 2,
  kNcclU32 = 3,
  kNcclI64 = 4,
  kNcclU64 = 5,
  kNcclF16 = 6,
  kNcclF32 = 7,
  kNcclF64 = 8,
  kNcclBF16 = 9
};
enum NcclReduction : int {
  kNcclSum = 0,
  kNcclProduct = 1,
  kNcclMax = 2,
  kNcclMin = 3,
  kNcclAverage = 4
};

// The settings of 2.17: NCCL sees by `size` which of its own are missing. INT_MIN and null leave a
// setting as it is.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;  // a call that has to wait for other ranks answers kNcclInProgress instead
  int cluster_size = INT_MIN;
  int min_blocks = INT_MIN;
  int max_blocks = INT_MIN;
  const char* network = nullptr;
};

struct Nccl {
  NcclResult (*get_version)(int*);
  const char* (*get_error_string)(NcclResult);
  const char* (*get_last_error)(NcclComm);
  NcclResult (*get_unique_id)(NcclUniqueId*);
  NcclResult (*comm_init_rank_config)(NcclComm*, int size, NcclUniqueId, int rank, NcclConfig*);
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*);
  NcclResult (*comm_finalize)(NcclComm);
  NcclResult (*comm_destroy)(NcclComm);
  NcclResult (*comm_abort)(NcclComm);
  NcclResult (*all_gather)(const void*, void*, size_t, NcclType, NcclComm, void* stream);
  NcclResult (*all_reduce)(const void*, void*, size_t, NcclType, NcclReduction, NcclComm,
                           void* stream);
  NcclResult (*reduce_scatter)(const void*, void*, size_t, NcclType, NcclReduction, NcclComm,
                               void* stream);
  NcclResult (*reduce)(const void*, void*, size_t, NcclType, NcclReduction, int root, NcclComm,
                       void* stream);
  NcclResult (*broadcast)(const void*, void*, size_t, NcclType, int root, NcclComm, void* stream);
  NcclResult (*send)(const void*, size_t, NcclType, int peer, NcclComm, void* stream);
  NcclResult (*recv)(void*, size_t, NcclType, int peer, NcclComm, void* stream);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
};

// Loaded once, kept until the process ends. kUnsupportedDevice: it is not there, or too old.
Status load_nccl(const Nccl*& nccl);

// "NCCL says '…'". `comm` may be null.
std::string explain(const Nccl& nccl, NcclResult result, NcclComm comm);

NcclType type_of(Element element);
NcclReduction reduction_of(Reduction reduction);

}  // namespace normgrad::comm
