// A block's part in the deal of channels_team.cu, and the warps that sum and write.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "cuda/channel_sums.cuh"
#include "cuda/channels_team_deal.hpp"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {

constexpr int kTeamWarps = Deal::kWarps;
constexpr int kLooks = Deal::kChunk / 32;
constexpr int kRounds = 8;  // channels on their way in a block

// Whether chunks are copied in bulk: all of them start at multiples of 16 bytes and end so.
struct Bulk {
  bool x, dy, dx;

  bool all() const { return x && dy && dx; }
};

// A warp's chunk of a channel, the same in each.
struct Piece {
  int sample, units;
  int64_t first;  // element of the sample's run
};

// What the warps of a block share.
struct Board {
  Barrier full[kTeamWarps][Deal::kMostSlots];
  Barrier summed[kRounds], known[kRounds];
  Barrier arrived[kRounds];  // the sums of a cluster
  Sums inbox[kRounds][Deal::kMostCluster];
  Piece pieces[kTeamWarps][Deal::kMostSlots];
  Centring centring[kRounds];
  Sums sums[kRounds][kTeamWarps];
  Finished channel[kRounds];
  Sums scratch[kTeamWarps];
  int team, rank, rounds;
  cooperative_groups::grid_group::arrival_token token;
};

// Units at any address, element by element, for lanes of a warp. (Inlined, these would cost the
// other paths their registers.) `length`: elements that are there.
template <class T>
__device__ __noinline__ void load_odd(uint4* slot, const T* from, int units, int64_t length) {
#pragma unroll 1
  for (int unit = threadIdx.x % 32; unit < units; unit += 32) {
    const int first = unit * kUnit<T>;
    const auto count = static_cast<int>(min(int64_t{kUnit<T>}, length - first));
    slot[unit] = load_unit(from + first, count, false);
  }
}
template <class T>
__device__ __noinline__ void store_odd(T* to, uint4 unit, int64_t length) {
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i < length) to[i] = reinterpret_cast<const T*>(&unit)[i];
  }
}

// kBulk: chunks of all three tensors are multiples of 16 bytes, at such addresses.
template <class T, bool kBulk>
struct Part {
  const ChannelsProblem& problem;
  const Buffers& buffers;
  const Deal& deal;
  const Bulk& bulk;
  Board& board;
  uint4* slots;

  // Read when they are needed: the registers are for the data.
  __device__ int team() const { return static_cast<const volatile int&>(board.team); }
  __device__ int rank() const { return static_cast<const volatile int&>(board.rank); }
  __device__ int64_t channel_of(int round) const {
    return team() + static_cast<int64_t>(round) * deal.teams;
  }
  __device__ int rounds() const { return static_cast<const volatile int&>(board.rounds); }
};

// A chunk of a channel.
struct Turn {
  int round, index;
};

// Where a channel's chunks lie: each ring has room for some channels.
struct Place {
  int first = 0, others = 0;

  // That many channels further, fewer than there is room for twice.
  __device__ Place after(const Deal& deal, int channels) const {
    const int first_at = first + channels, others_at = others + channels;
    return {first_at < deal.first_room ? first_at : first_at - deal.first_room,
            others_at < deal.others_room ? others_at : others_at - deal.others_room};
  }
  __device__ int slot(const Deal& deal, int index) const {
    return index == 0 ? first : deal.first_room + others * (deal.share - 1) + index - 1;
  }
};

// Sums of a chunk's units in float32: elements that are four apart together.
template <class T>
struct ChunkSums {
  float dy[4] = {}, dy_t[4] = {};

  __device__ void add(const uint4& x_unit, const uint4& dy_unit, const Centring& centring) {
    float x_values[kUnit<T>], dy_values[kUnit<T>];
    unpack<T>(x_unit, x_values);
    unpack<T>(dy_unit, dy_values);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      dy[i % 4] += dy_values[i];
      dy_t[i % 4] = fmaf(dy_values[i], centring(x_values[i]), dy_t[i % 4]);
    }
  }
  __device__ Sums total() const { return {tree_sum(dy), tree_sum(dy_t)}; }
};

