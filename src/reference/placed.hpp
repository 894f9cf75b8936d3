// The operands of a call in memory of their own: poisoned, with red zones, and with a copy of what
// the call may overwrite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad::reference {

enum class Use {
  kAbsent,
  kInput,
  kOutput,
  kUpdated,  // read, then written
};

struct Placed {
  const char* name = "";
  const void* Buffers::*input = nullptr;  // its pointer in a call: one of these two
  void* Buffers::*output = nullptr;
  Use use = Use::kAbsent;
  Tensor tensor = {};
  Placed* host = nullptr;  // the input whose memory it has, if not its own

  std::vector<std::byte> memory = {};
  std::vector<std::byte> before = {};  // a copy of the memory, if the call overwrites it
  size_t first = 0;                    // index of the byte of the element with all indices 0
  uint64_t hash = 0;                   // of the memory of an input

  bool written() const { return use == Use::kOutput || use == Use::kUpdated; }
  void* data() const;  // as a call takes it; null if there are no elements
};

class PlacedOperands {
 public:
  explicit PlacedOperands(std::vector<Placed> operands) : operands_(std::move(operands)) {}

  Placed& operator[](size_t which) { return operands_[which]; }
  const Placed& operator[](size_t which) const { return operands_[which]; }

  // Makes the memory, every pointer `offset` elements from a multiple of 64 bytes.
  void allocate(int offset);
  // Rounds values to the type of an operand.
  void write(size_t which, std::span<const double> values);
  // The inputs are there: from now on nothing but outputs may change.
  void seal();

  std::vector<std::span<std::byte>> memories();

  // The pointers of the call. Absent outputs keep theirs: the call must not follow them.
  Buffers buffers() const;
  // The same, but inputs are what they were before the call.
  Buffers inputs() const;

  // What was written anywhere but in the elements of outputs; empty: nothing.
  std::string damage() const;
  // Over the elements of all outputs.
  uint64_t hash() const;

 private:
  bool overwritten(const Placed& operand) const;

  std::vector<Placed> operands_;
};

}  // namespace normgrad::reference
