// The aclnn operators behind one interface, so that a test is written once for all: tensors are
// lists in the order of the phase-1 functions. run_aclnn is the front end for the case table.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_ops_nn.h"
#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/memory.hpp"

namespace acl_test {

using normgrad::DType;

inline constexpr aclnnStatus kNullPointer = 161001;
inline constexpr aclnnStatus kInvalid = 161002;

// The gradients, then the layers.
enum class Op {
  kLayerNorm,
  kRmsNorm,
  kAddLayerNorm,
  kBatchNorm,
  kReduce,
  kElemt,
  kForwardLayerNorm,
  kForwardRmsNorm
};
inline bool is_batch_norm(Op op) {
  return op == Op::kBatchNorm || op == Op::kReduce || op == Op::kElemt;
}

// The tensors of an operator, by the names that its messages use.
inline std::vector<std::string> names(Op op) {
  switch (op) {
    case Op::kLayerNorm:
      return {"gradOut",      "input",        "mean",          "rstd",       "weightOptional",
              "biasOptional", "gradInputOut", "gradWeightOut", "gradBiasOut"};
    case Op::kRmsNorm:
      return {"dy", "x", "rstd", "gamma", "dxOut", "dgammaOut"};
    case Op::kAddLayerNorm:
      return {"dy",    "x1",           "x2",    "rstd",      "mean",
              "gamma", "dsumOptional", "dxOut", "dgammaOut", "dbetaOut"};
    case Op::kBatchNorm:
      return {"gradOut",  "input",      "weight",    "runningMean", "runningVar",
              "saveMean", "saveInvstd", "gradInput", "gradWeight",  "gradBias"};
    case Op::kReduce:
      return {"gradOut", "input",    "mean",       "invstd",  "weight",
              "sumDy",   "sumDyXmu", "gradWeight", "gradBias"};
    case Op::kElemt:
      return {"gradOut", "input",    "mean",    "invstd",   "weight",
              "sumDy",   "sumDyXmu", "counter", "gradInput"};
    case Op::kForwardLayerNorm:
      return {"input", "weightOptional",  "biasOptional",
              "out",   "meanOutOptional", "rstdOutOptional"};
    default:
      return {"x", "gamma", "yOut", "rstdOut"};
  }
}

inline size_t position(Op op, const std::string& name) {
  const std::vector<std::string> all = names(op);
  return static_cast<size_t>(std::find(all.begin(), all.end(), name) - all.begin());
}

// The arguments of aclCreateTensor. No strides: null.
struct View {
  aclDataType dtype = ACL_FLOAT;
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};
  int64_t offset = 0;
  void* base = nullptr;
  aclFormat format = ACL_FORMAT_ND;
  bool absent = false;  // a null aclTensor*
};

inline const View kAbsent = {.absent = true};

struct Call {
  Op op;
  std::vector<View> tensors;                                           // as names(op)
  std::optional<std::vector<int64_t>> normalized_shape = {};           // absent: null
  std::optional<std::vector<char>> mask = std::vector<char>{1, 1, 1};  // likewise
  bool training = true;
  double eps = 0;
  std::array<bool, 3> wanted = {true, true, true};  // inputG, weightG, biasG

  View& operator[](const std::string& name) { return tensors.at(position(op, name)); }
};

// One dimension that just holds the view, as frameworks pass it.
inline int64_t storage_elements(const View& view) {
  __int128 last = view.offset, stride = 1;
  for (size_t axis = view.shape.size(); axis-- > 0;) {
    if (view.shape[axis] <= 0) return 0;
    last += (view.strides.empty() ? stride : view.strides[axis]) * (view.shape[axis] - 1);
    stride *= std::min<int64_t>(view.shape[axis], int64_t{1} << 40);
    if (stride > INT64_MAX || last >= INT64_MAX) return INT64_MAX;
  }
  return static_cast<int64_t>(std::max<__int128>(last + 1, 0));
}

