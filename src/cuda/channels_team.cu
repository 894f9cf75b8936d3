// BatchNorm backward along the length, large channels: teams of blocks take a channel each, keep it
// in shared memory between the sums and dx, and take the next. Formulas as in channels_two_pass.cu.
//
// 3 elements moved per element (x and dy read, dx written), the least there is. On an H200, beside
// a copy of as many bytes: 8x32x262144 bf16 122 us (96), fp32 253 (190); 32x64x12544 bf16 51 (37),
// fp32 93 (73); 32x256x3136 fp32 84 (73); 32x512x1024 bf16 30 (25).
// (With 14 registers spilled in the loop 32x512x784 bf16 took 28, with one unit at a time instead
// of two in the sums 26.)
//
// One block per multiprocessor. A channel is cut into chunks of at most 2 KiB of a sample's run;
// each warp has its share of every channel and rings of slots for it, which it fills by bulk copies
// of its own: no barrier between warps anywhere in the loop. A warp adds up the chunks of a
// channel, then those of the next or two while the sums travel, then writes dx of the first and
// refills each slot as soon as it has read it. Where there are several blocks to a team the first
// chunk of a channel waits in registers: 64 KiB more per block.
//
// The sums of the warps meet in three warps of their own, in turn, which send them to the team and
// wait for the others. Where a team is a cluster they go to its blocks' shared memory. Otherwise
// all blocks run at once (a cooperative launch) and each has a place per channel in the workspace,
// holding what no sum can be until the sum is there, so that data and flag come in one trip. They
// are set to that at the start; a barrier over the grid is waited for when the first sums leave.
//
// Order of the sums: a lane's units of a chunk in float32, then float64: its chunks, a warp's
// lanes, a block's warps, the team's blocks. Chunks and teams follow from shape and dtype.
#include <cooperative_groups.h>

#include "cuda/channel_exchange.cuh"
#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/channels_team_deal.hpp"
#include "cuda/channels_team_worker.cuh"
#include "cuda/device.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kCarriers = Deal::kCarriers;
constexpr int kThreads = 32 * (kTeamWarps + kCarriers);

Bulk bulk_of(const ChannelsProblem& problem, const Buffers& buffers) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const auto whole = [&](const void* data, const ChannelsProblem::Strides& strides) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides.sample * size % 16 == 0 &&
           strides.channel * size % 16 == 0 && problem.length * size % 16 == 0;
  };
  return {whole(buffers.x, problem.x), whole(buffers.dy, problem.dy),
          whole(buffers.dx, problem.dx)};
}

// What is given of a round's channel.
template <class T, bool kBulk>
__device__ Given given_of(const Part<T, kBulk>& part, int round) {
  if (round >= part.rounds()) return {};
  return load_given(part.problem, part.buffers, part.channel_of(round));
}

// Of a carrier's round and of its next, which is asked for that early: memory is busy.
struct Givens {
  Given now, next;
};

// From each block to all blocks of the cluster. None is kRounds ahead of another, so that a place
// is free again when its turn comes.
template <class T, bool kBulk>
__device__ Sums exchange_in_cluster(const Part<T, kBulk>& part, int round, const Sums& sums) {
  const int lane = threadIdx.x % 32, place = round % kRounds, blocks = part.deal.blocks;
  auto& inbox = part.board.inbox[place];
  Barrier* arrived = &part.board.arrived[place];
  if (lane == 0) arrive_expecting(arrived, blocks * sizeof(Sums));
  if (lane < blocks) {
    const SharedAddress barrier = remote_address(arrived, lane);
    send(remote_address(&inbox[part.rank()].dy, lane), sums.dy, barrier);
    send(remote_address(&inbox[part.rank()].dy_t, lane), sums.dy_t, barrier);
  }
  wait(arrived, round / kRounds & 1);
  return warp_sum(lane < blocks ? inbox[lane] : Sums{});
}

// Out of line: where there are more registers for it, 32x256x3136 bf16 takes 51 us instead of 49.
__device__ __noinline__ void store_apart(const ChannelsProblem& problem, const Buffers& buffers,
                                         int64_t c, const Factors& factors, const Sums& sums) {
  store_sums(problem, buffers, c, factors, sums);
}

