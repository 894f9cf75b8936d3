#include "reference/placed.hpp"

#include "reference/elements.hpp"
#include "reference/memory.hpp"

namespace normgrad::reference {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

void* Placed::data() const {
  if (count(tensor) == 0) return nullptr;
  return host ? host->data() : const_cast<std::byte*>(memory.data()) + first;
}

void PlacedOperands::allocate(int offset) {
  for (Placed& operand : operands_) {
    const std::vector<int64_t> strides = strides_of(operand.tensor);
    int64_t below = 0, above = count(operand.tensor) == 0 ? 0 : 1;  // in elements
    for (size_t axis = 0; above > 0 && axis < strides.size(); ++axis) {
      const int64_t reach = strides[axis] * (operand.tensor.shape[axis] - 1);
      (reach < 0 ? below : above) += reach;
    }
    const int64_t size = static_cast<int64_t>(size_of(operand.tensor.dtype));
    const int64_t extent = (above - below) * size;
    operand.memory.assign(kAlignment + 2 * kRedZone + offset * size + extent, kPoison);
    const size_t misalignment = reinterpret_cast<uintptr_t>(operand.memory.data()) % kAlignment;
    operand.first = kRedZone + (kAlignment - misalignment) % kAlignment + (offset - below) * size;
  }
}

void PlacedOperands::write(size_t which, std::span<const double> values) {
  Placed& operand = operands_[which];
  if (!values.empty()) scatter(operand.tensor, operand.data(), values);
}

bool PlacedOperands::overwritten(const Placed& operand) const {
  if (operand.use == Use::kUpdated) return true;
  for (const Placed& other : operands_) {
    if (other.host == &operand && other.written()) return true;
  }
  return false;
}

void PlacedOperands::seal() {
  for (Placed& operand : operands_) {
    operand.hash = fnv1a(operand.memory);
    if (overwritten(operand)) operand.before = operand.memory;
  }
}

std::vector<std::span<std::byte>> PlacedOperands::memories() {
  std::vector<std::span<std::byte>> all;
  for (Placed& operand : operands_) all.emplace_back(operand.memory);
  return all;
}

Buffers PlacedOperands::buffers() const {
  Buffers buffers;
  for (const Placed& operand : operands_) {
    if (operand.output) {
      buffers.*operand.output = operand.data();
    } else if (operand.use != Use::kAbsent) {
      buffers.*operand.input = operand.data();
    }
  }
  return buffers;
}

Buffers PlacedOperands::inputs() const {
  Buffers buffers = this->buffers();
  for (const Placed& operand : operands_) {
    if (operand.before.empty() || count(operand.tensor) == 0) continue;
    std::byte* data = const_cast<std::byte*>(operand.before.data()) + operand.first;
    if (operand.output) {
      buffers.*operand.output = data;
    } else {
      buffers.*operand.input = data;
    }
  }
  return buffers;
}

std::string PlacedOperands::damage() const {
  for (const Placed& operand : operands_) {
    const std::string name = operand.name;
    const bool untouched = fnv1a(operand.memory) == operand.hash;
    if ((operand.written() && !operand.host) || overwritten(operand)) {
      std::vector<std::byte> rest = operand.memory;
      erase(operand.tensor, rest.data() + operand.first, kPoison);
      if (!poisoned(rest)) return name + ": written outside its elements";
    } else if (!untouched) {
      return name +
             (operand.use == Use::kInput ? ": an input, but changed" : ": absent, but written");
    }
  }
  return {};
}

uint64_t PlacedOperands::hash() const {
  uint64_t hash = fnv1a({});
  for (const Placed& operand : operands_) {
    if (!operand.written()) continue;
    const Placed& place = operand.host ? *operand.host : operand;
    const std::vector<double> values = gather(operand.tensor, place.memory.data() + place.first);
    hash = fnv1a(std::as_bytes(std::span(values)), hash);
  }
  return hash;
}

}  // namespace normgrad::reference
