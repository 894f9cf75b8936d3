// The functions on a communicator: arguments checked under their own names, then the engine.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "communicator.hpp"
#include "infiniccl/normgrad.h"

namespace normgrad::infini {
namespace {

Status null(const char* argument) {
  return {Code::kNullPointer, std::string(argument) + " is null"};
}

Status element_of(infiniDtype_t datatype, Element& element) {
  switch (datatype) {
    case INFINI_DTYPE_F32:
      element = Element::kF32;
      return {};
    case INFINI_DTYPE_F16:
      element = Element::kF16;
      return {};
    case INFINI_DTYPE_BF16:
      element = Element::kBF16;
      return {};
    case INFINI_DTYPE_I32:
      element = Element::kI32;
      return {};
    case INFINI_DTYPE_I64:
      element = Element::kI64;
      return {};
    case INFINI_DTYPE_U32:
      element = Element::kU32;
      return {};
    case INFINI_DTYPE_U64:
      element = Element::kU64;
      return {};
    default:
      return {Code::kBadDType, "datatype: expected F32, F16, BF16, I32, I64, U32 or U64, got " +
                                   std::to_string(datatype)};
  }
}

Status reduction_of(infinicclReduceOp_t op, Reduction& reduction) {
  if (static_cast<int>(op) < INFINICCL_SUM || op > INFINICCL_AVG) {
    return {Code::kBadArgument, "op: expected 0 to 4, got " + std::to_string(op)};
  }
  constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProduct, Reduction::kMax,
                                       Reduction::kMin, Reduction::kAverage};
  reduction = kReductions[op];
  return {};
}

// An argument with data; null only where there is none.
struct Data {
  const char* name;
  const void* pointer;
  size_t count;
};

// What all calls check, in this order: null pointers, the type, the count, which is of one rank.
Status check_data(const InfinicclComm& comm, std::initializer_list<Data> all, const char* name,
                  size_t count, infiniDtype_t datatype, Element& element) {
  for (const Data& data : all) {
    if (!data.pointer && data.count > 0) return null(data.name);
  }
  if (Status bad = element_of(datatype, element); !bad.ok()) return bad;
  // As bytes of all ranks it has to fit 64 bits with a sign.
  const size_t most = (size_t{1} << 59) / static_cast<size_t>(comm.world_size);
  if (count <= most) return {};
  return {Code::kBadArgument, std::string(name) + ": expected at most " + std::to_string(most) +
                                  ", got " + std::to_string(count)};
}

Status check_member(const InfinicclComm& comm, const char* name, int rank) {
  if (rank >= 0 && rank < comm.world_size) return {};
  return {Code::kBadArgument, std::string(name) + ": expected 0 to " +
                                  std::to_string(comm.world_size - 1) + ", got " +
                                  std::to_string(rank)};
}

// The counts of AllGatherV and ReduceScatterV: one for each rank.
struct Parts {
  size_t own = 0, largest = 0;
};
Status check_parts(const InfinicclComm& comm, const char* name, const size_t* counts, int nranks,
                   Parts& parts) {
  if (!counts) return null(name);
  if (nranks != comm.world_size) {
    return {Code::kBadArgument, "nranks: expected " + std::to_string(comm.world_size) + ", got " +
                                    std::to_string(nranks)};
  }
  parts.own = counts[comm.rank];
  parts.largest = *std::max_element(counts, counts + nranks);
  return {};
}

}  // namespace
}  // namespace normgrad::infini

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face
using normgrad::Element;
using normgrad::Reduction;
using normgrad::Status;

infiniStatus_t infinicclGroupStart(infinicclComm_t comm) {
  return on_communicator(__func__, comm,
                         [](const InfinicclComm& on) { return on.engine->group_start(); });
}

infiniStatus_t infinicclGroupEnd(infinicclComm_t comm) {
  return on_communicator(__func__, comm,
                         [](const InfinicclComm& on) { return on.engine->group_end(); });
}

infiniStatus_t infinicclAllReduce(const void* sendbuf, void* recvbuf, size_t count,
                                  infiniDtype_t datatype, infinicclReduceOp_t op,
                                  infinicclComm_t comm, infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Reduction reduction{};
    Status status = check_data(on, {{"sendbuf", sendbuf, count}, {"recvbuf", recvbuf, count}},
                               "count", count, datatype, element);
    if (status.ok()) status = reduction_of(op, reduction);
    if (!status.ok()) return status;
    return on.engine->all_reduce(sendbuf, recvbuf, static_cast<int64_t>(count), element, reduction,
                                 stream);
  });
}

