#include "arguments.hpp"

#include <fmt/ranges.h>

#include <charconv>
#include <stdexcept>

namespace normgrad::tool {

std::vector<int64_t> parse_shape(const std::string& text, const std::string& where) {
  std::vector<int64_t> shape;
  const char* const end = text.data() + text.size();
  for (const char* position = text.data();; ++position) {
    int64_t extent = 0;
    const auto [after, error] = std::from_chars(position, end, extent);
    if (error != std::errc() || extent < 0 || (after != end && *after != 'x')) break;
    shape.push_back(extent);
    position = after;
    if (position == end) return shape;
  }
  throw std::runtime_error(
      fmt::format("{}: expected extents joined by x, such as 16384x4096; got '{}'", where, text));
}

std::string format_shape(const std::vector<int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace normgrad::tool
