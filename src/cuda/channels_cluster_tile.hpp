// How channels_cluster.cu cuts a problem up: channels into groups, their samples into pieces, these
// among blocks and threads; a function of shape and dtype.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "ops/problem.hpp"

namespace normgrad::cuda {

struct Tile {
  static constexpr int kMostThreads = 224;        // four blocks of them have 72 registers a thread
  static constexpr int64_t kQuarter = 52 * 1024;  // data of a block if four are on a multiprocessor
  static constexpr int64_t kHalf = 106 * 1024;    // if two are
  static constexpr int64_t kRunBytes = 512;       // of a group's run, at least
  static constexpr int64_t kEnoughBlocks = 2 * 128;  // for a GPU

  int blocks;   // of the cluster
  int group;    // channels
  int pieces;   // of a sample's run
  int width;    // units of a piece, a thread each
  int lines;    // pieces at a time
  int steps;    // pieces of a thread, at most
  int threads;  // lines * width and what lacks to whole warps
  int runs;     // samples * pieces
  int sharers;  // threads that add up what all have of a channel: all channels of a group at once
  double inverse_count;
  // Quotients of the small numbers that threads divide by these: n * inverse >> 24.
  uint32_t inverse_width, inverse_pieces, inverse_length;

  constexpr int cells() const { return lines * width; }
  constexpr int64_t data_bytes() const { return int64_t{2} * 16 * steps * cells(); }
};

inline uint32_t inverse_of(int64_t divisor) {
  return static_cast<uint32_t>((1 << 24) / divisor + 1);
}

// threads = 0: a group of that many channels does not fit `most` bytes.
inline Tile tile_of(const ChannelsProblem& problem, int64_t group, int blocks, int64_t most) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const int64_t units = ceil(group * problem.length, unit);
  const int64_t pieces = ceil(units, Tile::kMostThreads);
  if (pieces > 1 && group > 1) return {};
  if (units * problem.samples > most * blocks / 16) return {};
  const int64_t runs = problem.samples * pieces;
  const int64_t width = ceil(units, pieces);
  const int64_t lines = std::clamp<int64_t>(Tile::kMostThreads / width, 1, ceil(runs, blocks));
  const int64_t steps = ceil(runs, lines * blocks);
  const int64_t threads = ceil(lines * width, 32) * 32;
  const auto share = static_cast<uint64_t>(std::max<int64_t>(threads / group, 1));
  const int sharers = std::clamp(static_cast<int>(std::bit_floor(share)), blocks, 32);
  const Tile tile = {blocks,
                     static_cast<int>(group),
                     static_cast<int>(pieces),
                     static_cast<int>(width),
                     static_cast<int>(lines),
                     static_cast<int>(steps),
                     static_cast<int>(threads),
                     static_cast<int>(runs),
                     sharers,
                     1 / static_cast<double>(problem.samples * problem.length),
                     inverse_of(width),
                     inverse_of(pieces),
                     inverse_of(problem.length)};
  return tile.data_bytes() <= most ? tile : Tile{};
}

// Groups whose runs are long and end at multiples of 16 bytes, if there is room for one; else
// smaller ones, but rather half a multiprocessor per block than runs of less than 64 bytes. As few
// blocks as let four (or two) share a multiprocessor and fill the GPU.
inline Tile tile_of(const ChannelsProblem& problem) {
  const int64_t bytes = problem.length * static_cast<int64_t>(size_of(problem.dtype));
  if (bytes < 16) return {};
  const int64_t whole = 16 / std::gcd<int64_t>(16, bytes);
  const auto channels_of = [&](int64_t run) { return (run + bytes - 1) / bytes; };
  const auto to_whole = [&](int64_t group) { return (group + whole - 1) / whole * whole; };
  // fp32 channels that fill a block each: two of them by two blocks have longer runs, 32x1024x196
  // takes 23.9 us, not 24.6. (16-bit ones lose by it.)
  const int64_t data = 2 * bytes * problem.samples;
  const bool pairs = problem.dtype == DType::kF32 && bytes >= Tile::kRunBytes &&
                     bytes < 2 * Tile::kRunBytes && data <= Tile::kQuarter &&
                     2 * data > Tile::kQuarter;
  const int64_t wanted = pairs ? 2 : channels_of(Tile::kRunBytes);
  const int64_t some = to_whole(bytes < 64 ? channels_of(128) : 1);
  const int64_t least = bytes < 64 ? some : 1;
  const auto first_of = [&](std::initializer_list<int64_t> groups) {
    for (const int64_t most : {Tile::kQuarter, Tile::kHalf}) {
      for (int64_t group : groups) {
        group = std::min(group, problem.channels);
        for (int blocks = 1; blocks <= 16; blocks *= 2) {
          const Tile tile = tile_of(problem, group, blocks, most);
          if (tile.threads == 0) continue;
          const int64_t all = (problem.channels + group - 1) / group * blocks;
          const bool few = all < Tile::kEnoughBlocks && tile.steps >= 8 && blocks < 8;
          if (!few) return tile;
        }
      }
    }
    return Tile{};
  };
  const Tile tile = first_of({to_whole(wanted), some, wanted, least});
  return tile.threads > 0 ? tile : first_of({whole, 1});
}

}  // namespace normgrad::cuda
