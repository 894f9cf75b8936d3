// The case table: the calls that every backend and every front end is tested with. A Case says
// what to run, an Instance is one with its memory, and checks what a run left there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "normgrad/normgrad.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {

enum class Op { kLayerNorm, kRmsNorm, kBatchNorm };
const char* name_of(Op op);

using Call = std::variant<LayerNormBackward, RmsNormBackward, BatchNormBackward>;

enum class Values {
  kRandom,            // normal; dy has a mean
  kSameSign,          // dy and x_hat positive, so that sums only grow
  kCancelling,        // each second row nearly cancels the row before it in dgamma and dbeta
  kWide,              // magnitudes from 2^-20 to 2^20
  kExact,             // small integers and powers of two: nothing is rounded before the output
  kZeroDy,            // all gradients are 0
  kZeroDenominators,  // each third row or channel; x is 0 there too
  kNegativeVariance,  // of each third row or channel
  kNonFinite,         // a few NaN and Inf in x and dy
};

enum class Layout {
  kContiguous,
  kPadded,             // gaps after the rows; BatchNorm: after the planes
  kMixed,              // different gaps in each tensor, also between mean and spread
  kNegative,           // leading strides negative
  kBroadcastDy,        // leading strides of dy 0; BatchNorm: of the samples
  kBroadcastInputs,    // first stride of x, dy and the statistics of rows 0
  kPermuted,           // leading axes in reverse order in memory
  kChannelsLast,       // BatchNorm only
  kChannelsLastGaps,   // the same with gaps after the samples
  kStridedParameters,  // 1-D gamma, dgamma, dbeta and statistics with stride 2 or 3
  kStrided,            // gaps between all elements of every tensor
  kTransposed,         // the first axis fastest in every tensor
  kScattered,          // x as kTransposed, dx as kStrided, mean flat, spread in another shape
};

enum class InPlace { kNone, kDy, kX };

struct Case {
  std::string name;
  Op op = Op::kLayerNorm;
  std::vector<int64_t> shape;
  DType data = DType::kF32;  // x, dy, dx
  DType gamma = DType::kF32;
  DType statistics_dtype = DType::kF32;
  DType params = DType::kF32;          // dgamma, dbeta
  std::optional<DType> dx_dtype = {};  // if not that of x
  // RMSNorm has two forms: rstd is given (kMeanRstd), or r comes from x and eps (kMeanVariance).
  Statistics statistics = Statistics::kMeanRstd;
  int normalized_axes = 1;  // LayerNorm and RMSNorm
  int channel_axis = 1;     // BatchNorm
  bool keep_axis = false;   // mean and spread keep the normalized axes, as 1
  bool has_gamma = true;
  bool want_dx = true, want_dgamma = true, want_dbeta = true;
  double eps = 0;
  bool frozen = false;
  double mean_over_std = 0;
  double scale = 1;        // of x
  double dy_scale = 1;     // of dy
  double gamma_scale = 1;  // of gamma
  Values values = Values::kRandom;
  Layout layout = Layout::kContiguous;
  InPlace in_place = InPlace::kNone;
  int offset = 0;      // of every pointer from a multiple of 64 bytes, in elements
  bool random = true;  // plain random data: the smaller gates hold

  // How many sets of elements share statistics: the rows, or the channels of a BatchNorm.
  int64_t groups() const;
  // The elements that follow each other in one set: a row, or the positions of a channel.
  int64_t line() const;
  // The shape of the parameters.
  std::vector<int64_t> parameters() const;

  bool has_mean() const { return op != Op::kRmsNorm && statistics != Statistics::kXHatStd; }
  bool has_spread() const { return op != Op::kRmsNorm || statistics == Statistics::kMeanRstd; }
};

// The table of an operator. The long mode adds the cases that take gigabytes or minutes.
std::vector<Case> cases(Op op, bool long_mode);

// A case brought to life: its data, surrounded by red zones, and outputs filled with NaN. The same
// case and seed give the same data.
class Instance {
 public:
  explicit Instance(const Case& description, uint64_t seed = 1);
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const Call& call() const { return call_; }
  const Buffers& buffers() const { return buffers_; }
  // The memory of each operand, which those point into.
  std::vector<std::span<std::byte>> memories();

  struct Report {
    bool ok = true;
    std::string why;  // the first thing wrong
    double k_dx = 0, k_dgamma = 0, k_dbeta = 0;
    // Elements of 16-bit outputs, and those correctly rounded; counted for random data in rows or
    // channels of 8 and more, where the terms of dx do not cancel too well.
    int64_t elements16 = 0, nearest16 = 0;
  };
  // After a run: outputs within the bound; inputs, gaps, red zones and absent outputs unchanged.
  Report check() const;

  // Over the elements of all outputs.
  uint64_t hash() const;

 private:
  struct Operand {
    Tensor tensor;
    std::vector<std::byte> memory;
    std::vector<std::byte> before;  // a copy of the memory of an input that dx overwrites
    size_t first = 0;   // index of the byte at which the element with all indices 0 starts
    uint64_t hash = 0;  // of the memory of an input
    void* data();
  };
  enum { kX, kDy, kGamma, kMean, kSpread, kDx, kDgamma, kDbeta, kOperands };

  void make_tensors();
  void make_memory();
  void make_inputs(uint64_t seed);
  void make_call();
  Gradients reference() const;
  bool writes(int operand) const;  // whether the call has outputs in the memory of an operand
  std::string damage() const;      // what was written anywhere else

  Case case_;
  std::array<Operand, kOperands> operands_;
  int place_ = kDx;  // the operand whose memory dx has
  Call call_;
  Buffers buffers_;
};

// How a front end runs a call.
using Runner = std::function<Status(const Call& call, const Buffers& buffers)>;

// The native API on the CPU: plans, allocates the workspace and executes. The workspace is
// misaligned, full of NaN and has red zones; a write outside it is reported as kInternal.
Status run_native(const Call& call, const Buffers& buffers);

// The same with the data of an instance on any device; on a GPU also as the replay of a graph,
// which was captured on another stream while the data were not there yet.
Status run_on(Instance& instance, Device device);
Status run_in_graph(Instance& instance);

}  // namespace normgrad::reference
