#include "machine.hpp"

#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace normgrad::emulator {
namespace {

using boost::context::fiber;

struct Meeting {
  uint64_t round = 0;
  unsigned arrived = 0;
  void arrive(unsigned expected) {
    if (++arrived < expected) return;
    end_round();
  }
  // Somebody who was expected has gone.
  void expect(unsigned expected) {
    if (arrived > 0 && arrived >= expected) end_round();
  }
  void end_round() {
    arrived = 0;
    ++round;
  }
};

struct Warp {
  unsigned live = 0;
  Meeting meeting;
  std::array<std::array<uint64_t, 32>, 2> places;  // in turn: nobody waits for the last readers
};

struct Block {
  Index index;
  unsigned number = 0, rank = 0, live = 0;  // of those that run together, in its cluster
  std::vector<std::byte> memory;
  size_t start = 0;  // of an aligned place in it
  std::map<const void*, size_t> variables;
  size_t used = 0;
  std::array<Meeting, 16> meetings;
  std::deque<Warp> warps;
};

struct Thread {
  Index index;
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned lane = 0, exchanges = 0;
  uint64_t cluster_round = 0, grid_round = 0;
  const uint64_t* word = nullptr;  // waits while it has this value
  uint64_t value = 0;
  bool done = false;
  fiber context;
};

// Blocks that run together.
struct Machine {
  const Shape& shape;
  std::deque<Block> blocks;
  std::deque<Thread> threads;
  unsigned live = 0;
  uint64_t rounds = 0;   // of the scheduler
  Meeting meeting;       // of all clusters that run
  Meeting grid_meeting;  // between whose steps there may be some of the others
  std::vector<std::function<void()>> copies;
  bool late = false;
  Thread* running = nullptr;
  fiber scheduler;
  std::exception_ptr error;
};

Machine* g_machine = nullptr;
unsigned g_launches = 0;
std::mutex g_mutex;  // one grid at a time

constexpr size_t kStack = 64 * 1024;
constexpr size_t kAlignment = 1024;
constexpr size_t kVariables = 48 * 1024;  // what a block may have beside dynamic shared memory

Thread& self() { return *g_machine->running; }

void end(Thread& thread) {
  thread.done = true;
  thread.warp->meeting.expect(--thread.warp->live);
  thread.block->meetings[0].expect(--thread.block->live);
  g_machine->meeting.expect(--g_machine->live);
  g_machine->grid_meeting.expect(g_machine->live);
}

void add_block(Machine& machine, Index index, unsigned rank) {
  Block& block = machine.blocks.emplace_back();
  const Shape& shape = machine.shape;
  block.index = index;
  block.number = static_cast<unsigned>(machine.blocks.size() - 1);
  block.rank = rank;
  block.live = shape.block.x * shape.block.y * shape.block.z;
  block.used = (shape.shared_bytes + kAlignment - 1) / kAlignment * kAlignment;
  block.memory.resize(kAlignment + block.used + kVariables, std::byte{0xFF});
  block.start = kAlignment - reinterpret_cast<uintptr_t>(block.memory.data()) % kAlignment;
  for (unsigned i = 0; i < block.live; ++i) {
    Thread& thread = machine.threads.emplace_back();
    thread.index = {i % shape.block.x, i / shape.block.x % shape.block.y,
                    i / shape.block.x / shape.block.y};
    thread.block = &block;
    thread.lane = i % 32;
    if (thread.lane == 0) block.warps.emplace_back();
    thread.warp = &block.warps.back();
    ++thread.warp->live;
  }
  machine.live += block.live;
}

// The threads from `first` on, each until it waits; whether one could go on.
bool resume(Machine& machine, size_t first, size_t count) {
  bool moved = false;
  for (size_t i = first; i < std::min(first + count, machine.threads.size()); ++i) {
    Thread& thread = machine.threads[i];
    if (thread.done || (thread.word != nullptr && *thread.word == thread.value)) continue;
    thread.word = nullptr;
    machine.running = &thread;
    thread.context = std::move(thread.context).resume();
    if (machine.error) std::rethrow_exception(machine.error);
    moved = true;
  }
  return moved;
}

// Every thread in turn, until all have ended. In every other launch a warp goes on as long as it
// can before the next has its turn: it may be a step ahead of the others then.
void schedule(Machine& machine) {
  while (machine.live > 0) {
    ++machine.rounds;
    bool moved = false;
    for (size_t first = 0; first < machine.threads.size(); first += 32) {
      while (resume(machine, first, 32)) {
        moved = true;
        if (machine.late) break;
      }
    }
    if (moved) continue;
    if (machine.copies.empty()) throw std::runtime_error("every thread waits");
    const auto copies = std::move(machine.copies);
    machine.copies.clear();
    for (const auto& copy : copies) copy();
  }
  for (const auto& copy : machine.copies) copy();
}

void run_together(Machine& machine, const std::function<void()>& kernel) {
  static boost::context::pooled_fixedsize_stack stacks(kStack);
  for (Thread& thread : machine.threads) {
    thread.context = fiber(std::allocator_arg, stacks, [&](fiber&& scheduler) {
      machine.scheduler = std::move(scheduler);
      try {
        kernel();
      } catch (const boost::context::detail::forced_unwind&) {
        throw;
      } catch (...) {
        machine.error = std::current_exception();
      }
      end(thread);
      return std::move(machine.scheduler);
    });
  }
  g_machine = &machine;
  schedule(machine);
  g_machine = nullptr;
}

}  // namespace

