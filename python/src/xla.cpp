// normgrad._xla: every operator as one XLA FFI handler per platform. The attributes say which
// operator, and which role each argument and result has, in order.
//
// vmap puts axes in front of every array (vmap_method="broadcast_all"): `rank` is what x had
// before, and the handler walks over the axes in front of that.
#include <nanobind/nanobind.h>

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "call.hpp"
#include "normgrad/cuda.hpp"
#include "xla/ffi/api/ffi.h"

namespace normgrad::python {
namespace {

namespace ffi = xla::ffi;
namespace nb = nanobind;

ffi::Error error_of(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  const bool internal = status.code() == Code::kInternal;
  return {internal ? ffi::ErrorCode::kInternal : ffi::ErrorCode::kInvalidArgument,
          status.message()};
}

struct Name {
  std::string_view name;
  Role role;
};
constexpr Name kInputs[] = {{"x", kX},
                            {"dy", kDy},
                            {"gamma", kGamma},
                            {"beta", kBeta},
                            {"mean", kMean},
                            {"spread", kSpread},
                            {"dh", kDh},
                            {"residual", kResidual},
                            {"sum_dy", kSumDy},
                            {"sum_dy_xmu", kSumDyXmu},
                            {"count", kCount},
                            {"running_mean", kRunningMean},
                            {"running_variance", kRunningVariance}};
constexpr Name kOutputs[] = {{"y", kY},
                             {"h", kH},
                             {"x_hat", kXHat},
                             {"mean", kSavedMean},
                             {"spread", kSavedSpread},
                             {"dx", kDx},
                             {"dgamma", kDgamma},
                             {"dbeta", kDbeta},
                             {"sum_dy", kSumDy},
                             {"sum_dy_xmu", kSumDyXmu},
                             {"running_mean", kRunningMean},
                             {"running_variance", kRunningVariance}};
constexpr std::pair<std::string_view, Op> kOps[] = {
    {"layer_norm", Op::kLayerNorm},
    {"rms_norm", Op::kRmsNorm},
    {"batch_norm", Op::kBatchNorm},
    {"layer_norm_backward", Op::kLayerNormBackward},
    {"rms_norm_backward", Op::kRmsNormBackward},
    {"batch_norm_backward", Op::kBatchNormBackward},
    {"batch_norm_reduce_backward", Op::kBatchNormReduceBackward},
    {"batch_norm_elementwise_backward", Op::kBatchNormElementwiseBackward}};
constexpr std::pair<std::string_view, Statistics> kStatistics[] = {
    {"mean_rstd", Statistics::kMeanRstd},
    {"mean_variance", Statistics::kMeanVariance},
    {"x_hat_std", Statistics::kXHatStd}};

// A call and how far each array goes on from one element of the batch to the next.
struct Batch {
  Call call{};
  int64_t in_front = 0;  // axes of the batch
  int64_t size = 1;
  std::array<int64_t, kRoles> bytes = {};
  std::vector<std::pair<const void*, Role>> moved;  // running statistics, to be copied first
};

Status read(Batch& batch, Role role, const ffi::AnyBuffer& buffer, std::string_view name) {
  Operand& operand = batch.call.operands[role];
  switch (buffer.element_type()) {
    case ffi::DataType::F32:
      operand.dtype = DType::kF32;
      break;
    case ffi::DataType::F16:
      operand.dtype = DType::kF16;
      break;
    case ffi::DataType::BF16:
      operand.dtype = DType::kBF16;
      break;
    case ffi::DataType::S32:
      operand.dtype = DType::kI32;
      break;
    default:
      return {Code::kBadDType, std::string(name) + ": expected float32, float16 or bfloat16"};
  }
  const auto dimensions = buffer.dimensions();
  const int64_t own = static_cast<int64_t>(dimensions.size()) - batch.in_front;
  if (own < 0 || own > kMaxRank) {
    return {Code::kBadShape, std::string(name) + ": expected at most " + std::to_string(kMaxRank) +
                                 " axes, got " + std::to_string(own)};
  }
  operand.data = buffer.untyped_data();
  operand.rank = static_cast<int>(own);
  int64_t stride = 1;
  for (int64_t axis = own - 1; axis >= 0; --axis) {
    operand.shape[axis] = dimensions[batch.in_front + axis];
    operand.strides[axis] = stride;
    stride *= operand.shape[axis];
  }
  batch.bytes[role] = stride * static_cast<int64_t>(size_of(operand.dtype));
  return {};
}

// Reads the names "x,gamma,beta" and the buffers in that order.
template <class Buffers, class Get>
Status read_all(Batch& batch, std::string_view names, const Buffers& buffers, Get get,
                std::span<const Name> known) {
  for (size_t index = 0; index < buffers.size(); ++index) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const Name* found = nullptr;
    for (const Name& entry : known) {
      if (entry.name == name) found = &entry;
    }
    if (found == nullptr) return {Code::kBadArgument, std::string(name) + ": not an operand"};
    const Operand before = batch.call.operands[found->role];
    if (before.present()) batch.moved.emplace_back(before.data, found->role);
    const Status status = read(batch, found->role, get(buffers, index), name);
    if (!status.ok()) return status;
  }
  return {};
}

template <class Value, size_t kSize>
Status look_up(std::string_view name, const std::pair<std::string_view, Value> (&table)[kSize],
               Value& value) {
  for (const auto& [key, entry] : table) {
    if (key != name) continue;
    value = entry;
    return {};
  }
  return {Code::kBadArgument, "'" + std::string(name) + "': not a known name"};
}

struct Attributes {
  std::string_view op, inputs, outputs, statistics;
  int64_t rank, axis;
  double eps, gamma_offset, momentum;
  bool frozen;
};

Status make_batch(const Attributes& attributes, ffi::RemainingArgs arguments,
                  ffi::RemainingRets results, Batch& batch) {
  Call& call = batch.call;
  if (Status s = look_up(attributes.op, kOps, call.op); !s.ok()) return s;
  if (Status s = look_up(attributes.statistics, kStatistics, call.statistics); !s.ok()) return s;
  call.axis = static_cast<int>(attributes.axis);
  call.eps = attributes.eps;
  call.gamma_offset = attributes.gamma_offset;
  call.momentum = attributes.momentum;
  call.frozen = attributes.frozen;
  const auto shape = arguments.get<ffi::AnyBuffer>(0)->dimensions();  // x is the first
  batch.in_front = static_cast<int64_t>(shape.size()) - attributes.rank;
  for (int64_t axis = 0; axis < batch.in_front; ++axis) batch.size *= shape[axis];
  const Status status = read_all(
      batch, attributes.inputs, arguments,
      [](const ffi::RemainingArgs& a, size_t i) { return *a.get<ffi::AnyBuffer>(i); }, kInputs);
  if (!status.ok()) return status;
  return read_all(
      batch, attributes.outputs, results,
      [](const ffi::RemainingRets& r, size_t i) { return **r.get<ffi::AnyBuffer>(i); }, kOutputs);
}

// `allocate` gives the workspace of a GPU; `copy` copies there or here.
template <class Allocate, class Copy>
Status run(Batch& batch, void* stream, Allocate allocate, Copy copy) {
  Plan plan;
  Status status = plan_of(batch.call, plan);
  if (!status.ok()) return status;
  for (const auto& [from, role] : batch.moved) {
    status = copy(batch.call.operands[role].data, from,
                  static_cast<size_t>(batch.bytes[role] * batch.size));
    if (!status.ok()) return status;
  }
  void* workspace = nullptr;
  status = allocate(plan.workspace_size(), workspace);
  for (int64_t element = 0; element < batch.size && status.ok(); ++element) {
    status = execute(plan, batch.call, workspace, stream);
    for (int role = 0; role < kRoles; ++role) {
      Operand& operand = batch.call.operands[role];
      if (operand.present()) operand.data = static_cast<char*>(operand.data) + batch.bytes[role];
    }
  }
  return status;
}

ffi::Error on_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::string_view op,
                  std::string_view inputs, std::string_view outputs, std::string_view statistics,
                  int64_t rank, int64_t axis, double eps, double gamma_offset, double momentum,
                  bool frozen) {
  Batch batch;
  Status status =
      make_batch({op, inputs, outputs, statistics, rank, axis, eps, gamma_offset, momentum, frozen},
                 arguments, results, batch);
  if (!status.ok()) return error_of(status);
  return error_of(run(
      batch, nullptr, [](size_t, void*&) { return Status(); },
      [](void* to, const void* from, size_t bytes) {
        std::memcpy(to, from, bytes);
        return Status();
      }));
}

