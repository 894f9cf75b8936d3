// The arena: one block of memory for all intermediate tensors and workspaces of a program. Buffers
// that are never in use at the same time share their place.
#pragma once

#include <cstddef>
#include <vector>

namespace normgrad::graph_mode {

class Arena {
 public:
  // Bytes in use from step `first` to step `last`, both included. Returns a number for `offset`.
  size_t add(size_t bytes, size_t first, size_t last);

  // Gives every buffer its place.
  void place();
  size_t offset(size_t buffer) const { return buffers_[buffer].offset; }
  size_t size() const { return size_; }

 private:
  struct Buffer {
    size_t bytes, first, last;
    size_t offset = 0;
  };
  std::vector<Buffer> buffers_;
  size_t size_ = 0;
};

}  // namespace normgrad::graph_mode