// The objects of a call.
class Objects {
 public:
  explicit Objects(const Call& call) {
    for (const View& view : call.tensors) {
      const int64_t storage = storage_elements(view);
      tensors_.push_back(view.absent
                             ? nullptr
                             : aclCreateTensor(view.shape.data(), view.shape.size(), view.dtype,
                                               view.strides.empty() ? nullptr : view.strides.data(),
                                               view.offset, view.format, &storage, 1, view.base));
    }
    if (call.normalized_shape) {
      shape_ = aclCreateIntArray(call.normalized_shape->data(), call.normalized_shape->size());
    }
    if (!call.mask) return;
    bool values[16] = {};
    std::copy(call.mask->begin(), call.mask->end(), values);
    mask_ = aclCreateBoolArray(values, call.mask->size());
  }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects() {
    for (const aclTensor* tensor : tensors_) (void)aclDestroyTensor(tensor);
    (void)aclDestroyIntArray(shape_);
    (void)aclDestroyBoolArray(mask_);
  }

  const std::vector<aclTensor*>& tensors() const { return tensors_; }
  const aclIntArray* shape() const { return shape_; }
  const aclBoolArray* mask() const { return mask_; }

 private:
  std::vector<aclTensor*> tensors_;
  aclIntArray* shape_ = nullptr;
  aclBoolArray* mask_ = nullptr;
};

inline aclnnStatus phase_1(const Call& call, const Objects& o, uint64_t* size,
                           aclOpExecutor** executor) {
  const std::vector<aclTensor*>& t = o.tensors();
  switch (call.op) {
    case Op::kLayerNorm:
      return aclnnLayerNormBackwardGetWorkspaceSize(t[0], t[1], o.shape(), t[2], t[3], t[4], t[5],
                                                    o.mask(), t[6], t[7], t[8], size, executor);
    case Op::kRmsNorm:
      return aclnnRmsNormGradGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], size, executor);
    case Op::kAddLayerNorm:
      return aclnnAddLayerNormGradGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
                                                   t[8], t[9], size, executor);
    case Op::kBatchNorm:
      return aclnnBatchNormBackwardGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6],
                                                    call.training, call.eps, o.mask(), t[7], t[8],
                                                    t[9], size, executor);
    case Op::kReduce:
      return aclnnBatchNormReduceBackwardGetWorkspaceSize(
          t[0], t[1], t[2], t[3], t[4], call.wanted[0], call.wanted[1], call.wanted[2], t[5], t[6],
          t[7], t[8], size, executor);
    case Op::kElemt:
      return aclnnBatchNormElemtBackwardGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6],
                                                         t[7], t[8], size, executor);
    case Op::kForwardLayerNorm:
      return aclnnLayerNormGetWorkspaceSize(t[0], o.shape(), t[1], t[2], call.eps, t[3], t[4], t[5],
                                            size, executor);
    default:
      return aclnnRmsNormGetWorkspaceSize(t[0], t[1], call.eps, t[2], t[3], size, executor);
  }
}

inline aclnnStatus phase_2(Op op, void* workspace, uint64_t size, aclOpExecutor* executor,
                           aclrtStream stream = nullptr) {
  return (op == Op::kLayerNorm          ? aclnnLayerNormBackward
          : op == Op::kRmsNorm          ? aclnnRmsNormGrad
          : op == Op::kAddLayerNorm     ? aclnnAddLayerNormGrad
          : op == Op::kBatchNorm        ? aclnnBatchNormBackward
          : op == Op::kReduce           ? aclnnBatchNormReduceBackward
          : op == Op::kElemt            ? aclnnBatchNormElemtBackward
          : op == Op::kForwardLayerNorm ? aclnnLayerNorm
                                        : aclnnRmsNorm)(workspace, size, executor, stream);
}

inline std::string last_message() {
  const char* message = aclGetRecentErrMsg();
  return message ? message : "";
}

inline normgrad::Status answer(const char* phase, aclnnStatus status) {
  if (status == ACL_SUCCESS) return {};
  return {normgrad::Code::kInternal,
          std::string(phase) + " answered " + std::to_string(status) + ": " + last_message()};
}