ffi::Error on_cuda(void* stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs arguments,
                   ffi::RemainingRets results, std::string_view op, std::string_view inputs,
                   std::string_view outputs, std::string_view statistics, int64_t rank,
                   int64_t axis, double eps, double gamma_offset, double momentum, bool frozen) {
  Batch batch;
  Status status =
      make_batch({op, inputs, outputs, statistics, rank, axis, eps, gamma_offset, momentum, frozen},
                 arguments, results, batch);
  if (!status.ok()) return error_of(status);
  batch.call.device = Device::kCuda;
  status = cuda::get_device(batch.call.device_id);
  if (!status.ok()) return error_of(status);
  return error_of(run(
      batch, stream,
      [&](size_t bytes, void*& workspace) -> Status {
        if (bytes == 0) return {};
        const auto memory = scratch.Allocate(bytes);
        if (!memory) return {Code::kInternal, "workspace: XLA has no memory left"};
        workspace = *memory;
        return {};
      },
      [&](void* to, const void* from, size_t bytes) {
        return cuda::copy(to, from, bytes, stream);
      }));
}

template <class Binding>
auto with_attributes(Binding&& binding) {
  return std::forward<Binding>(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("op")
      .template Attr<std::string_view>("inputs")
      .template Attr<std::string_view>("outputs")
      .template Attr<std::string_view>("statistics")
      .template Attr<int64_t>("rank")
      .template Attr<int64_t>("axis")
      .template Attr<double>("eps")
      .template Attr<double>("gamma_offset")
      .template Attr<double>("momentum")
      .template Attr<bool>("frozen");
}

XLA_FFI_DEFINE_HANDLER(cpu_handler, on_cpu, with_attributes(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(cuda_handler, on_cuda,
                       with_attributes(ffi::Ffi::Bind()
                                           .Ctx<ffi::PlatformStream<void*>>()
                                           .Ctx<ffi::ScratchAllocator>()));

}  // namespace
}  // namespace normgrad::python

NB_MODULE(_xla, m) {
  using namespace normgrad::python;
  m.attr("cpu") = nb::capsule(reinterpret_cast<void*>(cpu_handler));
  m.attr("cuda") = nb::capsule(reinterpret_cast<void*>(cuda_handler));
}
