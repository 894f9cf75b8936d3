// The instructions of src/cuda/ptx.cuh, emulated.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "machine.hpp"

#define NORMGRAD_HOPPER 1

namespace normgrad::cuda {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::dynamic_memory());
}
template <class T>
T& in_shared() {
  static const char tag = 0;
  return *reinterpret_cast<T*>(emulator::variable(&tag, sizeof(T)));
}

inline uint32_t uniform(uint32_t value) { return value; }
inline void keep_here(float&) {}

using SharedAddress = std::byte*;

inline SharedAddress shared_address(void* pointer) { return static_cast<std::byte*>(pointer); }

inline void sync_some(int barrier, int threads) { emulator::sync_block(barrier, threads); }

using Barrier = uint64_t;

// What an mbarrier has in its 64 bits here.
struct BarrierState {
  uint16_t arrivals = 0;  // expected in every phase
  uint8_t parity = 0;
  uint8_t pending = 0;  // arrivals
  int32_t bytes = 0;    // to come
};
static_assert(sizeof(BarrierState) == sizeof(Barrier));

template <class Change>
void change(Barrier* barrier, const Change& change) {
  BarrierState state;
  std::memcpy(&state, barrier, sizeof(state));
  change(state);
  if (state.pending == 0 && state.bytes == 0) {
    state.parity ^= 1;
    state.pending = static_cast<uint8_t>(state.arrivals);
  }
  std::memcpy(barrier, &state, sizeof(state));
}

inline void init_barrier(Barrier* barrier, int arrivals) {
  const BarrierState state = {static_cast<uint16_t>(arrivals), 0, static_cast<uint8_t>(arrivals)};
  std::memcpy(barrier, &state, sizeof(state));
}
inline void fence_barrier_init() {}
inline void arrive(Barrier* barrier) {
  change(barrier, [](BarrierState& state) { --state.pending; });
}
inline void expect_bytes(Barrier* barrier, uint32_t bytes) {
  change(barrier, [&](BarrierState& state) { state.bytes += static_cast<int32_t>(bytes); });
}
inline void arrive_expecting(Barrier* barrier, uint32_t bytes) {
  expect_bytes(barrier, bytes);
  arrive(barrier);
}
inline void wait(Barrier* barrier, uint32_t parity) {
  for (;;) {
    BarrierState state;
    const Barrier word = *barrier;
    std::memcpy(&state, &word, sizeof(state));
    if (state.parity != parity) return;
    emulator::wait_on(barrier, word);
  }
}

inline void bulk_copy(void* to, const void* from, uint32_t bytes, Barrier* barrier) {
  const auto address = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (address % 16 != 0) throw std::runtime_error("bulk copy: not a multiple of 16");
  emulator::copy_later([=] {
    std::memcpy(to, from, bytes);
    change(barrier, [&](BarrierState& state) { state.bytes -= static_cast<int32_t>(bytes); });
  });
}

inline void prefetch_bulk(const void* from, uint32_t bytes) {
  if ((reinterpret_cast<uintptr_t>(from) | bytes) % 16 != 0) {
    throw std::runtime_error("bulk prefetch: not a multiple of 16");
  }
}
inline void wait_cycles(uint32_t) {}
inline void prefetch(const void*) {}
template <class Unit>
Unit load_last(const Unit* from) {
  return *from;
}
inline void copy_async(SharedAddress to, const void* from) { std::memcpy(to, from, 16); }
inline void copy_line_async(SharedAddress to, const void* from) { copy_async(to, from); }
inline void copy_word_async(SharedAddress to, const void* from) { std::memcpy(to, from, 4); }
inline void wait_for_copies() {}

inline uint32_t cluster_rank() { return emulator::rank_in_cluster(); }
inline void cluster_arrive() { emulator::arrive_at_cluster(); }
inline void cluster_wait() { emulator::wait_for_cluster(); }
inline void sync_cluster() {
  cluster_arrive();
  cluster_wait();
}

inline SharedAddress remote_address(const void* pointer, uint32_t block) {
  return emulator::in_block(pointer, block);
}
inline void send(SharedAddress to, double value, SharedAddress barrier) {
  emulator::copy_later([=] {
    std::memcpy(to, &value, sizeof(value));
    change(reinterpret_cast<Barrier*>(barrier), [](BarrierState& state) { state.bytes -= 8; });
  });
}

struct alignas(16) Words {
  unsigned long long first, second;
};
inline void store_relaxed(Words* to, const Words& words) { *to = words; }
inline Words load_relaxed(const Words* from) {
  const Words words = *from;
  emulator::pause();  // who asks, asks again
  return words;
}

inline float approximate_rsqrt(float value) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(value)));
}
inline float approximate_reciprocal(float value) { return 1 / value; }

}  // namespace normgrad::cuda
