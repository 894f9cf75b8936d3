// Messages of the MPI engine: a header that says what its sender is doing, so that ranks that do
// different things find out instead of mixing up their data, then the data.
#pragma once

#include <cstring>
#include <string>

#include "normgrad/mpi.hpp"

namespace normgrad::comm {

enum class Operation : uint8_t { kAllGather, kAllReduce, kReduceScatter, kBroadcast, kMessage };

struct Header {
  uint64_t size = 0;  // bytes, or elements of a reduction
  uint32_t call = 0;  // counts this communicator's collectives; 0 for messages between two ranks
  Operation operation = Operation::kAllGather;
  uint8_t step = 0;  // of an all_reduce, which has two
  Element element = Element::kF32;
  Reduction reduction = Reduction::kSum;

  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 16, "data behind it stays aligned");

inline const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"all_gather", "all_reduce", "reduce_scatter", "broadcast",
                                    "message"};
  return kNames[static_cast<int>(operation)];
}

// "all_reduce of 40 f32 (sum)"
inline std::string describe(const Header& header) {
  if (header.operation > Operation::kMessage || header.element > Element::kU64 ||
      header.reduction > Reduction::kAverage) {
    return "something else";
  }
  const std::string size = name_of(header.operation) + (" of " + std::to_string(header.size));
  if (header.operation != Operation::kAllReduce && header.operation != Operation::kReduceScatter) {
    return size + " bytes";
  }
  return size + " " + normgrad::name_of(header.element) + " (" +
         normgrad::name_of(header.reduction) + ")";
}

// A message as MPI counts it, in int: bytes, or units of 1 MiB where bytes would not fit.
struct Extent {
  static constexpr size_t kUnit = size_t{1} << 20;

  size_t stride;  // bytes from one message to the next
  int count;
  MPI_Datatype type;

  Extent(size_t bytes, MPI_Datatype unit) {
    const bool fits = bytes < size_t{1} << 30;
    const size_t step = fits ? sizeof(Header) : kUnit;
    stride = (sizeof(Header) + bytes + step - 1) / step * step;
    count = static_cast<int>(fits ? stride : stride / kUnit);
    type = fits ? MPI_BYTE : unit;
  }
};

inline std::byte* data_of(std::byte* message) { return message + sizeof(Header); }
inline void put_header(std::byte* message, const Header& header) {
  std::memcpy(message, &header, sizeof(Header));
}
inline Header header_of(const std::byte* message) {
  Header header;
  std::memcpy(&header, message, sizeof(Header));
  return header;
}

}  // namespace normgrad::comm
