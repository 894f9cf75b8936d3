// Poisoned memory: outputs, gaps and red zones hold it until somebody writes there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace normgrad::reference {

// All bits set: NaN in every type, so whatever reads it by mistake shows it.
inline constexpr std::byte kPoison{0xFF};
inline constexpr size_t kRedZone = 256;

inline bool poisoned(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kPoison; });
}

inline uint64_t fnv1a(std::span<const std::byte> bytes, uint64_t hash = 0xCBF29CE484222325) {
  for (std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  return hash;
}

}  // namespace normgrad::reference
