#include <algorithm>

#include "comm/mpi_communicator.hpp"
#include "comm/reduce.hpp"

namespace normgrad::comm {

Status MpiCommunicator::all_gather(const void* mine, void* all, size_t bytes,
                                   void* stream) noexcept {
  constexpr const char* kName = "all_gather";
  return collective(kName, [&](Clock::time_point start) -> Status {
    if (bytes > 0 && !mine) return null(kName, "mine");
    if (bytes > 0 && !all) return null(kName, "all");
    NORMGRAD_RETURN_IF_ERROR(check_bytes(kName, bytes, size_));

    const Header header{.size = bytes, .call = calls_ + 1};
    const Extent extent(bytes, unit_);
    std::byte* messages = staging(extent.stride * static_cast<size_t>(size_));
    std::byte* own = message_of(messages, extent, rank_);
    put_header(own, header);
    NORMGRAD_RETURN_IF_ERROR(copy(data_of(own), mine, bytes, stream));
    NORMGRAD_RETURN_IF_ERROR(settle(stream));

    ++calls_;
    MPI_Request request;
    const int error = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, messages, extent.count, extent.type,
                                     comm_, &request);
    NORMGRAD_RETURN_IF_ERROR(poll(kName, error, {&request, 1}, start, deadline_));
    NORMGRAD_RETURN_IF_ERROR(compare(messages, extent.stride, header));
    for (int rank = 0; rank < size_; ++rank) {
      NORMGRAD_RETURN_IF_ERROR(
          copy(static_cast<std::byte*>(all) + static_cast<size_t>(rank) * bytes,
               data_of(message_of(messages, extent, rank)), bytes, stream));
    }
    return settle(stream);
  });
}

// Each rank gets everyone's slice of `each` elements and reduces it, into the staging memory's
// message of this rank. The slices that come follow the slices that go.
Status MpiCommunicator::scatter_reduce(Header header, const void* from, int64_t each, int64_t count,
                                       const Extent& extent, Clock::time_point start,
                                       void* stream) {
  const size_t all = extent.stride * static_cast<size_t>(size_);
  std::byte* outgoing = staging(2 * all);
  std::byte* incoming = outgoing + all;
  const size_t width = size_of(header.element);
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t first = std::min(rank * each, count), last = std::min(first + each, count);
    std::byte* message = message_of(outgoing, extent, rank);
    put_header(message, header);
    NORMGRAD_RETURN_IF_ERROR(copy(
        data_of(message), static_cast<const std::byte*>(from) + static_cast<size_t>(first) * width,
        static_cast<size_t>(last - first) * width, stream));
  }
  NORMGRAD_RETURN_IF_ERROR(settle(stream));

  ++calls_;
  const char* name = name_of(header.operation);
  MPI_Request request;
  const int error = MPI_Ialltoall(outgoing, extent.count, extent.type, incoming, extent.count,
                                  extent.type, comm_, &request);
  NORMGRAD_RETURN_IF_ERROR(poll(name, error, {&request, 1}, start, deadline_));
  NORMGRAD_RETURN_IF_ERROR(compare(incoming, extent.stride, header));
  const int64_t mine = std::clamp(count - rank_ * each, int64_t{0}, each);
  reduce_parts(data_of(incoming), extent.stride, size_, mine, header.element, header.reduction,
               data_of(message_of(outgoing, extent, rank_)));
  return {};
}

