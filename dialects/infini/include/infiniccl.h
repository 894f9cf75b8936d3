/* Collective communication between devices: NVIDIA GPUs by NCCL, CPUs by MPI, both found when the
 * first communicator is made. docs/infiniccl.md says what each device needs.
 *
 * The ranks of a communicator make the same calls in the same order. On the CPU a call is complete
 * when it returns. On a GPU it is queued on the stream and may be captured into a graph. Counts are
 * elements; a count of 0 moves nothing. Types are F32, F16, BF16, I32, I64, U32 and U64.
 *
 * Null pointers are INFINI_STATUS_NULL_POINTER, other types INFINI_STATUS_BAD_TENSOR_DTYPE, other
 * wrong arguments and communicators that were destroyed INFINI_STATUS_BAD_PARAM. A rank that fails
 * or misses the deadline (environment variable NORMGRAD_COMM_DEADLINE: seconds, read when a
 * communicator is made, 300 if it is not set) is INFINI_STATUS_INTERNAL_ERROR on every other rank,
 * and for every later call. */
#ifndef INFINICCL_H
#define INFINICCL_H

#include "infinirt.h"

typedef enum {
  INFINICCL_SUM = 0,
  INFINICCL_PROD = 1,
  INFINICCL_MAX = 2,
  INFINICCL_MIN = 3,
  INFINICCL_AVG = 4
} infinicclReduceOp_t;

struct InfinicclComm;
typedef struct InfinicclComm *infinicclComm_t;

#define INFINICCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[INFINICCL_UNIQUE_ID_BYTES];
} infinicclUniqueId_t;

/* One communicator for each of these devices, all in this process: comms[i] is rank i. device_ids
 * may be null: 0, 1, 2 and so on. The CPU is one device. */
__INFINI_C __export infiniStatus_t infinicclCommInitAll(infiniDevice_t device_type,
                                                        infinicclComm_t *comms, int ndevice,
                                                        const int *device_ids);

/* One rank makes the id, all get a copy of it, and all make their communicators together, each on
 * its thread's current device. On the CPU the ranks are the processes that mpirun started: nranks
 * is their number, and rank this process's; or nranks is 1. */
__INFINI_C __export infiniStatus_t infinicclGetUniqueId(infinicclUniqueId_t *unique_id);
__INFINI_C __export infiniStatus_t infinicclCommInitRank(infinicclComm_t *comm, int nranks,
                                                         infinicclUniqueId_t comm_id, int rank);

/* NULL is a success. */
__INFINI_C __export infiniStatus_t infinicclCommDestroy(infinicclComm_t comm);

/* Sends and receives in a group happen together, at its end. On a GPU all other calls may stand in
 * a group, too, for all communicators of the thread; on the CPU AllGatherV only. */
__INFINI_C __export infiniStatus_t infinicclGroupStart(infinicclComm_t comm);
__INFINI_C __export infiniStatus_t infinicclGroupEnd(infinicclComm_t comm);

/* sendbuf may be recvbuf. The average of integers is cut towards zero. */
__INFINI_C __export infiniStatus_t infinicclAllReduce(const void *sendbuf, void *recvbuf,
                                                      size_t count, infiniDtype_t datatype,
                                                      infinicclReduceOp_t op, infinicclComm_t comm,
                                                      infinirtStream_t stream);

/* Only root reads sendbuf. */
__INFINI_C __export infiniStatus_t infinicclBroadcast(const void *sendbuf, void *recvbuf,
                                                      size_t count, infiniDtype_t datatype,
                                                      int root, infinicclComm_t comm,
                                                      infinirtStream_t stream);

__INFINI_C __export infiniStatus_t infinicclSend(const void *sendbuf, size_t count,
                                                 infiniDtype_t datatype, int peer,
                                                 infinicclComm_t comm, infinirtStream_t stream);
__INFINI_C __export infiniStatus_t infinicclRecv(void *recvbuf, size_t count,
                                                 infiniDtype_t datatype, int peer,
                                                 infinicclComm_t comm, infinirtStream_t stream);

/* recvbuf has what every rank sent, in the order of the ranks: send_count elements of each, or
 * recv_counts[i] of rank i. nranks is the communicator's. */
__INFINI_C __export infiniStatus_t infinicclAllGather(const void *sendbuf, void *recvbuf,
                                                      size_t send_count, infiniDtype_t datatype,
                                                      infinicclComm_t comm,
                                                      infinirtStream_t stream);
__INFINI_C __export infiniStatus_t infinicclAllGatherV(const void *sendbuf, void *recvbuf,
                                                       const size_t *recv_counts, int nranks,
                                                       infiniDtype_t datatype, infinicclComm_t comm,
                                                       infinirtStream_t stream);

/* sendbuf has a part for every rank, in the order of the ranks: recv_count elements each, or
 * send_counts[i] for rank i. recvbuf gets the reduction of this rank's part. */
__INFINI_C __export infiniStatus_t infinicclReduceScatter(const void *sendbuf, void *recvbuf,
                                                          size_t recv_count, infiniDtype_t datatype,
                                                          infinicclReduceOp_t op,
                                                          infinicclComm_t comm,
                                                          infinirtStream_t stream);
__INFINI_C __export infiniStatus_t infinicclReduceScatterV(
    const void *sendbuf, void *recvbuf, const size_t *send_counts, int nranks,
    infiniDtype_t datatype, infinicclReduceOp_t op, infinicclComm_t comm, infinirtStream_t stream);

#endif
