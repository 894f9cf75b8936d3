// BatchNorm backward along the length, large channels: teams of blocks take a channel each, keep it
// in shared memory between the sums and dx, and take the next. Formulas as in channels_two_pass.cu.
//
// 3 elements moved per element (x and dy read, dx written), the least there is. On an H200, beside
// a copy of as many bytes: 32x64x12544 bf16 54 us (37), fp32 97 (74); 32x512x784 fp32 42 (38);
// 8x32x262144 bf16 147 (96), fp32 312 (190). What bounds it is the travel of the sums, which takes
// 2 us where memory is idle and more where it is busy.
//
// One block per multiprocessor, all at once (a cooperative launch). A channel is cut into chunks of
// at most 2 KiB of a sample's run; each warp has its share of every channel and a ring of slots for
// it, which it fills by bulk copies of its own: no barrier between warps anywhere in the loop. A
// warp adds up the chunks of a channel, then those of the next or two while the sums travel, then
// writes dx of the first and refills each slot as it is done with it.
//
// The sums of the warps meet in four warps of their own, in turn, which send them to the team and
// wait for the others: each block has a place per channel in the workspace, holding what no sum can
// be until the sum is there, so that data and flag come in one trip. They are set to that at the
// start, under a barrier over the grid that hides behind the first loads.
//
// Order of the sums: a lane's units of a chunk in float32, then float64: its chunks, a warp's
// lanes, a block's warps, the team's blocks. Chunks and teams follow from shape and dtype.
#include <cooperative_groups.h>

#include "cuda/channel_exchange.cuh"
#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/channels_team_deal.hpp"
#include "cuda/device.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kWarps = Deal::kWarps;
constexpr int kCarriers = 4;  // warps that exchange
constexpr int kThreads = 32 * (kWarps + kCarriers);
constexpr int kChunk = Deal::kChunk;
constexpr int kLooks = kChunk / 32;
constexpr int kMostSlots = Deal::kMostSlots;
constexpr int kAhead = 2;   // channels whose sums are made before dx of one, at most
constexpr int kRounds = 8;  // channels on their way in a block

// Whether chunks are copied in bulk: all of them start at multiples of 16 bytes and end so.
struct Bulk {
  bool x, dy, dx;
};
Bulk bulk_of(const ChannelsProblem& problem, const Buffers& buffers) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const auto whole = [&](const void* data, const ChannelsProblem::Strides& strides) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides.sample * size % 16 == 0 &&
           strides.channel * size % 16 == 0 && problem.length * size % 16 == 0;
  };
  return {whole(buffers.x, problem.x), whole(buffers.dy, problem.dy),
          whole(buffers.dx, problem.dx)};
}

// A warp's chunk of a channel, the same in each.
struct Piece {
  int sample, units;
  int64_t first;  // element of the sample's run
};

// What the warps of a block share.
struct Board {
  Barrier full[kWarps][kMostSlots];
  Barrier summed[kRounds], known[kRounds];
  Piece pieces[kWarps][kMostSlots];
  Centring centring[kRounds];
  Sums sums[kRounds][kWarps];
  Finished channel[kRounds];
  Sums scratch[kWarps];
};

// A block's part in the deal.
template <class T>
struct Part {
  const ChannelsProblem& problem;
  const Buffers& buffers;
  const Deal& deal;
  const Bulk& bulk;
  Board& board;
  uint4* slots;
  int team, rank;

  __device__ int64_t channel_of(int round) const {
    return team + static_cast<int64_t>(round) * deal.teams;
  }
  __device__ int rounds() const {
    return static_cast<int>((problem.channels - team + deal.teams - 1) / deal.teams);
  }
};

// A turn: a chunk of a channel and the slot that it passes through.
struct Turn {
  int round = 0, index = 0;  // the warp's chunk of the channel
  int slot = 0, phase = 0;   // of the slot's barrier

