// The case table: the calls that every backend and every front end is tested with. A Case says
// what to run, an Instance is one with its memory, and checks what a run left there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "normgrad/normgrad.hpp"
#include "reference/placed.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {

enum class Op { kLayerNorm, kRmsNorm, kBatchNorm };
const char* name_of(Op op);

using Call = std::variant<LayerNormBackward, RmsNormBackward, BatchNormBackward>;
using ForwardCall = std::variant<LayerNorm, RmsNorm, BatchNorm>;
using StepCall = std::variant<BatchNormReduce, BatchNormElementwise, BatchNormReduceBackward,
                              BatchNormElementwiseBackward>;

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
  kOutliers,          // the first element of each row or channel is 1000 times the others
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

// Where dx lies; of a layer: y, and kBoth: y in x and h in the residual.
enum class InPlace { kNone, kDy, kX, kDh, kResidual, kBoth };

// Of a BatchNorm in two steps.
enum class Step { kNone, kReduce, kElementwise };

struct Case {
  std::string name;
  Op op = Op::kLayerNorm;
  bool forward = false;  // the layer, not its gradient
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
  double gamma_offset = 0;  // LayerNorm and RMSNorm
  bool want_dx = true, want_dgamma = true, want_dbeta = true;
  bool has_dh = false;      // LayerNorm and RMSNorm
  bool accumulate = false;  // into dgamma and dbeta
  // Of layers, which ignore the five above.
  bool has_beta = true, has_residual = false, has_running = true;
  bool want_y = true, want_h = false, want_x_hat = false, want_mean = true, want_spread = true;
  // Of BatchNorm's steps: the elements per channel of each part, and the types of what passes
  // between the steps.
  Step step = Step::kNone;
  std::vector<int64_t> counts = {};
  DType sums = DType::kF64, count_dtype = DType::kI64;
  bool whole_sums = false;  // they are added up already
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

// The table of an operator's gradient. The long mode adds the cases that take gigabytes or minutes.
std::vector<Case> cases(Op op, bool long_mode);
// The same for what only the native API has.
std::vector<Case> extended_cases(Op op);
// The table of the operator itself.
std::vector<Case> forward_cases(Op op);
// The table of its steps: BatchNorm alone has some.
std::vector<Case> step_cases(Op op);

// What was found after a run.
struct Report {
  struct Output {
    const char* name;
    DType dtype;
    double k;  // the largest error
  };
  bool ok = true;
  std::string why;  // the first thing wrong
  std::vector<Output> outputs;
  // Elements of 16-bit outputs, and those correctly rounded; counted for random data in rows or
  // channels of 8 and more, where the terms of dx do not cancel too well.
  int64_t elements16 = 0, nearest16 = 0;

  double k(const char* name) const;  // 0 if there is no such output
};

// A case brought to life: its data, surrounded by red zones, and outputs filled with NaN. The same
// case and seed give the same data.
class AnyInstance {
 public:
  AnyInstance(const AnyInstance&) = delete;
  AnyInstance& operator=(const AnyInstance&) = delete;
  virtual ~AnyInstance() = default;

  virtual Status plan(Device device, Plan& plan) const = 0;
  const Buffers& buffers() const { return buffers_; }
  // The memory of each operand, which those point into.
  std::vector<std::span<std::byte>> memories() { return operands_.memories(); }

  // After a run: outputs within the bound; inputs, gaps, red zones and absent outputs unchanged.
  virtual Report check() const = 0;
  // Over the elements of all outputs.
  uint64_t hash() const { return operands_.hash(); }

 protected:
  AnyInstance(const Case& description, std::vector<Placed> operands)
      : case_(description), operands_(std::move(operands)) {}

  // The tensor of an operand that is there.
  std::optional<Tensor> tensor_of(int which) const;
  // Compares an output, if there is one, with the oracle.
  void compare_output(int which, const std::vector<double>& values,
                      const std::vector<double>& scales, double k, int64_t summed, bool telling,
                      Report& report) const;
  // What the bound does not say: damage, and the share of correctly rounded outputs.
  void finish(Report& report) const;

  Case case_;
  PlacedOperands operands_;
  Buffers buffers_;
};

// A gradient.
class Instance : public AnyInstance {
 public:
  using Report = reference::Report;

  explicit Instance(const Case& description, uint64_t seed = 1);
  const Call& call() const { return call_; }
  Status plan(Device device, Plan& plan) const override;
  Report check() const override;

 private:
  enum { kX, kDy, kGamma, kMean, kSpread, kDh, kDx, kDgamma, kDbeta };

  void make_tensors();
  void make_inputs(uint64_t seed);
  void make_call();
  Gradients reference() const;

  Call call_;
};

// A layer.
class ForwardInstance : public AnyInstance {
 public:
  explicit ForwardInstance(const Case& description, uint64_t seed = 1);
  const ForwardCall& call() const { return call_; }
  Status plan(Device device, Plan& plan) const override;
  Report check() const override;

 private:
  enum {
    kX,
    kResidual,
    kGamma,
    kBeta,
    kY,
    kH,
    kXHat,
    kMean,
    kSpread,
    kRunningMean,
    kRunningVariance
  };

  void make_tensors();
  void make_inputs(uint64_t seed);
  void make_call();
  Normalized reference() const;

  ForwardCall call_;
};

// One of the steps of a BatchNorm.
class StepInstance : public AnyInstance {
 public:
  explicit StepInstance(const Case& description, uint64_t seed = 1);
  const StepCall& call() const { return call_; }
  Status plan(Device device, Plan& plan) const override;
  Report check() const override;

 private:
  enum {
    kX,
    kDy,
    kGamma,
    kBeta,
    kMean,
    kSpread,
    kSumDy,
    kSumDyXmu,
    kCount,
    kSquares,
    kY,
    kDx,
    kDgamma,
    kDbeta,
    kSavedMean,
    kSavedSpread,
    kRunningMean,
    kRunningVariance
  };

  void make_tensors();
  void make_inputs(uint64_t seed);
  void make_moments(uint64_t seed);
  void make_sums(uint64_t seed);
  void make_call();
  void check_forward(Report& report) const;
  void check_backward(Report& report) const;

  StepCall call_;
};

// Whichever the case is.
std::unique_ptr<AnyInstance> make_instance(const Case& description, uint64_t seed = 1);

// How a front end runs a call.
using Runner = std::function<Status(const Call& call, const Buffers& buffers)>;

// The native API on the CPU: plans, allocates the workspace and executes. The workspace is
// misaligned, full of NaN and has red zones; a write outside it is reported as kInternal.
Status run_native(const Call& call, const Buffers& buffers);
Status run_native(const Plan& plan, const Buffers& buffers);

// The same with the data of an instance on any device; on a GPU also as the replay of a graph,
// which was captured on another stream while the data were not there yet.
Status run_on(AnyInstance& instance, Device device);
Status run_in_graph(AnyInstance& instance);

}  // namespace normgrad::reference
