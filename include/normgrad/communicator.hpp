// Communicator: what the processes of one job do together. The engines are MPI (normgrad/mpi.hpp)
// and NCCL (normgrad/nccl.hpp); a program with another one derives from it.
//
// The ranks make the same calls in the same order. Every call has a deadline, which is the
// communicator's: when a rank dies, stalls or does not come, the others answer kCommunication with
// a sentence that names the operation and the seconds, and what they would have written is
// untouched. From then on the communicator is broken and refuses every call at once, with the first
// failure's sentence. A call that is refused for its arguments breaks nothing, and no other rank
// hears of it.
//
// An engine on the CPU is done when a call returns. One on a GPU queues the call on `stream`, and
// wait() tells how it ended. `from` may be `to`; otherwise memory must not overlap. Pointers may
// be null where there is nothing to move. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "normgrad/export.hpp"
#include "normgrad/plan.hpp"
#include "normgrad/status.hpp"

namespace normgrad {

enum class Reduction : uint8_t { kSum, kProduct, kMax, kMin, kAverage };
enum class Element : uint8_t { kF32, kF16, kBF16, kF64, kI32, kI64, kU32, kU64 };

constexpr const char* name_of(Reduction reduction) {
  constexpr const char* kNames[] = {"sum", "product", "max", "min", "average"};
  return kNames[static_cast<int>(reduction)];
}
constexpr size_t size_of(Element element) {
  constexpr size_t kSizes[] = {4, 2, 2, 8, 4, 8, 4, 8};
  return kSizes[static_cast<int>(element)];
}
constexpr const char* name_of(Element element) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "f64", "i32", "i64", "u32", "u64"};
  return kNames[static_cast<int>(element)];
}

class NORMGRAD_EXPORT Communicator {
 public:
  virtual ~Communicator();

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual Device device() const noexcept = 0;  // where the memory of every call lies

  // all = what every rank had in `mine`, `bytes` each, in the order of the ranks. In place: mine is
  // all + rank * bytes.
  virtual Status all_gather(const void* mine, void* all, size_t bytes, void* stream) noexcept = 0;

  // to = the reduction of every rank's `from`. An average of integers is cut towards zero.
  virtual Status all_reduce(const void* from, void* to, int64_t count, Element element,
                            Reduction reduction, void* stream) noexcept = 0;

  // `from` has count_each elements per rank; to = the reduction of this rank's part of it. In
  // place: to is from + rank * count_each elements.
  virtual Status reduce_scatter(const void* from, void* to, int64_t count_each, Element element,
                                Reduction reduction, void* stream) noexcept = 0;

  // The same two with parts of different sizes: one for each rank, which every rank knows. In
  // place: mine, or to, is this rank's part of the other. Engines with something better than what
  // all of them can do override these; reduce_scatter_v on a GPU has to be.
  virtual Status all_gather_v(const void* mine, void* all, const size_t* bytes,
                              void* stream) noexcept;
  virtual Status reduce_scatter_v(const void* from, void* to, const int64_t* counts,
                                  Element element, Reduction reduction, void* stream) noexcept;

  // to = what `root` had in `from`, which only root reads.
  virtual Status broadcast(const void* from, void* to, size_t bytes, int root,
                           void* stream) noexcept = 0;

  // One message to or from a peer, which may be this rank; messages between two ranks keep their
  // order, and a send waits for its receive. Sends and receives between group_start and group_end
  // happen together, at group_end, so that ranks can exchange messages; groups nest. Nothing else
  // is called inside a group.
  virtual Status send(const void* data, size_t bytes, int peer, void* stream) noexcept = 0;
  virtual Status recv(void* data, size_t bytes, int peer, void* stream) noexcept = 0;
  virtual Status group_start() noexcept = 0;
  virtual Status group_end() noexcept = 0;

  // Returns when what is queued on `stream` is done, a rank failed, or the deadline passed. On the
  // CPU nothing is ever queued.
  virtual Status wait(void* stream) noexcept = 0;
};

}  // namespace normgrad
