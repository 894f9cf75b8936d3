// First fit: in the order of their first use, each buffer gets the lowest gap between the buffers
// that are in use at the same time.
#include "runner/arena.hpp"

#include <algorithm>

namespace normgrad::graph_mode {
namespace {
constexpr size_t kAlignment = 64;
}  // namespace

size_t Arena::add(size_t bytes, size_t first, size_t last) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  buffers_.push_back({rounded, first, last});
  return buffers_.size() - 1;
}

void Arena::place() {
  std::vector<size_t> order(buffers_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return buffers_[a].first < buffers_[b].first; });
  std::vector<const Buffer*> live;  // placed and still in use, by offset
  for (const size_t index : order) {
    Buffer& buffer = buffers_[index];
    std::erase_if(live, [&](const Buffer* other) { return other->last < buffer.first; });
    size_t end = 0;
    auto next = live.begin();
    while (next != live.end() && (*next)->offset - end < buffer.bytes) {
      end = (*next)->offset + (*next)->bytes;
      ++next;
    }
    buffer.offset = end;
    live.insert(next, &buffer);
    size_ = std::max(size_, end + buffer.bytes);
  }
}

}  // namespace normgrad::graph_mode
