#include "bench/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "machine.hpp"

namespace normgrad::tool {
namespace {

// 4 TiB of f32: no extent or byte count below can overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& where, const std::string& expected,
                         const std::string& got) {
  throw std::runtime_error(fmt::format("{}: expected {}; got '{}'", where, expected, got));
}

std::vector<int64_t> parse_extents(const std::string& where, Op op, const std::string& text) {
  const std::vector<int64_t> extents = parse_shape(text, where);
  const bool batch = op == Op::kBatchNorm;
  if (extents.size() != (batch ? 3 : 2)) {
    refuse(where, batch ? "samples x channels x length" : "rows x columns", text);
  }
  int64_t room = kMostElements;
  for (const int64_t extent : extents) {
    if (extent < 1 || extent > room) refuse(where, "extents of 1 to 2^40 elements in all", text);
    room /= extent;
  }
  return extents;
}

BenchShape parse_line(const std::string& where, const std::string& line) {
  std::istringstream words(line);
  std::string op, extents, layout, more;
  words >> op >> extents >> layout >> more;
  BenchShape shape;
  const auto found = kOps.find(op);
  if (found == kOps.end()) refuse(where, "layer_norm, rms_norm or batch_norm", op);
  shape.op = found->second;
  shape.extents = parse_extents(where, shape.op, extents);
  if (shape.op == Op::kBatchNorm) {
    shape.layout = BenchLayout::kChannelsFirst;
    if (layout == name_of(BenchLayout::kChannelsLast)) {
      shape.layout = BenchLayout::kChannelsLast;
    } else if (!layout.empty() && layout != name_of(BenchLayout::kChannelsFirst)) {
      refuse(where, "channels_first or channels_last", layout);
    }
  } else if (!layout.empty()) {
    refuse(where, "nothing behind the shape", layout);
  }
  if (!more.empty()) refuse(where, "nothing behind the layout", more);
  return shape;
}

}  // namespace

const char* name_of(BenchLayout layout) {
  constexpr const char* kNames[] = {"rows", "channels_first", "channels_last"};
  return kNames[static_cast<int>(layout)];
}

std::string BenchCase::name() const {
  return fmt::format("{}/{}/{}/{}/threads:{}", name_of(shape.op), format_shape(shape.extents),
                     name_of(shape.layout), name_of(dtype), threads);
}

std::vector<BenchShape> read_shapes(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot open it", path));
  std::vector<BenchShape> shapes;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    shapes.push_back(parse_line(fmt::format("{}:{}", path, number), line));
  }
  if (file.bad() || shapes.empty()) {
    throw std::runtime_error(
        fmt::format("{}: expected a line such as 'layer_norm 8192x1024'; it has none", path));
  }
  return shapes;
}

// In a folder beside the tool, or in share once installed.
std::vector<std::string> shape_files(Device device) {
  std::vector<std::string> files;
  for (const char* folder : {"shapes", NORMGRAD_SHAPES_FOLDER}) {
    auto path = (std::filesystem::path(program_folder()) / folder).lexically_normal();
    if (device == Device::kCuda) path /= "cuda";
    if (!std::filesystem::is_directory(path)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".txt") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    if (!files.empty()) return files;
  }
  throw std::runtime_error(
      fmt::format("{}: expected the folder of shape files that comes with the tool, {}; name files "
                  "with --shapes instead",
                  program_folder(), NORMGRAD_SHAPES_FOLDER));
}

std::vector<BenchShape> quick_shapes() {
  return {{Op::kLayerNorm, {64, 768}, BenchLayout::kRows},
          {Op::kRmsNorm, {64, 768}, BenchLayout::kRows},
          {Op::kBatchNorm, {4, 64, 196}, BenchLayout::kChannelsFirst},
          {Op::kBatchNorm, {4, 64, 196}, BenchLayout::kChannelsLast}};
}

}  // namespace normgrad::tool
