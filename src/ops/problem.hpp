// The canonical problems: two operators, their gradients, and a copy. Every call of every front end
// is reduced to them, so a backend knows nothing of operators, ranks or dialects. Strides are in
// elements.
#pragma once

#include <array>
#include <cstdint>

#include "normgrad/tensor.hpp"

namespace normgrad {

// A vector of parameters or statistics, one value per column or channel.
struct Vector {
  bool present = false;
  DType dtype = DType::kF32;
  int64_t stride = 1;
  bool accumulate = false;  // an output: added to what is there
};

// The same of each part of a batch that is spread over processes.
struct Parts : Vector {
  int64_t part = 0;  // from one part to the next
};

enum class RowStatistics {
  kXHatStd,
  kMeanRstd,
  kMeanVariance,
  kFromX,  // RMSNorm: no mean, r = 1 / sqrt(mean(x^2) + eps) of the row itself
  kRstd,   // RMSNorm: no mean, r = spread
};

// RMSNorm does not subtract a mean, so its gradient has no mean(g).
constexpr bool is_rms(RowStatistics statistics) {
  return statistics == RowStatistics::kFromX || statistics == RowStatistics::kRstd;
}

// Rows x cols, the columns contiguous. The rows are the points of a grid of at most kMaxLead axes
// (the leading axes, merged where all tensors allow it: nearly always into one).
struct RowsShape {
  static constexpr int kMaxLead = 7;
  using LeadStrides = std::array<int64_t, kMaxLead>;

  DType dtype = DType::kF32;  // of what has rows and columns
  int64_t rows = 0, cols = 0;
  int lead_rank = 0;
  LeadStrides lead_extent{};

  // A statistic, one value per row.
  struct RowScalar {
    bool present = false;
    DType dtype = DType::kF32;
    LeadStrides lead{};
  };
};

// LayerNorm and RMSNorm.
struct RowsForwardProblem : RowsShape {
  bool rms = false;  // mean = 0
  LeadStrides x{}, residual{}, y{}, h{}, x_hat{};
  bool has_residual = false, has_y = false, has_h = false, has_x_hat = false;
  RowScalar mean, spread;
  Statistics statistics = Statistics::kMeanRstd;  // what spread is
  double eps = 0;
  Vector gamma, beta;
};

// Their gradients.
struct RowsProblem : RowsShape {
  LeadStrides x{}, dy{}, dx{}, dh{};
  RowStatistics statistics = RowStatistics::kMeanRstd;
  RowScalar mean, spread;
  double eps = 0;
  bool has_dx = false, has_dh = false;
  Vector gamma, dgamma, dbeta;
};

// Whether a BatchNorm is done at once or in its two steps.
enum class ChannelsStep {
  kAll,
  kReduce,       // the channels' moments, or their sums and parameter gradients; no y, no dx
  kElementwise,  // y from given moments, dx from given sums
};

// Samples x channels x length, contiguous along the length or along the channels.
struct ChannelsShape {
  struct Strides {
    int64_t sample, channel, position;
  };

  DType dtype = DType::kF32;  // of what has samples, channels and a length
  int64_t samples = 0, channels = 0, length = 0;
};

// BatchNorm. Statistics of no elements are saved as 0.
struct ChannelsForwardProblem : ChannelsShape {
  Strides x{}, y{};
  bool has_y = false;
  bool frozen = false;          // running_mean and running_variance are the statistics
  bool spread_is_rstd = false;  // else biased variance
  double eps = 0, momentum = 0;
  Vector gamma, beta, mean, spread, running_mean, running_variance;
  ChannelsStep step = ChannelsStep::kAll;
  Parts part_mean;  // kElementwise: of `parts` parts
  Parts squares;    // written by kReduce, of one part; read by kElementwise
  Vector count;     // the same: elements per channel of each part
  int64_t parts = 0;

  // Whether x and y (if there) step by 1 along the axis.
  bool contiguous_along_length() const { return length <= 1 || all_unit(&Strides::position); }
  bool contiguous_along_channels() const { return channels <= 1 || all_unit(&Strides::channel); }

 private:
  bool all_unit(int64_t Strides::*stride) const {
    return x.*stride == 1 && (!has_y || y.*stride == 1);
  }
};

// Its gradient.
struct ChannelsProblem : ChannelsShape {
  Strides x{}, dy{}, dx{};
  bool spread_is_rstd = false;  // else biased variance
  Vector mean, spread;
  double eps = 0;
  bool frozen = false;
  bool has_dx = false;
  Vector gamma, dgamma, dbeta;
  ChannelsStep step = ChannelsStep::kAll;
  Parts sum_dy, sum_dy_xmu;  // written by kReduce, of one part; read by kElementwise
  int64_t parts = 0;
  Vector count;  // the same, but `counts` numbers of elements per channel
  int64_t counts = 0;

  // Whether x, dy and dx (if there) all step by 1 along the axis.
  bool contiguous_along_length() const { return length <= 1 || all_unit(&Strides::position); }
  bool contiguous_along_channels() const { return channels <= 1 || all_unit(&Strides::channel); }

 private:
  bool all_unit(int64_t Strides::*stride) const {
    return x.*stride == 1 && dy.*stride == 1 && (!has_dx || dx.*stride == 1);
  }
};

// A tensor on its way into the workspace or out of it, axis by axis. Either both types are the
// same, or one is float32. On its way to float32 a number may be added to each element.
struct CopyProblem {
  static constexpr int kMaxRank = 8;
  using Axes = std::array<int64_t, kMaxRank>;

  DType from_dtype = DType::kF32, to_dtype = DType::kF32;
  int rank = 0;
  Axes extents{}, from{}, to{};
  float offset = 0;
};

}  // namespace normgrad