infiniStatus_t infinicclBroadcast(const void* sendbuf, void* recvbuf, size_t count,
                                  infiniDtype_t datatype, int root, infinicclComm_t comm,
                                  infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Status status = check_data(
        on, {{"sendbuf", sendbuf, root == on.rank ? count : 0}, {"recvbuf", recvbuf, count}},
        "count", count, datatype, element);
    if (status.ok()) status = check_member(on, "root", root);
    if (!status.ok()) return status;
    return on.engine->broadcast(sendbuf, recvbuf, count * size_of(element), root, stream);
  });
}

infiniStatus_t infinicclSend(const void* sendbuf, size_t count, infiniDtype_t datatype, int peer,
                             infinicclComm_t comm, infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Status status =
        check_data(on, {{"sendbuf", sendbuf, count}}, "count", count, datatype, element);
    if (status.ok()) status = check_member(on, "peer", peer);
    if (!status.ok() || count == 0) return status;
    return on.engine->send(sendbuf, count * size_of(element), peer, stream);
  });
}

infiniStatus_t infinicclRecv(void* recvbuf, size_t count, infiniDtype_t datatype, int peer,
                             infinicclComm_t comm, infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Status status =
        check_data(on, {{"recvbuf", recvbuf, count}}, "count", count, datatype, element);
    if (status.ok()) status = check_member(on, "peer", peer);
    if (!status.ok() || count == 0) return status;
    return on.engine->recv(recvbuf, count * size_of(element), peer, stream);
  });
}

infiniStatus_t infinicclAllGather(const void* sendbuf, void* recvbuf, size_t send_count,
                                  infiniDtype_t datatype, infinicclComm_t comm,
                                  infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Status status =
        check_data(on, {{"sendbuf", sendbuf, send_count}, {"recvbuf", recvbuf, send_count}},
                   "send_count", send_count, datatype, element);
    if (!status.ok()) return status;
    return on.engine->all_gather(sendbuf, recvbuf, send_count * size_of(element), stream);
  });
}

infiniStatus_t infinicclAllGatherV(const void* sendbuf, void* recvbuf, const size_t* recv_counts,
                                   int nranks, infiniDtype_t datatype, infinicclComm_t comm,
                                   infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Parts parts;
    Status status = check_parts(on, "recv_counts", recv_counts, nranks, parts);
    if (!status.ok()) return status;
    status = check_data(on, {{"sendbuf", sendbuf, parts.own}, {"recvbuf", recvbuf, parts.largest}},
                        "recv_counts", parts.largest, datatype, element);
    if (!status.ok()) return status;
    std::vector<size_t> bytes(recv_counts, recv_counts + nranks);
    for (size_t& each : bytes) each *= size_of(element);
    return on.engine->all_gather_v(sendbuf, recvbuf, bytes.data(), stream);
  });
}

infiniStatus_t infinicclReduceScatter(const void* sendbuf, void* recvbuf, size_t recv_count,
                                      infiniDtype_t datatype, infinicclReduceOp_t op,
                                      infinicclComm_t comm, infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Reduction reduction{};
    Status status =
        check_data(on, {{"sendbuf", sendbuf, recv_count}, {"recvbuf", recvbuf, recv_count}},
                   "recv_count", recv_count, datatype, element);
    if (status.ok()) status = reduction_of(op, reduction);
    if (!status.ok()) return status;
    return on.engine->reduce_scatter(sendbuf, recvbuf, static_cast<int64_t>(recv_count), element,
                                     reduction, stream);
  });
}

infiniStatus_t infinicclReduceScatterV(const void* sendbuf, void* recvbuf,
                                       const size_t* send_counts, int nranks,
                                       infiniDtype_t datatype, infinicclReduceOp_t op,
                                       infinicclComm_t comm, infinirtStream_t stream) {
  return on_communicator(__func__, comm, [&](const InfinicclComm& on) {
    Element element{};
    Reduction reduction{};
    Parts parts;
    Status status = check_parts(on, "send_counts", send_counts, nranks, parts);
    if (!status.ok()) return status;
    status = check_data(on, {{"sendbuf", sendbuf, parts.largest}, {"recvbuf", recvbuf, parts.own}},
                        "send_counts", parts.largest, datatype, element);
    if (status.ok()) status = reduction_of(op, reduction);
    if (!status.ok()) return status;
    const std::vector<int64_t> counts(send_counts, send_counts + nranks);
    return on.engine->reduce_scatter_v(sendbuf, recvbuf, counts.data(), element, reduction, stream);
  });
}

infiniStatus_t normgradCommWait(infinicclComm_t comm, infinirtStream_t stream) {
  return on_communicator(__func__, comm,
                         [&](const InfinicclComm& on) { return on.engine->wait(stream); });
}
