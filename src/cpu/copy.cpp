// Copies of strided tensors into the workspace and out of it, with a change of type where asked.
//
// Tiles over the two axes along which either side is densest: a transposed tensor then costs one
// pass over its cache lines, not one line per element. A task has about 4096 elements.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "cpu/dtype.hpp"
#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

namespace normgrad::cpu {
namespace {

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return narrow<To>(widen(value));
  }
}

// The axis with the smallest step; broadcast axes, which step by 0, come last.
int densest_axis(const CopyProblem& problem, const CopyProblem::Axes& strides) {
  int best = 0;
  const auto step = [&](int axis) {
    const int64_t stride = std::abs(strides[axis]);
    return stride == 0 ? std::numeric_limits<int64_t>::max() : stride;
  };
  for (int axis = 1; axis < problem.rank; ++axis) {
    if (step(axis) <= step(best)) best = axis;
  }
  return best;
}

struct Axis {
  int64_t extent = 1, from = 0, to = 0, tile = 1;
  int64_t tiles() const { return (extent + tile - 1) / tile; }
};

class Tiling {
 public:
  explicit Tiling(const CopyProblem& problem) : problem_(problem) {
    inner_axis_ = densest_axis(problem, problem.to);
    across_axis_ = densest_axis(problem, problem.from);
    const bool transposed = across_axis_ != inner_axis_;
    if (!transposed) across_axis_ = inner_axis_ > 0 ? inner_axis_ - 1 : problem.rank > 1 ? 1 : -1;
    if (problem.rank > 0) inner = axis_of(inner_axis_);
    if (across_axis_ >= 0 && problem.rank > 1) across = axis_of(across_axis_);
    inner.tile = std::min<int64_t>(inner.extent, transposed ? 64 : kElements);
    across.tile = std::min(across.extent, kElements / inner.tile);
    tiles = inner.tiles() * across.tiles();
    for (int axis = 0; axis < problem.rank; ++axis) {
      if (is_outer(axis)) tiles *= problem.extents[axis];
    }
    tiles_per_task = kElements / (inner.tile * across.tile);  // 1, but for tiny extents
    tasks = (tiles + tiles_per_task - 1) / tiles_per_task;
  }

  // The offsets of a tile, and its place in the tiled axes.
  struct Tile {
    int64_t from = 0, to = 0, inner_begin = 0, across_begin = 0;
  };
  Tile tile(int64_t number) const {
    Tile tile;
    tile.inner_begin = number % inner.tiles() * inner.tile;
    number /= inner.tiles();
    tile.across_begin = number % across.tiles() * across.tile;
    number /= across.tiles();
    for (int axis = problem_.rank - 1; axis >= 0; --axis) {
      if (!is_outer(axis)) continue;
      const int64_t index = number % problem_.extents[axis];
      number /= problem_.extents[axis];
      tile.from += index * problem_.from[axis];
      tile.to += index * problem_.to[axis];
    }
    return tile;
  }

  Axis inner, across;
  int64_t tiles = 1, tiles_per_task = 1, tasks = 1;

 private:
  static constexpr int64_t kElements = 4096;
  Axis axis_of(int axis) const {
    return {problem_.extents[axis], problem_.from[axis], problem_.to[axis], 1};
  }
  bool is_outer(int axis) const { return axis != inner_axis_ && axis != across_axis_; }

  const CopyProblem& problem_;
  int inner_axis_ = 0, across_axis_ = -1;
};

template <class From, class To>
void copy_tile(const Tiling& tiling, int64_t number, float offset, const From* from, To* to) {
  const Tiling::Tile tile = tiling.tile(number);
  const Axis &inner = tiling.inner, &across = tiling.across;
  const int64_t inner_end = std::min(tile.inner_begin + inner.tile, inner.extent);
  const int64_t across_end = std::min(tile.across_begin + across.tile, across.extent);
  for (int64_t a = tile.across_begin; a < across_end; ++a) {
    const From* source = from + tile.from + a * across.from;
    To* target = to + tile.to + a * across.to;
    for (int64_t i = tile.inner_begin; i < inner_end; ++i) {
      To& element = target[i * inner.to];
      element = convert<To>(source[i * inner.from]);
      if constexpr (std::is_same_v<To, float>) {
        if (offset != 0) element += offset;
      }
    }
  }
}

template <class From, class To>
void copy_tiles(const CopyProblem& problem, const From* from, To* to) {
  const Tiling tiling(problem);
  int64_t bytes = static_cast<int64_t>(sizeof(From) + sizeof(To));
  for (int axis = 0; axis < problem.rank; ++axis) bytes *= problem.extents[axis];
  parallel_for(tiling.tasks, bytes, [&](int64_t task) {
    const int64_t begin = task * tiling.tiles_per_task;
    const int64_t end = std::min(begin + tiling.tiles_per_task, tiling.tiles);
    for (int64_t tile = begin; tile < end; ++tile) {
      copy_tile(tiling, tile, problem.offset, from, to);
    }
  });
}

}  // namespace

Status copy(const CopyProblem& problem, const void* from, void* to, void*) {
  const DefaultFloatEnvironment environment;
  const auto run = [&](auto source, auto target) {
    copy_tiles(problem, static_cast<const decltype(source)*>(from),
               static_cast<decltype(target)*>(to));
  };
  if (size_of(problem.from_dtype) == 8) {  // numbers of other types move as bits
    run(uint64_t{}, uint64_t{});
  } else if (problem.from_dtype == problem.to_dtype) {  // i32 as f32: nobody looks at the value
    with_type(problem.from_dtype, [&](auto type) { run(type, type); });
  } else if (problem.from_dtype == DType::kF32) {
    with_type(problem.to_dtype, [&](auto type) { run(float{}, type); });
  } else {
    with_type(problem.from_dtype, [&](auto type) { run(type, float{}); });
  }
  return {};
}

}  // namespace normgrad::cpu
