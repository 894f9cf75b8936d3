// How the channels of a BatchNorm along the length are cut and dealt out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cpu {

// Channels per thread from which on whole channels are dealt out.
inline constexpr int64_t kManyChannels = 4;

// A contiguous run of elements of one channel.
struct Run {
  int64_t sample, begin, count;
};

class Pieces {
 public:
  explicit Pieces(const ChannelsShape& shape) : samples_(shape.samples), length_(shape.length) {
    if (length_ > kElements) {
      parts_ = (length_ + kElements - 1) / kElements;
    } else if (length_ > 0) {
      group_ = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(kElements / length_)));
    }
    if (length_ > 0) count_ = parts_ > 1 ? samples_ * parts_ : (samples_ + group_ - 1) / group_;
  }

  int64_t count() const { return count_; }
  bool whole() const { return parts_ == 1; }  // no sample is cut
  int64_t runs(int64_t piece) const {
    return parts_ > 1 ? 1 : std::min(group_, samples_ - piece * group_);
  }
  Run run(int64_t piece, int64_t index) const {
    if (parts_ == 1) return {piece * group_ + index, 0, length_};
    const int64_t begin = piece % parts_ * kElements;
    return {piece / parts_, begin, std::min(kElements, length_ - begin)};
  }

 private:
  static constexpr int64_t kElements = 16384;
  int64_t samples_, length_;
  int64_t parts_ = 1;  // pieces in a sample
  int64_t group_ = 1;  // samples in a piece
  int64_t count_ = 0;
};

}  // namespace normgrad::cpu