// Both phases. The workspace has an odd address, is full of NaN and has red zones; the aclTensors
// go before anybody looks at the results, as frameworks do it.
inline normgrad::Status run(const Call& call, uint64_t* workspace_size = nullptr) {
  using normgrad::reference::kRedZone;
  const Objects objects(call);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  if (auto s = answer("phase 1", phase_1(call, objects, &size, &executor)); !s.ok()) return s;
  if (workspace_size) *workspace_size = size;
  const size_t start = kRedZone + 1;
  std::vector<std::byte> memory(start + size + kRedZone, normgrad::reference::kPoison);
  void* workspace = size > 0 ? memory.data() + start : nullptr;
  auto status = answer("phase 2", phase_2(call.op, workspace, size, executor));
  const std::span<const std::byte> all = memory;
  if (status.ok() && (!normgrad::reference::poisoned(all.first(start)) ||
                      !normgrad::reference::poisoned(all.last(kRedZone)))) {
    return {normgrad::Code::kInternal, "workspace: written outside its size"};
  }
  return status;
}

inline aclDataType acl_dtype(DType dtype) {
  return dtype == DType::kF32    ? ACL_FLOAT
         : dtype == DType::kF16  ? ACL_FLOAT16
         : dtype == DType::kBF16 ? ACL_BF16
                                 : ACL_INT32;
}

// `first` is the element with all indices 0: the storage begins some elements before it.
inline View view_of(const normgrad::Tensor& tensor, const void* first,
                    aclFormat format = ACL_FORMAT_ND) {
  const int64_t offset = first ? 3 : 0;
  char* base = static_cast<char*>(const_cast<void*>(first));
  if (base) base -= offset * static_cast<int64_t>(normgrad::size_of(tensor.dtype));
  return {acl_dtype(tensor.dtype), tensor.shape, tensor.strides, offset, base, format};
}

inline View view_of(const std::optional<normgrad::Tensor>& tensor, const void* first,
                    aclFormat format = ACL_FORMAT_ND) {
  return tensor ? view_of(*tensor, first, format) : kAbsent;
}

// In the words of aclnn; none where it has no words for the call.
inline std::optional<Call> translate(const normgrad::LayerNormBackward& c,
                                     const normgrad::Buffers& b) {
  if (c.statistics != normgrad::Statistics::kMeanRstd) return {};
  if (c.mean->shape != c.spread.shape) return {};
  if (c.gamma && c.gamma->dtype != DType::kF32 && c.gamma->dtype != c.x.dtype) return {};
  return Call{
      .op = Op::kLayerNorm,
      .tensors = {view_of(c.dy, b.dy), view_of(c.x, b.x), view_of(c.mean, b.mean),
                  view_of(c.spread, b.spread), view_of(c.gamma, b.gamma), kAbsent,
                  view_of(c.dx, b.dx), view_of(c.dgamma, b.dgamma), view_of(c.dbeta, b.dbeta)},
      .normalized_shape =
          std::vector<int64_t>{c.x.shape.end() - c.normalized_axes, c.x.shape.end()},
      .mask = std::vector<char>{c.dx.has_value(), c.dgamma.has_value(), c.dbeta.has_value()}};
}

inline std::optional<Call> translate(const normgrad::RmsNormBackward& c,
                                     const normgrad::Buffers& b) {
  if (!c.spread || !c.gamma || !c.dx || !c.dgamma) return {};
  if (c.spread->dtype != DType::kF32 || c.dgamma->dtype != DType::kF32) return {};
  if (c.dx->dtype != c.x.dtype) return {};
  if (c.gamma->dtype != DType::kF32 && c.gamma->dtype != c.x.dtype) return {};
  return Call{
      .op = Op::kRmsNorm,
      .tensors = {view_of(c.dy, b.dy), view_of(c.x, b.x), view_of(c.spread, b.spread),
                  view_of(c.gamma, b.gamma), view_of(c.dx, b.dx), view_of(c.dgamma, b.dgamma)}};
}

