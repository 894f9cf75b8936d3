// How channels_team.cu deals channels out to teams of blocks, and their chunks to warps: a function
// of shape and dtype.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cuda {

struct Deal {
  static constexpr int kWarps = 16;    // of a block, that sum and write
  static constexpr int kCarriers = 3;  // that exchange the sums
  static constexpr int kBlocks = 128;  // in all teams together
  static constexpr int kMostCluster = 8;
  static constexpr int kChunk = 128;  // units of a chunk, at most
  static constexpr int kLeastChunk = 16;
  static constexpr int kMostSlots = 8;            // of a warp
  static constexpr int64_t kShared = 216 * 1024;  // bytes of a block for the slots

  int blocks;  // of a team
  int teams;
  int rounds, longer;  // channels of a team; the first so many have one more
  int64_t units;       // of a sample's run
  int64_t chunks;      // of a sample's run
  int chunk;           // units of a chunk
  int64_t in_all;      // chunks of a channel
  int share;           // chunks of a channel that a warp has, at most
  int slots;           // of a warp
  // Channels that have room for their first chunk, and for the others: a ring of slots each.
  int first_room, others_room;
  int ahead;       // channels that are added up before dx of the first is written
  bool clustered;  // a team is a cluster
  double inverse_count;

  // Room for more than the slice that waits for its sums.
  bool overlaps() const { return slots > share; }
  // Sums take the way through the workspace.
  constexpr bool travels() const { return blocks > 1 && !clustered; }
  // A channel's first chunk waits in registers: the more room, the less the travel of sums shows.
  constexpr bool holds() const { return blocks > 1; }
  // Channels of which all chunks have room.
  constexpr int room() const {
    const int firsts = first_room + (holds() ? 1 : 0);
    return share == 1 ? firsts : std::min(firsts, others_room);
  }
};

// Rings as even as the slots allow. Sums run one or two channels ahead of dx, so that one more is
// on its way.
inline void make_rings(Deal& deal) {
  const int others = deal.share - 1;
  deal.others_room =
      others == 0 ? 1 : std::max(1, (deal.slots + (deal.holds() ? 1 : 0)) / deal.share);
  while (deal.others_room * others >= deal.slots) --deal.others_room;
  deal.first_room = deal.slots - deal.others_room * others;
  deal.ahead = std::clamp(deal.room() - 2, deal.room() > 1 ? 1 : 0, Deal::kCarriers - 1);
}

// What a deal costs, in units: those that each warp goes through, and what is lost between
// channels. A warp of an H200 moves about 43 units a microsecond if all 128 blocks do. Sums that
// travel take 2 us and more, the more the larger the team; with room for more channels less of it
// shows. Blocks on their own even gain: they drift, so that some load while others write. (From
// measurements.)
inline int64_t cost_of(const Deal& deal) {
  const int64_t rounds = deal.rounds + (deal.longer > 0 ? 1 : 0);
  const int64_t slice = static_cast<int64_t>(deal.share) * deal.chunk;
  const int64_t moved = slice * deal.teams * deal.blocks / Deal::kBlocks;
  int64_t lost = deal.chunk < 64 ? 15 * deal.share : 0;
  if (deal.blocks == 1) {
    lost -= slice / 6;
  } else if (deal.clustered) {
    lost += deal.share == 1 ? 25 : 5;
  } else if (deal.room() == 1) {
    lost += 20 + 7 * deal.blocks / 2;
  } else {
    lost += deal.room() < 4 ? 18 + deal.blocks / 2 : 30 + deal.blocks / 6;
  }
  return rounds * ((deal.clustered ? moved : slice) + lost) + slice;
}

// Clusters of 4 and 8 leave some multiprocessors out.
inline int teams_of(int blocks, bool clustered) {
  if (clustered && blocks == 4) return 30;
  if (clustered && blocks == 8) return 15;
  return Deal::kBlocks / blocks;
}

// blocks = 0: a channel does not fit so.
inline Deal deal_of(const ChannelsProblem& problem, int blocks, int share, bool clustered) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t units = ceil(problem.length, unit);
  const int64_t room = int64_t{blocks} * Deal::kWarps * share;
  const int64_t chunks = std::min(room / problem.samples, ceil(units, Deal::kLeastChunk));
  if (chunks == 0 || ceil(units, chunks) > Deal::kChunk) return {};
  Deal deal = {};
  deal.blocks = blocks;
  deal.clustered = clustered;
  deal.teams = static_cast<int>(std::min<int64_t>(teams_of(blocks, clustered), problem.channels));
  deal.rounds = static_cast<int>(problem.channels / deal.teams);
  deal.longer = static_cast<int>(problem.channels % deal.teams);
  deal.units = units;
  deal.chunk = static_cast<int>(ceil(units, chunks));
  deal.chunks = ceil(units, deal.chunk);
  deal.in_all = problem.samples * deal.chunks;
  deal.share = static_cast<int>(ceil(deal.in_all, int64_t{blocks} * Deal::kWarps));
  deal.slots = static_cast<int>(
      std::min<int64_t>(Deal::kMostSlots, Deal::kShared / (Deal::kWarps * 2 * 16 * deal.chunk)));
  if (deal.share > deal.slots) return {};
  make_rings(deal);
  deal.inverse_count = 1 / static_cast<double>(problem.samples * problem.length);
  return deal;
}

// The cheapest deal, or none (blocks = 0) if a channel does not fit on the chip. It is made anew
// for each launch: few sizes of teams are tried, and for each share of a warp the smallest chunks.
inline Deal deal_of(const ChannelsProblem& problem) {
  if (problem.samples == 0 || problem.channels == 0 || problem.length == 0) return {};
  Deal best = {};
  int64_t least = 0;
  for (const int blocks : {1, 2, 3, 4, 6, 8, 10, 12, 16, 21, 25, 32, 42, 64, 128}) {
    const bool can_cluster = blocks == 2 || blocks == 4 || blocks == Deal::kMostCluster;
    for (int share = 1; share <= Deal::kMostSlots; ++share) {
      for (const bool clustered : {true, false}) {
        if (clustered ? !can_cluster : blocks == 2) continue;
        const Deal deal = deal_of(problem, blocks, share, clustered);
        if (deal.blocks == 0) continue;
        const int64_t cost = cost_of(deal);
        if (best.blocks == 0 || cost < least) {
          best = deal;
          least = cost;
        }
      }
    }
  }
  return best;
}

}  // namespace normgrad::cuda