void run(const Shape& shape, const std::function<void()>& kernel) {
  const std::lock_guard lock(g_mutex);
  const bool late = ++g_launches % 2 == 0;
  const unsigned blocks = shape.grid.x * shape.grid.y * shape.grid.z;
  const unsigned together = shape.cooperative ? blocks : shape.cluster;
  if (together == 0 || blocks % together != 0) throw std::runtime_error("clusters do not fit");
  for (unsigned first = 0; first < blocks; first += together) {
    Machine machine = {.shape = shape};
    machine.late = late;
    for (unsigned i = first; i < first + together; ++i) {
      const Index index = {i % shape.grid.x, i / shape.grid.x % shape.grid.y,
                           i / shape.grid.x / shape.grid.y};
      add_block(machine, index, i % shape.cluster);
    }
    run_together(machine, kernel);
  }
}

Index thread_index() { return self().index; }
Index block_index() { return self().block->index; }
Index block_shape() { return g_machine->shape.block; }
Index grid_shape() { return g_machine->shape.grid; }
unsigned lane() { return self().lane; }
unsigned rank_in_cluster() { return self().block->rank; }

void wait_on(const uint64_t* word, uint64_t value) {
  if (*word != value) return;
  self().word = word;
  self().value = value;
  Machine& machine = *g_machine;
  machine.scheduler = std::move(machine.scheduler).resume();
}

void pause() { wait_on(&g_machine->rounds, g_machine->rounds); }

void sync_warp() {
  Warp& warp = *self().warp;
  const uint64_t round = warp.meeting.round;
  warp.meeting.arrive(warp.live);
  wait_on(&warp.meeting.round, round);
}

void sync_block(int barrier, int threads) {
  Meeting& meeting = self().block->meetings.at(static_cast<size_t>(barrier));
  const uint64_t round = meeting.round;
  meeting.arrive(static_cast<unsigned>(threads));
  wait_on(&meeting.round, round);
}
void sync_block() { sync_block(0, static_cast<int>(self().block->live)); }

void arrive_at_cluster() {
  self().cluster_round = g_machine->meeting.round;
  g_machine->meeting.arrive(g_machine->live);
}
void wait_for_cluster() { wait_on(&g_machine->meeting.round, self().cluster_round); }
void arrive_at_grid() {
  self().grid_round = g_machine->grid_meeting.round;
  g_machine->grid_meeting.arrive(g_machine->live);
}
void wait_for_grid() { wait_on(&g_machine->grid_meeting.round, self().grid_round); }

uint64_t* exchange() { return self().warp->places[self().exchanges++ % 2].data(); }

std::byte* dynamic_memory() { return self().block->memory.data() + self().block->start; }

std::byte* variable(const void* tag, size_t bytes) {
  Block& block = *self().block;
  const auto [found, is_new] = block.variables.try_emplace(tag, block.used);
  if (is_new) block.used += (bytes + 127) / 128 * 128;
  if (block.start + block.used > block.memory.size()) {
    throw std::runtime_error("too much shared memory");
  }
  return dynamic_memory() + found->second;
}

std::byte* in_block(const void* pointer, unsigned block) {
  const auto offset = static_cast<const std::byte*>(pointer) - dynamic_memory();
  Block& other = g_machine->blocks.at(self().block->number - self().block->rank + block);
  return other.memory.data() + other.start + offset;
}

void copy_later(const std::function<void()>& copy) {
  if (g_machine->late) {
    g_machine->copies.push_back(copy);
  } else {
    copy();
  }
}

}  // namespace normgrad::emulator
