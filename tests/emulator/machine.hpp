// A GPU on one thread of the CPU: every thread of a grid is a fiber, which runs until it has to
// wait for others. Blocks run one after another, those of a cluster or of a cooperative grid
// together. Nothing is timed and nothing races: what a kernel computes is what is seen, not how
// fast. Waiting without end is an error, and so is memory that was never written: shared memory
// starts as NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace normgrad::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Shape {
  Index grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;
  bool cooperative = false;
};

// Runs a kernel to its end. Throws std::runtime_error if its threads wait for each other forever.
void run(const Shape& shape, const std::function<void()>& kernel);

// For the thread that runs.
Index thread_index();
Index block_index();
Index block_shape();
Index grid_shape();
unsigned lane();
unsigned rank_in_cluster();

// Until the word is another.
void wait_on(const uint64_t* word, uint64_t value);
// Until all others have had their turn.
void pause();

// All threads of the warp, of the cluster or of the grid (these two in two steps) that have not
// ended yet, or `threads` of the block.
void sync_warp();
void sync_block(int barrier, int threads);
void sync_block();
void arrive_at_cluster();
void wait_for_cluster();
void arrive_at_grid();
void wait_for_grid();

// 32 places of 8 bytes, the same ones for all lanes until the next call.
uint64_t* exchange();

// Shared memory of the block: what the launch asked for, and variables by the address of a tag.
std::byte* dynamic_memory();
std::byte* variable(const void* tag, size_t bytes);
// The same place in another block of the cluster.
std::byte* in_block(const void* pointer, unsigned block);

// Asynchronous copies happen at once in one launch, and in the next as late as they may: when every
// thread waits.
void copy_later(const std::function<void()>& copy);

}  // namespace normgrad::emulator