// Training has mean and rstd, frozen statistics have mean and variance. No channels are refused.
inline std::optional<Call> translate(const normgrad::BatchNormBackward& c,
                                     const normgrad::Buffers& b) {
  if (c.frozen != (c.statistics == normgrad::Statistics::kMeanVariance)) return {};
  const size_t rank = c.x.shape.size(), axis = static_cast<size_t>(c.channel_axis);
  const bool last = axis + 1 == rank && (rank == 4 || rank == 5);
  if ((axis != 1 && !last) || c.x.shape[axis] == 0) return {};
  const aclFormat format = axis == 1   ? ACL_FORMAT_ND
                           : rank == 4 ? ACL_FORMAT_NHWC
                                       : ACL_FORMAT_NDHWC;
  const View mean = view_of(c.mean, b.mean), spread = view_of(c.spread, b.spread);
  return Call{
      .op = Op::kBatchNorm,
      .tensors = {view_of(c.dy, b.dy, format), view_of(c.x, b.x, format), view_of(c.gamma, b.gamma),
                  c.frozen ? mean : kAbsent, c.frozen ? spread : kAbsent, c.frozen ? kAbsent : mean,
                  c.frozen ? kAbsent : spread, view_of(c.dx, b.dx, format),
                  view_of(c.dgamma, b.dgamma), view_of(c.dbeta, b.dbeta)},
      .mask = std::vector<char>{c.dx.has_value(), c.dgamma.has_value(), c.dbeta.has_value()},
      .training = !c.frozen,
      .eps = c.eps};
}

// A case of the layers' table as aclnn has it.
inline normgrad::reference::Case spoken(normgrad::reference::Case c) {
  using normgrad::reference::InPlace;
  c.gamma_offset = 0;
  c.has_residual = c.want_h = c.want_x_hat = false;
  c.want_y = true;
  if (c.in_place != InPlace::kNone) c.in_place = InPlace::kX;
  c.statistics = normgrad::Statistics::kMeanRstd;
  if (c.op != normgrad::reference::Op::kRmsNorm) return c;
  c.has_gamma = c.want_spread = true;
  c.statistics_dtype = DType::kF32;
  return c;
}

inline bool fits(const std::optional<normgrad::Tensor>& parameter, const normgrad::Tensor& x) {
  return !parameter || parameter->dtype == DType::kF32 || parameter->dtype == x.dtype;
}

inline std::optional<Call> translate(const normgrad::LayerNorm& c, const normgrad::Buffers& b) {
  if (!fits(c.gamma, c.x) || !fits(c.beta, c.x)) return {};
  return Call{.op = Op::kForwardLayerNorm,
              .tensors = {view_of(c.x, b.x), view_of(c.gamma, b.gamma), view_of(c.beta, b.beta),
                          view_of(c.y, b.y), view_of(c.mean, b.saved_mean),
                          view_of(c.spread, b.saved_spread)},
              .normalized_shape =
                  std::vector<int64_t>{c.x.shape.end() - c.normalized_axes, c.x.shape.end()},
              .eps = c.eps};
}

inline std::optional<Call> translate(const normgrad::RmsNorm& c, const normgrad::Buffers& b) {
  if (!fits(c.gamma, c.x)) return {};
  return Call{.op = Op::kForwardRmsNorm,
              .tensors = {view_of(c.x, b.x), view_of(c.gamma, b.gamma), view_of(c.y, b.y),
                          view_of(c.spread, b.saved_spread)},
              .eps = c.eps};
}

inline std::optional<Call> translate(const normgrad::BatchNorm&, const normgrad::Buffers&) {
  return {};
}

inline bool has_negative_strides(const Call& call) {
  return std::any_of(call.tensors.begin(), call.tensors.end(), [](const View& view) {
    return std::any_of(view.strides.begin(), view.strides.end(), [](int64_t s) { return s < 0; });
  });
}

// Of reference::Call and reference::ForwardCall.
template <class... Calls>
std::optional<Call> translate(const std::variant<Calls...>& call,
                              const normgrad::Buffers& buffers) {
  std::optional<Call> translated =
      std::visit([&](const auto& c) { return translate(c, buffers); }, call);
  if (translated && has_negative_strides(*translated)) return {};
  return translated;
}

// A case of a gradient's table as aclnnAddLayerNormGrad has it.
inline normgrad::reference::Case spoken_sum(normgrad::reference::Case c) {
  c.statistics = normgrad::Statistics::kMeanRstd;
  c.statistics_dtype = c.params = DType::kF32;
  c.has_gamma = c.want_dx = c.want_dgamma = c.want_dbeta = true;
  c.gamma_offset = 0;
  c.accumulate = false;
  c.dx_dtype.reset();
  return c;
}