  __device__ void advance(const Deal& deal) {
    if (++index == deal.share) {
      index = 0;
      ++round;
    }
    if (++slot == deal.slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

template <class T>
struct Worker : Part<T> {
  int warp, lane;

  __device__ Worker(const Part<T>& part) : Part<T>(part) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
  }

  // Lane i notes the warp's chunk i.
  __device__ void note_pieces() const {
    const Deal& deal = this->deal;
    if (lane < deal.share) {
      const int chunk = (lane * kWarps + warp) * deal.blocks + this->rank;
      const int chunks = static_cast<int>(deal.chunks), sample = chunk / chunks;
      const int first = (chunk - sample * chunks) * deal.chunk;
      const bool there = chunk < deal.in_all;
      this->board.pieces[warp][lane] = {
          sample, there ? min(deal.chunk, static_cast<int>(deal.units) - first) : 0,
          static_cast<int64_t>(first) * kUnit<T>};
    }
    __syncwarp();
  }
  __device__ uint4* slot(const Turn& turn) const {
    return this->slots + (warp * this->deal.slots + turn.slot) * 2 * this->deal.chunk;
  }
  __device__ int count(const Piece& p, int unit) const {
    const int64_t left = this->problem.length - p.first - unit * kUnit<T>;
    return left < kUnit<T> ? static_cast<int>(left) : kUnit<T>;
  }
  template <class U>
  __device__ U* at(U* data, const ChannelsProblem::Strides& strides, int round,
                   const Piece& p) const {
    return data + this->channel_of(round) * strides.channel + p.sample * strides.sample + p.first;
  }

  // Fills the slot of a turn: by a bulk copy, or by what each lane will look at.
  __device__ void load(const Turn& turn) const {
    if (lane > 0 && this->bulk.x && this->bulk.dy) return;
    const Piece p = this->board.pieces[warp][turn.index];
    const T* x = at(static_cast<const T*>(this->buffers.x), this->problem.x, turn.round, p);
    const T* dy = at(static_cast<const T*>(this->buffers.dy), this->problem.dy, turn.round, p);
    uint4* x_slot = slot(turn);
    uint4* dy_slot = x_slot + this->deal.chunk;
    Barrier* full = &this->board.full[warp][turn.slot];
    if (lane == 0) {
      const uint32_t bytes = 16 * p.units;
      expect_bytes(full, bytes * (this->bulk.x + this->bulk.dy));
      if (this->bulk.x && bytes > 0) bulk_copy(x_slot, x, bytes, full);
      if (this->bulk.dy && bytes > 0) bulk_copy(dy_slot, dy, bytes, full);
      arrive(full);
    }
    for (int unit = lane; unit < p.units && !this->bulk.x; unit += 32) {
      x_slot[unit] = load_unit(x + unit * kUnit<T>, count(p, unit), false);
    }
    for (int unit = lane; unit < p.units && !this->bulk.dy; unit += 32) {
      dy_slot[unit] = load_unit(dy + unit * kUnit<T>, count(p, unit), false);
    }
  }

  // A lane's units of a slot; those that are not there read as 0.
  __device__ void look(const uint4* slot, int units, uint4 (&found)[kLooks]) const {
#pragma unroll
    for (int k = 0; k < kLooks; ++k) {
      const int unit = lane + 32 * k;
      found[k] = unit < units ? slot[unit] : uint4{};
    }
  }

  // Adds the chunk of a turn; the last one of a channel ends its sums.
  __device__ void add(const Turn& turn, Sums& sums) const {
    const int units = this->board.pieces[warp][turn.index].units;
    const Centring centring = this->board.centring[turn.round % kRounds];
    const uint4* x_slot = slot(turn);
    wait(&this->board.full[warp][turn.slot], turn.phase);
    uint4 x[kLooks], dy[kLooks];
    look(x_slot, units, x);
    look(x_slot + this->deal.chunk, units, dy);
    UnitSums<T> chunk;
#pragma unroll
    for (int k = 0; k < kLooks; ++k) chunk.add(x[k], dy[k], [&](int) { return centring; });
    sums.add(chunk.total());
    if (turn.index + 1 < this->deal.share) return;
    sums = warp_sum(sums);
    if (lane == 0) {
      this->board.sums[turn.round % kRounds][warp] = sums;
      arrive(&this->board.summed[turn.round % kRounds]);
    }
    sums = {};
  }

  __device__ void write(const Turn& turn, const DxScalars& scalars) const {
    const Piece p = this->board.pieces[warp][turn.index];
    T* dx = at(static_cast<T*>(this->buffers.dx), this->problem.dx, turn.round, p);
    const uint4* x_slot = slot(turn);
    uint4 x_units[kLooks], dy_units[kLooks];
    look(x_slot, this->problem.frozen ? 0 : p.units, x_units);
    look(x_slot + this->deal.chunk, p.units, dy_units);
#pragma unroll
    for (int k = 0; k < kLooks; ++k) {
      const int unit = lane + 32 * k;
      float x[kUnit<T>], dy[kUnit<T>], values[kUnit<T>];
      unpack<T>(x_units[k], x);
      unpack<T>(dy_units[k], dy);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) values[i] = scalars.dx(x[i], dy[i]);
      if (unit >= p.units) continue;
      if (this->bulk.dx) {
        reinterpret_cast<uint4*>(dx)[unit] = pack<T>(values);
      } else {
        store_unit(dx + unit * kUnit<T>, values, count(p, unit), false);
      }
    }
  }

  // Sums run a channel or two ahead of dx, as far as there is room; one slice is on its way.
  __device__ void work(Turn loads, int rounds) const {
    const Deal& deal = this->deal;
    const int rounds_ahead = max(1, min(kAhead, deal.slots / deal.share - 2));
    const int ahead = min((1 + rounds_ahead) * deal.share, deal.slots);
    int free = ahead;  // turns that may be added before the next dx
    Sums sums;
    Turn adds, writes;
    for (int round = 0; round < rounds; ++round) {
      for (; free > 0 && rounds > adds.round; --free, adds.advance(deal)) add(adds, sums);
      wait(&this->board.known[round % kRounds], round / kRounds & 1);
      const Finished& channel = this->board.channel[round % kRounds];
      const DxScalars scalars = channel.scalars;
      const bool wide = channel.wide;
      for (int i = 0; i < deal.share; ++i, ++free, writes.advance(deal)) {
        if (!wide) write(writes, scalars);
        __syncwarp();
        if (rounds > loads.round) {
          load(loads);
          loads.advance(deal);
        }
      }
      if (wide && this->rank == 0) {
        wide_channel<T>(this->problem, this->buffers, this->channel_of(round),
                        {static_cast<int>(threadIdx.x), 32 * kWarps, 1}, this->board.scratch);
      }
    }
  }
};

// What is given of a round's channel.
template <class T>
__device__ Given given_of(const Part<T>& part, int round) {
  if (round >= part.rounds()) return {};
  return load_given(part.problem, part.buffers, part.channel_of(round));
}

// Of a carrier's round and of its next, which is asked for that early: memory is busy.
struct Givens {
  Given now, next;
};

// The sums of one round: from the warps to the team, from the team to the warps.
template <class T>
__device__ void carry(const Part<T>& part, int round, Givens& givens, Sums* exchange) {
  Board& board = part.board;
  const int lane = threadIdx.x % 32, place = round % kRounds;
  const int64_t c = part.channel_of(round);
  const Factors factors = factors_of(part.problem, givens.now, part.deal.inverse_count);
  const Centring later = centring_of(part.problem, givens.next);
  givens = {givens.next, given_of(part, round + 2 * kCarriers)};
  wait(&board.summed[place], round / kRounds & 1);
  Sums sums = warp_sum(lane < kWarps ? board.sums[place][lane] : Sums{});
  if (part.deal.blocks > 1) {
    Sums* team = exchange + c * part.deal.blocks;
    if (lane == 0) send_sums(&team[part.rank], sums);
    sums = receive_sums(team, part.deal.blocks);
  }
  if (lane != 0) return;
  // Every warp is done with the round before this one, whose place it takes, and waits for this
  // one's scalars before it comes to its own.
  board.centring[(round + kCarriers) % kRounds] = later;
  const Finished channel = finish_channel(part.problem, factors, sums);
  board.channel[place] = channel;
  arrive(&board.known[place]);
  if (part.rank == 0 && !channel.wide) store_sums(part.problem, part.buffers, c, factors, sums);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    team_kernel(const __grid_constant__ ChannelsProblem problem,
                const __grid_constant__ Buffers buffers, const __grid_constant__ Deal deal,
                Bulk bulk, Sums* exchange) {
#if NORMGRAD_HOPPER
  auto* slots = dynamic_shared<uint4>();
  auto& board = in_shared<Board>();
  const int warp = threadIdx.x / 32;
  const Part<T> part = {problem,
                        buffers,
                        deal,
                        bulk,
                        board,
                        slots,
                        static_cast<int>(blockIdx.x) / deal.blocks,
                        static_cast<int>(blockIdx.x) % deal.blocks};
  const int rounds = part.rounds();
  const Worker<T> worker(part);
  Givens givens = {};
  Turn loads;
  // Each warp sets up its own barriers and loads at once: an init takes a lane's turn.
  if (warp < kWarps) {
    if (worker.lane < deal.slots) init_barrier(&board.full[warp][worker.lane], 1);
    fence_barrier_init();
    worker.note_pieces();
    for (int i = 0; i < deal.slots && rounds > loads.round; ++i, loads.advance(deal)) {
      worker.load(loads);
    }
  } else {
    if (warp == kWarps && worker.lane < kRounds) {
      init_barrier(&board.summed[worker.lane], kWarps);
      init_barrier(&board.known[worker.lane], 1);
    }
    givens = {given_of(part, warp - kWarps), given_of(part, warp - kWarps + kCarriers)};
    board.centring[warp - kWarps] = centring_of(problem, givens.now);
    const double nothing = __longlong_as_double(static_cast<long long>(kNothing));
    for (int round = threadIdx.x - 32 * kWarps; round < part.rounds(); round += 32 * kCarriers) {
      exchange[part.channel_of(round) * deal.blocks + part.rank] = {nothing, nothing};
    }
  }
  __syncthreads();
  if (deal.blocks > 1) cooperative_groups::this_grid().sync();
  if (warp < kWarps) {
    worker.work(loads, rounds);
  } else {
    for (int round = warp - kWarps; round < part.rounds(); round += kCarriers) {
      carry(part, round, givens, exchange);
    }
  }
#endif
}

Status launch_team(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                   void* stream) {
  const Deal deal = deal_of(problem);
  Launch launch = {static_cast<unsigned>(deal.teams * deal.blocks), kThreads};
  launch.shared = static_cast<size_t>(deal.slots) * kWarps * 2 * 16 * deal.chunk;
  launch.cooperative = true;
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&team_kernel<decltype(type)>, launch, stream, problem, buffers, deal,
                         bulk_of(problem, buffers), static_cast<Sums*>(memory));
  });
}

}  // namespace

Status choose_channels_team(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Status fused = check_fused("channels_team", problem);
  if (!fused.ok()) return fused;
  if (walks_channels(problem)) {
    return {Code::kUnsupportedDevice, "channels_team: expected data contiguous along the length"};
  }
  if (multiprocessors() < Deal::kBlocks) {
    return {Code::kUnsupportedDevice, "channels_team: expected a GPU of 128 multiprocessors"};
  }
  const Deal deal = deal_of(problem);
  if (deal.blocks == 0) {
    return {Code::kUnsupportedDevice, "channels_team: expected channels that fit on the chip"};
  }
  kernel = {"channels_team", static_cast<size_t>(problem.channels * deal.blocks) * sizeof(Sums),
            &launch_team};
  return {};
}

}  // namespace normgrad::cuda