// The sums of one round: from the warps to the team, from the team to the warps.
template <class T, bool kBulk>
__device__ void carry(const Part<T, kBulk>& part, int round, Givens& givens, Sums* exchange) {
  Board& board = part.board;
  const int lane = threadIdx.x % 32, place = round % kRounds;
  const int64_t c = part.channel_of(round);
  const Factors factors = factors_of(part.problem, givens.now, part.deal.inverse_count);
  const Centring later = centring_of(part.problem, givens.next);
  givens = {givens.next, given_of(part, round + 2 * kCarriers)};
  wait(&board.summed[place], round / kRounds & 1);
  Sums sums = warp_sum(lane < kTeamWarps ? board.sums[place][lane] : Sums{});
  if (part.deal.clustered) {
    sums = exchange_in_cluster(part, round, sums);
  } else if (part.deal.blocks > 1) {
    Sums* team = exchange + c * part.deal.blocks;
    if (lane == 0) send_sums(&team[part.rank()], sums);
    sums = receive_sums(team, part.deal.blocks);
  }
  if (lane != 0) return;
  // Every warp is done with the round before this one, whose place it takes, and waits for this
  // one's scalars before it comes to its own.
  board.centring[(round + kCarriers) % kRounds] = later;
  const Finished channel = finish_channel(part.problem, factors, sums);
  board.channel[place] = channel;
  arrive(&board.known[place]);
  if (part.rank() == 0 && !channel.wide) store_apart(part.problem, part.buffers, c, factors, sums);
}

template <class T, bool kBulk>
__global__ void __launch_bounds__(kThreads, 1)
    team_kernel(const __grid_constant__ ChannelsProblem problem,
                const __grid_constant__ Buffers buffers, const __grid_constant__ Deal deal,
                Bulk bulk, Sums* exchange) {
#if NORMGRAD_HOPPER
  auto* slots = dynamic_shared<uint4>();
  auto& board = in_shared<Board>();
  const int warp = threadIdx.x / 32;
  const int team = static_cast<int>(blockIdx.x) / deal.blocks;
  const int rank = static_cast<int>(blockIdx.x) - team * deal.blocks;
  const int rounds = deal.rounds + (team < deal.longer ? 1 : 0);
  if (threadIdx.x == 0) {
    board.team = team;
    board.rank = rank;
    board.rounds = rounds;
  }
  if (deal.travels()) {
    // Arrives before the loads, behind which it would have to queue.
    const double nothing = __longlong_as_double(static_cast<long long>(kNothing));
    for (int round = threadIdx.x; round < rounds; round += kThreads) {
      const int64_t c = team + static_cast<int64_t>(round) * deal.teams;
      exchange[c * deal.blocks + rank] = {nothing, nothing};
    }
    const auto token = cooperative_groups::this_grid().barrier_arrive();
    if (threadIdx.x == 0) board.token = token;
  } else {
    __syncthreads();
  }
  const Part<T, kBulk> part = {problem, buffers, deal, bulk, board, slots};
  const Worker<T, kBulk> worker(part);
  Givens givens = {};
  // Each warp sets up its own barriers and loads at once: an init takes a lane's turn.
  if (warp < kTeamWarps) {
    if (worker.lane < deal.slots) init_barrier(&board.full[warp][worker.lane], 1);
    fence_barrier_init();
    worker.note_pieces();
    worker.load_first();
  } else {
    givens = {given_of(part, warp - kTeamWarps), given_of(part, warp - kTeamWarps + kCarriers)};
    if (warp == kTeamWarps && worker.lane < kRounds) {
      init_barrier(&board.summed[worker.lane], kTeamWarps);
      init_barrier(&board.known[worker.lane], 1);
      init_barrier(&board.arrived[worker.lane], 1);
      fence_barrier_init();
    }
    board.centring[warp - kTeamWarps] = centring_of(problem, givens.now);
  }
  __syncthreads();
  if (deal.clustered) sync_cluster();
  if (warp < kTeamWarps) {
    worker.work();
  } else {
    if (deal.travels()) wait_for_grid(board);
    for (int round = warp - kTeamWarps; round < part.rounds(); round += kCarriers) {
      carry(part, round, givens, exchange);
    }
  }
#endif
}

Status launch_team(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                   void* stream) {
  const Deal deal = deal_of(problem);
  Launch launch = {static_cast<unsigned>(deal.teams * deal.blocks), kThreads};
  launch.shared = static_cast<size_t>(deal.slots) * kTeamWarps * 2 * 16 * deal.chunk;
  launch.cooperative = deal.travels();
  if (deal.clustered) launch.cluster = static_cast<unsigned>(deal.blocks);
  const Bulk bulk = bulk_of(problem, buffers);
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(bulk.all() ? &team_kernel<T, true> : &team_kernel<T, false>, launch,
                         stream, problem, buffers, deal, bulk, static_cast<Sums*>(memory));
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
  const int64_t places = deal.travels() ? problem.channels * deal.blocks : 0;
  kernel = {"channels_team", static_cast<size_t>(places) * sizeof(Sums), &launch_team};
  return {};
}

}  // namespace normgrad::cuda