// Such a case with x as the sum of itself and nothing: `zero` is an element of -0, which changes no
// bit of any other.
inline std::optional<Call> translate_sum(const normgrad::reference::Call& call,
                                         const normgrad::Buffers& b, void* zero) {
  const auto& c = std::get<normgrad::LayerNormBackward>(call);
  if (!c.gamma || (c.gamma->dtype != DType::kF32 && c.gamma->dtype != c.x.dtype)) return {};
  const View nothing = {acl_dtype(c.x.dtype), c.x.shape, std::vector<int64_t>(c.x.shape.size(), 0),
                        0, zero};
  const Call translated = {
      .op = Op::kAddLayerNorm,
      .tensors = {view_of(c.dy, b.dy), view_of(c.x, b.x), nothing, view_of(c.spread, b.spread),
                  view_of(c.mean, b.mean), view_of(c.gamma, b.gamma), view_of(c.dh, b.dh),
                  view_of(c.dx, b.dx), view_of(c.dgamma, b.dgamma), view_of(c.dbeta, b.dbeta)}};
  return has_negative_strides(translated) ? std::optional<Call>() : translated;
}

// A reference::Runner.
inline normgrad::Status run_aclnn(const normgrad::reference::Call& call,
                                  const normgrad::Buffers& buffers) {
  const std::optional<Call> translated = translate(call, buffers);
  if (!translated) return {normgrad::Code::kBadArgument, "aclnn cannot say this"};
  return run(*translated);
}

enum class Order {
  kDense,
  kStepped,     // every second element
  kTransposed,  // the axes in reverse order in memory
  kGapped,      // a gap after each axis: no two axes merge
  kScattered,   // all of these
};
inline constexpr Order kOrders[] = {Order::kDense, Order::kStepped, Order::kTransposed,
                                    Order::kGapped, Order::kScattered};

inline normgrad::Tensor tensor_of(DType dtype, const std::vector<int64_t>& shape, Order order) {
  normgrad::Tensor tensor = {dtype, shape};
  if (order == Order::kDense || shape.empty()) return tensor;
  const bool reversed = order == Order::kTransposed || order == Order::kScattered;
  const int64_t gap = order == Order::kGapped || order == Order::kScattered ? 1 : 0;
  int64_t stride = order == Order::kStepped || order == Order::kScattered ? 2 : 1;
  tensor.strides.resize(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t axis = reversed ? i : shape.size() - 1 - i;
    tensor.strides[axis] = stride;
    stride = stride * std::max<int64_t>(shape[axis], 1) + gap;
  }
  return tensor;
}

// A tensor with its memory, all of it poison until somebody writes there.
class Array {
 public:
  Array() = default;
  explicit Array(normgrad::Tensor tensor, const std::vector<double>& values = {})
      : tensor_(std::move(tensor)) {
    int64_t elements = 1;
    const std::vector<int64_t> strides = normgrad::reference::strides_of(tensor_);
    for (size_t axis = 0; axis < strides.size(); ++axis) {
      elements += strides[axis] * std::max<int64_t>(tensor_.shape[axis] - 1, 0);
    }
    memory_.assign(2 * normgrad::reference::kRedZone +
                       static_cast<size_t>(elements) * normgrad::size_of(tensor_.dtype),
                   normgrad::reference::kPoison);
    if (!values.empty()) normgrad::reference::scatter(tensor_, data(), values);
  }

  const normgrad::Tensor& tensor() const { return tensor_; }
  void* data() { return memory_.data() + normgrad::reference::kRedZone; }
  const void* data() const { return memory_.data() + normgrad::reference::kRedZone; }
  View view(aclFormat format = ACL_FORMAT_ND) const { return view_of(tensor_, data(), format); }
  std::vector<double> values() const { return normgrad::reference::gather(tensor_, data()); }
  bool unwritten() const { return normgrad::reference::poisoned(memory_); }
  // Nothing but its elements was written.
  bool intact() const {
    Array rest = *this;
    normgrad::reference::erase(tensor_, rest.data(), normgrad::reference::kPoison);
    return rest.unwritten();
  }

 private:
  normgrad::Tensor tensor_;
  std::vector<std::byte> memory_;
};

}  // namespace acl_test
