// How channels_team.cu deals channels out to teams of blocks, and their chunks to warps: a function
// of shape and dtype.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cuda {

struct Deal {
  static constexpr int kWarps = 16;    // of a block, that sum and write
  static constexpr int kBlocks = 128;  // in all teams together
  static constexpr int kChunk = 128;   // units of a chunk, at most
  static constexpr int kLeastChunk = 16;
  static constexpr int kMostSlots = 8;            // of a warp
  static constexpr int64_t kShared = 216 * 1024;  // bytes of a block for the slots

  int blocks;  // of a team
  int teams;
  int64_t units;   // of a sample's run
  int64_t chunks;  // of a sample's run
  int chunk;       // units of a chunk
  int64_t in_all;  // chunks of a channel
  int share;       // chunks of a channel that a warp has, at most
  int slots;       // of a warp
  double inverse_count;

  // Room for more than the slice that waits for its sums.
  bool overlaps() const { return slots > share; }
};

// What a deal costs: the units that each warp goes through, and what is lost between channels. A
// warp of an H200 moves about 43 units a microsecond. The sums take 2 us to travel, several times
// that where memory is busy; with room for more slices less of it shows.
inline int64_t cost_of(const Deal& deal, int64_t channels) {
  const int64_t rounds = (channels + deal.teams - 1) / deal.teams;
  const int64_t slice = static_cast<int64_t>(deal.share) * deal.chunk;
  int64_t lost = deal.blocks / 8;
  if (deal.blocks == 1) {
    lost +=
        60;  // also without room for a second slice: blocks that do not wait for each other drift
  } else {
    constexpr int64_t kLost[] = {190, 90, 60, 45};  // with room for 1 to 4 slices
    lost += deal.slots == deal.share ? 230 : kLost[std::min(deal.slots / deal.share, 4) - 1];
  }
  const int64_t least = deal.blocks == 1 ? 0 : 120;
  return rounds * std::max(slice + lost, least) + slice;
}

// The cheapest deal, or none (blocks = 0) if a channel does not fit on the chip. It is made anew
// for each launch: few sizes of teams are tried, and for each share of a warp the smallest chunks.
inline Deal deal_of(const ChannelsProblem& problem) {
  if (problem.samples == 0 || problem.channels == 0 || problem.length == 0) return {};
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t units = ceil(problem.length, unit);
  Deal best = {};
  int64_t least = 0;
  for (const int blocks : {1, 2, 3, 4, 6, 8, 10, 12, 16, 21, 25, 32, 42, 64, 128}) {
    for (int share = 1; share <= Deal::kMostSlots; ++share) {
      const int64_t room = int64_t{blocks} * Deal::kWarps * share;
      const int64_t chunks = std::min(room / problem.samples, ceil(units, Deal::kLeastChunk));
      if (chunks == 0 || ceil(units, chunks) > Deal::kChunk) continue;
      Deal deal = {};
      deal.blocks = blocks;
      deal.teams = static_cast<int>(std::min<int64_t>(Deal::kBlocks / blocks, problem.channels));
      deal.units = units;
      deal.chunk = static_cast<int>(ceil(units, chunks));
      deal.chunks = ceil(units, deal.chunk);
      deal.in_all = problem.samples * deal.chunks;
      deal.share = static_cast<int>(ceil(deal.in_all, int64_t{blocks} * Deal::kWarps));
      deal.slots = static_cast<int>(std::min<int64_t>(
          Deal::kMostSlots, Deal::kShared / (Deal::kWarps * 2 * 16 * deal.chunk)));
      if (deal.share > deal.slots) continue;
      deal.inverse_count = 1 / static_cast<double>(problem.samples * problem.length);
      const int64_t cost = cost_of(deal, problem.channels);
      if (best.blocks == 0 || cost < least) {
        best = deal;
        least = cost;
      }
    }
  }
  return best;
}

}  // namespace normgrad::cuda
