// The shapes that `normgrad bench` measures. A shape file has one on each line: an operator and its
// shape, for BatchNorm samples x channels x length, and "channels_last" if the channels lie side by
// side in memory. What follows a # is a comment.
//
//   layer_norm 8192x1024
//   batch_norm 32x64x3136 channels_last
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arguments.hpp"

namespace normgrad::tool {

enum class BenchLayout { kRows, kChannelsFirst, kChannelsLast };
const char* name_of(BenchLayout layout);  // "rows", "channels_first", "channels_last"

struct BenchShape {
  Op op = Op::kLayerNorm;
  std::vector<int64_t> extents;
  BenchLayout layout = BenchLayout::kRows;
};

struct BenchCase {
  BenchShape shape;
  DType dtype = DType::kF32;
  int threads = 1;

  std::string name() const;  // "layer_norm/8192x1024/rows/f32/threads:2"
};

// Throws std::runtime_error that names the file, the line and what was expected.
std::vector<BenchShape> read_shapes(const std::string& path);

// The files for a device that come with the tool, by name.
std::vector<std::string> shape_files(Device device);

// A few tiny ones of each operator, for `--quick`.
std::vector<BenchShape> quick_shapes();

}  // namespace normgrad::tool