Status MpiCommunicator::all_reduce(const void* from, void* to, int64_t count, Element element,
                                   Reduction reduction, void* stream) noexcept {
  constexpr const char* kName = "all_reduce";
  return collective(kName, [&](Clock::time_point start) -> Status {
    NORMGRAD_RETURN_IF_ERROR(check_reduction(kName, from, to, count, element, reduction));
    Header header{.size = static_cast<uint64_t>(count),
                  .call = calls_ + 1,
                  .operation = Operation::kAllReduce,
                  .element = element,
                  .reduction = reduction};
    const int64_t each = (count + size_ - 1) / size_;
    const size_t width = size_of(element);
    const Extent extent(static_cast<size_t>(each) * width, unit_);
    NORMGRAD_RETURN_IF_ERROR(scatter_reduce(header, from, each, count, extent, start, stream));

    std::byte* messages = staging_.get();
    header.step = 1;
    put_header(message_of(messages, extent, rank_), header);
    MPI_Request request;
    const int error = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, messages, extent.count, extent.type,
                                     comm_, &request);
    NORMGRAD_RETURN_IF_ERROR(poll(kName, error, {&request, 1}, start, deadline_));
    NORMGRAD_RETURN_IF_ERROR(compare(messages, extent.stride, header));
    for (int rank = 0; rank < size_; ++rank) {
      const int64_t first = std::min(rank * each, count), last = std::min(first + each, count);
      NORMGRAD_RETURN_IF_ERROR(
          copy(static_cast<std::byte*>(to) + static_cast<size_t>(first) * width,
               data_of(message_of(messages, extent, rank)),
               static_cast<size_t>(last - first) * width, stream));
    }
    return settle(stream);
  });
}

Status MpiCommunicator::reduce_scatter(const void* from, void* to, int64_t count_each,
                                       Element element, Reduction reduction,
                                       void* stream) noexcept {
  constexpr const char* kName = "reduce_scatter";
  return collective(kName, [&](Clock::time_point start) -> Status {
    NORMGRAD_RETURN_IF_ERROR(check_reduction(kName, from, to, count_each, element, reduction));
    const Header header{.size = static_cast<uint64_t>(count_each),
                        .call = calls_ + 1,
                        .operation = Operation::kReduceScatter,
                        .element = element,
                        .reduction = reduction};
    const size_t bytes = static_cast<size_t>(count_each) * size_of(element);
    const Extent extent(bytes, unit_);
    NORMGRAD_RETURN_IF_ERROR(
        scatter_reduce(header, from, count_each, count_each * size_, extent, start, stream));
    NORMGRAD_RETURN_IF_ERROR(
        copy(to, data_of(message_of(staging_.get(), extent, rank_)), bytes, stream));
    return settle(stream);
  });
}

// Nothing comes back to the root, which would not hear of a rank that is lost and run ahead of one
// that is late: so they all meet.
Status MpiCommunicator::broadcast(const void* from, void* to, size_t bytes, int root,
                                  void* stream) noexcept {
  constexpr const char* kName = "broadcast";
  return collective(kName, [&](Clock::time_point start) -> Status {
    NORMGRAD_RETURN_IF_ERROR(check_peer(kName, "root", root));
    if (bytes > 0 && !from && rank_ == root) return null(kName, "from");
    if (bytes > 0 && !to) return null(kName, "to");
    NORMGRAD_RETURN_IF_ERROR(check_bytes(kName, bytes, 1));

    const Header header{.size = bytes, .call = calls_ + 1, .operation = Operation::kBroadcast};
    const Extent extent(bytes, unit_);
    std::byte* message = staging(extent.stride);
    put_header(message, rank_ == root ? header : Header());
    if (rank_ == root) {
      NORMGRAD_RETURN_IF_ERROR(copy(data_of(message), from, bytes, stream));
      NORMGRAD_RETURN_IF_ERROR(settle(stream));
    }

    ++calls_;
    MPI_Request request;
    int error = MPI_Ibcast(message, extent.count, extent.type, root, comm_, &request);
    NORMGRAD_RETURN_IF_ERROR(poll(kName, error, {&request, 1}, start, deadline_));
    if (const Header came = header_of(message); came != header) {
      return failure(kName, "rank " + std::to_string(root) + " is at " + describe(came) +
                                "; rank " + std::to_string(rank_) + " is at " + describe(header));
    }
    error = MPI_Ibarrier(comm_, &request);
    NORMGRAD_RETURN_IF_ERROR(poll(kName, error, {&request, 1}, start, deadline_));
    NORMGRAD_RETURN_IF_ERROR(copy(to, data_of(message), bytes, stream));
    return settle(stream);
  });
}

}  // namespace normgrad::comm
