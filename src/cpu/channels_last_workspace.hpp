// BatchNorm along the channels: its workspace, and how its rows lie in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "cpu/channel.hpp"
#include "cpu/column_tree.hpp"
#include "ops/backend.hpp"
#include "ops/problem.hpp"

namespace normgrad::cpu {

// The positions that make a row. One, if the channels fill a pair of vectors, or are so many that
// the last vector hardly counts, or are float32 and fill a vector. Else as many as fill whole
// pairs.
inline int64_t fold_of(const ChannelsShape& shape) {
  constexpr int64_t kPair = 32;
  const int64_t many = shape.dtype == DType::kF32 ? 16 : 64;
  return shape.channels >= many ? 1 : kPair / std::gcd(shape.channels, kPair);
}

// The tree's sums (dy * x_hat first, dy behind), the channels, and their scalars as vectors over
// the columns, in the order of pairs. Vectors are padded, so that kernels may read and write whole
// pairs.
struct ChannelsLastWorkspace {
  int64_t channel_count;
  int64_t fold, columns, padded;
  ColumnTree tree;
  Channel* channels = nullptr;
  float *offset = nullptr, *scale = nullptr, *gain = nullptr, *c1 = nullptr, *c2 = nullptr;

  explicit ChannelsLastWorkspace(const ChannelsProblem& problem, void* memory = nullptr)
      : channel_count(problem.channels),
        fold(fold_of(problem)),
        columns(problem.channels * fold),
        padded((columns + 63) / 64 * 64),
        tree((problem.samples * problem.length + fold - 1) / fold, 2 * padded) {
    if (memory == nullptr) return;
    tree.sums = static_cast<double*>(memory);
    channels = reinterpret_cast<Channel*>(tree.sums + tree.doubles());
    offset = reinterpret_cast<float*>(channels + channel_count);
    scale = offset + padded;
    gain = scale + padded;
    c1 = gain + padded;
    c2 = c1 + padded;
  }

  size_t bytes() const {
    return static_cast<size_t>(tree.doubles()) * sizeof(double) +
           static_cast<size_t>(channel_count) * sizeof(Channel) +
           static_cast<size_t>(padded) * 5 * sizeof(float);
  }
};

// Where the positions of a tensor are. They follow each other evenly within a sample.
struct Positions {
  int64_t length = 0;  // of a sample
  int64_t sample = 0, step = 0;

  int64_t offset(int64_t position) const {
    if (position < length) return position * step;
    return position / length * sample + position % length * step;
  }
};

// Neighbouring channels of one position, and where they are in a packed tile.
struct Piece {
  int64_t position, channel, length, at;
};

// The rows in x, dy and dx. Those that do not lie evenly, each as far from the next, are packed:
// copied into tiles of 64 columns.
struct ChannelsLastLayout {
  static constexpr int64_t kTile = 64;

  int64_t channels, fold;
  int64_t count;  // positions
  Positions x, dy, dx;
  bool dense;  // they follow each other without gaps

  ChannelsLastLayout(const ChannelsProblem& problem, int64_t fold_)
      : channels(problem.channels), fold(fold_), count(problem.samples * problem.length) {
    const auto is_even = [&](const ChannelsProblem::Strides& s) {
      return problem.samples <= 1 || problem.length <= 1 || s.sample == problem.length * s.position;
    };
    const bool even =
        is_even(problem.x) && is_even(problem.dy) && (!problem.has_dx || is_even(problem.dx));
    const auto positions = [&](const ChannelsProblem::Strides& s) -> Positions {
      if (!even) return {problem.length, s.sample, s.position};
      return {count, 0, problem.length <= 1 ? s.sample : s.position};  // one long sample
    };
    x = positions(problem.x);
    dy = positions(problem.dy);
    dx = problem.has_dx ? positions(problem.dx) : dy;
    dense = x.step == channels && dy.step == channels && dx.step == channels;
  }

  // How many of the rows lie evenly in every tensor.
  int64_t even_rows(int64_t row, int64_t rows) const {
    if (fold > 1 && !dense) return 0;
    const int64_t position = row * fold;
    const int64_t in_sample = position < x.length ? position : position % x.length;
    return std::min(rows, (x.length - in_sample) / fold);
  }

  // x and dy of columns [begin, end) of some rows; what the last row lacks counts as zeros.
  template <class T>
  void pack(const Buffers& buffers, int64_t row, int64_t rows, int64_t begin, int64_t end,
            T* x_tile, T* dy_tile) const {
    std::fill_n(x_tile, rows * kTile, T{});
    std::fill_n(dy_tile, rows * kTile, T{});
    for_pieces(row, rows, begin, end, [&](const Piece& piece) {
      const auto copy = [&](const void* data, const Positions& positions, T* to) {
        const T* from = static_cast<const T*>(data) + positions.offset(piece.position);
        std::copy_n(from + piece.channel, piece.length, to + piece.at);
      };
      copy(buffers.x, x, x_tile);
      copy(buffers.dy, dy, dy_tile);
    });
  }
  // dx the way back.
  template <class T>
  void unpack(const Buffers& buffers, int64_t row, int64_t rows, int64_t begin, int64_t end,
              const T* dx_tile) const {
    for_pieces(row, rows, begin, end, [&](const Piece& piece) {
      T* to = static_cast<T*>(buffers.dx) + dx.offset(piece.position) + piece.channel;
      std::copy_n(dx_tile + piece.at, piece.length, to);
    });
  }

 private:
  template <class Body>
  void for_pieces(int64_t row, int64_t rows, int64_t begin, int64_t end, const Body& body) const {
    for (int64_t k = 0; k < rows; ++k) {
      for (int64_t c = begin; c < end;) {
        Piece piece;
        piece.position = (row + k) * fold + c / channels;
        if (piece.position >= count) return;
        piece.channel = c % channels;
        piece.length = std::min(channels - piece.channel, end - c);
        piece.at = k * kTile + c - begin;
        body(piece);
        c += piece.length;
      }
    }
  }
};

}  // namespace normgrad::cpu