// Before it, every block has emptied its places in the workspace.
__device__ inline void wait_for_grid(Board& board) {
  cooperative_groups::this_grid().barrier_wait(std::move(board.token));
}

// A warp has two rings of slots: one for the first chunk of each channel, which leaves it for the
// registers as soon as these are free, one for the others.
template <class T, bool kBulk>
struct Worker : Part<T, kBulk> {
  int warp, lane;

  __device__ Worker(const Part<T, kBulk>& part) : Part<T, kBulk>(part) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
  }

  // Lane i notes the warp's chunk i.
  __device__ void note_pieces() const {
    const Deal& deal = this->deal;
    if (lane < deal.share) {
      const int chunk = (lane * kTeamWarps + warp) * deal.blocks + this->rank();
      const int chunks = static_cast<int>(deal.chunks), sample = chunk / chunks;
      const int first = (chunk - sample * chunks) * deal.chunk;
      const bool there = chunk < deal.in_all;
      this->board.pieces[warp][lane] = {
          sample, there ? min(deal.chunk, static_cast<int>(deal.units) - first) : 0,
          static_cast<int64_t>(first) * kUnit<T>};
    }
    __syncwarp();
  }
  __device__ uint4* slot_at(int slot) const {
    return this->slots + (warp * this->deal.slots + slot) * 2 * this->deal.chunk;
  }
  template <class U>
  __device__ U* at(U* data, const ChannelsProblem::Strides& strides, int round,
                   const Piece& p) const {
    return data + this->channel_of(round) * strides.channel + p.sample * strides.sample + p.first;
  }

  // Fills a slot: by a bulk copy, or by what each lane will look at.
  __device__ void load(const Turn& turn, int slot) const {
    const bool bulk_x = kBulk || this->bulk.x, bulk_dy = kBulk || this->bulk.dy;
    if (lane > 0 && bulk_x && bulk_dy) return;
    const Piece p = this->board.pieces[warp][turn.index];
    const T* x = at(static_cast<const T*>(this->buffers.x), this->problem.x, turn.round, p);
    const T* dy = at(static_cast<const T*>(this->buffers.dy), this->problem.dy, turn.round, p);
    uint4* x_slot = slot_at(slot);
    uint4* dy_slot = x_slot + this->deal.chunk;
    Barrier* full = &this->board.full[warp][slot];
    if (lane == 0) {
      const uint32_t bytes = 16 * p.units;
      expect_bytes(full, bytes * (bulk_x + bulk_dy));
      if (bulk_x && bytes > 0) bulk_copy(x_slot, x, bytes, full);
      if (bulk_dy && bytes > 0) bulk_copy(dy_slot, dy, bytes, full);
      arrive(full);
    }
    const int64_t length = this->problem.length - p.first;
    if (!bulk_x) load_odd(x_slot, x, p.units, length);
    if (!bulk_dy) load_odd(dy_slot, dy, p.units, length);
  }

  // As many channels as there is room for, in the order of their use.
  __device__ void load_first() const {
    const Deal& deal = this->deal;
    const int most = min(this->rounds(), max(deal.first_room, deal.others_room));
#pragma unroll 1
    for (int round = 0; round < most; ++round) {
#pragma unroll 1
      for (int i = 0; i < deal.share; ++i) {
        const bool fits = round < (i == 0 ? deal.first_room : deal.others_room);
        if (fits) load({round, i}, Place{round, round}.slot(deal, i));
      }
    }
  }

  // A lane's units of a slot from k on; those that are not there read as 0.
  template <int kCount>
  __device__ void look(const uint4* slot, int units, int k, uint4 (&found)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int unit = lane + 32 * (k + i);
      found[i] = unit < units ? slot[unit] : uint4{};
    }
  }

  __device__ void add(int index, int slot, const Centring& centring, Sums& sums) const {
    const int units = this->board.pieces[warp][index].units;
    const uint4* x_slot = slot_at(slot);
    ChunkSums<T> chunk;
#pragma unroll
    for (int k = 0; k < kLooks; k += 2) {
      uint4 x[2], dy[2];
      look(x_slot, units, k, x);
      look(x_slot + this->deal.chunk, units, k, dy);
#pragma unroll
      for (int i = 0; i < 2; ++i) chunk.add(x[i], dy[i], centring);
    }
    sums.add(chunk.total());
  }

  __device__ void write(const Turn& turn, const DxScalars& scalars, const uint4 (&x_units)[kLooks],
                        const uint4 (&dy_units)[kLooks]) const {
    const Piece p = this->board.pieces[warp][turn.index];
    T* dx = at(static_cast<T*>(this->buffers.dx), this->problem.dx, turn.round, p);
#pragma unroll
    for (int k = 0; k < kLooks; ++k) {
      const int unit = lane + 32 * k;
      float x[kUnit<T>], dy[kUnit<T>], values[kUnit<T>];
      unpack<T>(x_units[k], x);
      unpack<T>(dy_units[k], dy);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) values[i] = scalars.dx(x[i], dy[i]);
      const uint4 packed = pack<T>(values);
      if (unit >= p.units) continue;
      if (kBulk || this->bulk.dx) {
        reinterpret_cast<uint4*>(dx)[unit] = packed;
      } else {
        const int first = unit * kUnit<T>;
        store_odd(dx + first, packed, this->problem.length - p.first - first);
      }
    }
  }

  // Sums run some channels ahead of dx; what lies beyond is on its way.
  __device__ void work() const {
    const Deal& deal = this->deal;
    uint32_t phases = 0;  // of the slots' barriers, a bit each
    // The first rounds only add.
    Place written = {deal.ahead > 0 ? deal.first_room - deal.ahead : 0,
                     deal.ahead > 0 ? deal.others_room - deal.ahead : 0};
    uint4 x[kLooks], dy[kLooks];
    // Reads a chunk; its slot is free from there on.
    const auto take = [&](const Turn& turn, int room) {
      const int units = this->board.pieces[warp][turn.index].units;
      const int slot = written.slot(deal, turn.index);
      look(slot_at(slot), this->problem.frozen ? 0 : units, 0, x);
      look(slot_at(slot) + deal.chunk, units, 0, dy);
      __syncwarp();
      if (this->rounds() > turn.round + room) load({turn.round + room, turn.index}, slot);
    };
    const int take_at = !deal.holds() ? -1 : deal.ahead > 0 ? 0 : 1;
#pragma unroll 1
    for (int round = -deal.ahead; round < this->rounds();
         ++round, written = written.after(deal, 1)) {
      const int next = round + deal.ahead, place = next % kRounds;
      Sums sums;
#pragma unroll 1
      for (int i = 0;; ++i) {
        if (i == take_at && round >= 0) take({round, 0}, deal.first_room);
        if (i == deal.share || next >= this->rounds()) break;
        const int slot = written.after(deal, deal.ahead).slot(deal, i);
        wait(&this->board.full[warp][slot], phases >> slot & 1);
        phases ^= 1u << slot;
        add(i, slot, this->board.centring[place], sums);
      }
      if (next < this->rounds()) {
        sums = warp_sum(sums);
        if (lane == 0) {
          this->board.sums[place][warp] = sums;
          arrive(&this->board.summed[place]);
        }
      }
      // From here on sums travel.
      if (next == 0 && deal.travels()) wait_for_grid(this->board);
      if (round < 0) continue;
      wait(&this->board.known[round % kRounds], round / kRounds & 1);
      const Finished& channel = this->board.channel[round % kRounds];
      const DxScalars scalars = channel.scalars;
      const bool wide = channel.wide;
#pragma unroll 1
      for (int i = 0; i < deal.share; ++i) {
        if (i > 0 || !deal.holds()) {
          take({round, i}, i == 0 ? deal.first_room : deal.others_room);
        }
        if (!wide) write({round, i}, scalars, x, dy);
      }
      if (wide && this->rank() == 0) {
        wide_channel<T>(this->problem, this->buffers, this->channel_of(round),
                        {static_cast<int>(threadIdx.x), 32 * kTeamWarps, 1}, this->board.scratch);
      }
    }
  }
};

}  // namespace normgrad::cuda
