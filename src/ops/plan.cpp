#include "normgrad/plan.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "normgrad/normgrad.hpp"
#include "ops/prepare.hpp"

namespace normgrad {
namespace {

struct Bound {
  const Operand* operand;
  const void* data;
};

// The operands that have elements, with their pointers.
class BoundOperands {
 public:
  BoundOperands(const Operands& operands, const Buffers& buffers) {
    for (const Role& role : kRoles) {
      const Operand& operand = operands.*role.operand;
      if (!operand.present || operand.extent.elements == 0) continue;
      bound_[count_++] = {&operand, role.data(buffers)};
    }
  }
  const Bound* begin() const { return bound_.data(); }
  const Bound* end() const { return bound_.data() + count_; }

 private:
  std::array<Bound, kRoles.size()> bound_;
  size_t count_ = 0;
};

Status check_pointers(const BoundOperands& operands) {
  for (const Bound& bound : operands) {
    if (bound.data == nullptr) {
      return {Code::kNullPointer, std::string(bound.operand->name) + ": expected data, got null"};
    }
    const size_t size = size_of(bound.operand->tensor.dtype);
    if (reinterpret_cast<uintptr_t>(bound.data) % size != 0) {
      char address[32];
      std::snprintf(address, sizeof address, "%p", bound.data);
      return {Code::kBadArgument, std::string(bound.operand->name) +
                                      ": expected a pointer aligned to its " +
                                      std::to_string(size) + "-byte elements, got " + address};
    }
  }
  return {};
}

// Strides of axes of extent 1 say nothing.
bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype) return false;
  for (size_t axis = 0; axis < a.shape.size(); ++axis) {
    if (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
  }
  return true;
}

// Where outputs may lie: kernels read each element there before they write it.
bool in_place(const Operands& o, const Bound& a, const Bound& b) {
  constexpr std::pair<Operand Operands::*, Operand Operands::*> kAllowed[] = {
      {&Operands::dx, &Operands::dy},      {&Operands::dx, &Operands::x},
      {&Operands::dx, &Operands::dh},      {&Operands::y, &Operands::x},
      {&Operands::y, &Operands::residual}, {&Operands::h, &Operands::x},
      {&Operands::h, &Operands::residual}};
  for (const auto& [output, input] : kAllowed) {
    if (a.operand == &(o.*output) && b.operand == &(o.*input)) {
      return a.data == b.data && same_layout(a.operand->tensor, b.operand->tensor);
    }
  }
  return false;
}

Status check_overlaps(const Operands& o, const BoundOperands& operands) {
  for (const Bound& output : operands) {
    if (!output.operand->output) continue;
    for (const Bound& other : operands) {
      if (&other == &output || in_place(o, output, other)) continue;
      if (overlap(output.operand->extent, output.data, other.operand->extent, other.data)) {
        return {Code::kBadArgument, std::string(output.operand->name) + ": overlaps " +
                                        other.operand->name + " in memory"};
      }
    }
  }
  return {};
}

Status check_workspace(const BoundOperands& operands, const void* workspace, size_t size,
                       size_t needed) {
  if (needed == 0) return {};
  if (size < needed) {
    return {Code::kInsufficientWorkspace, "workspace_size: expected at least " +
                                              std::to_string(needed) + " bytes, got " +
                                              std::to_string(size)};
  }
  if (workspace == nullptr) {
    return {Code::kNullPointer,
            "workspace: expected " + std::to_string(needed) + " bytes, got null"};
  }
  Extent extent;
  extent.elements = extent.high = extent.run = static_cast<int64_t>(needed);
  for (const Bound& bound : operands) {
    if (overlap(extent, workspace, bound.operand->extent, bound.data)) {
      return {Code::kBadArgument,
              std::string("workspace: overlaps ") + bound.operand->name + " in memory"};
    }
  }
  return {};
}

void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace

struct Plan::Impl : Prepared {};

template <class Call>
Status Plan::make(const Call& call, Device device, Plan& plan) noexcept try {
  auto impl = std::make_shared<Impl>();
  NORMGRAD_RETURN_IF_ERROR(prepare(call, device, *impl));
  plan.impl_ = std::move(impl);
  return {};
} catch (const std::exception&) {  // std::bad_alloc; a longer message could throw again
  return {Code::kInternal, "out of memory"};
}

Status Plan::create(const LayerNorm& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const RmsNorm& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const BatchNorm& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const BatchNormReduce& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const BatchNormElementwise& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const LayerNormBackward& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const RmsNormBackward& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const BatchNormBackward& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const BatchNormReduceBackward& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}
Status Plan::create(const BatchNormElementwiseBackward& call, Device device, Plan& plan) noexcept {
  return make(call, device, plan);
}

Plan::Plan(const LayerNorm& call, Device device) { throw_if_error(make(call, device, *this)); }
Plan::Plan(const RmsNorm& call, Device device) { throw_if_error(make(call, device, *this)); }
Plan::Plan(const BatchNorm& call, Device device) { throw_if_error(make(call, device, *this)); }
Plan::Plan(const BatchNormReduce& call, Device device) {
  throw_if_error(make(call, device, *this));
}
Plan::Plan(const BatchNormElementwise& call, Device device) {
  throw_if_error(make(call, device, *this));
}
Plan::Plan(const LayerNormBackward& call, Device device) {
  throw_if_error(make(call, device, *this));
}
Plan::Plan(const RmsNormBackward& call, Device device) {
  throw_if_error(make(call, device, *this));
}
Plan::Plan(const BatchNormBackward& call, Device device) {
  throw_if_error(make(call, device, *this));
}
Plan::Plan(const BatchNormReduceBackward& call, Device device) {
  throw_if_error(make(call, device, *this));
}
Plan::Plan(const BatchNormElementwiseBackward& call, Device device) {
  throw_if_error(make(call, device, *this));
}

// The caller's workspace may have any alignment: the size includes the bytes lost to aligning it.
size_t Plan::workspace_size() const noexcept {
  return impl_ && impl_->workspace > 0 ? impl_->workspace + kWorkspaceAlignment : 0;
}

std::string Plan::kernel() const { return impl_ ? impl_->kernel : ""; }

Status Plan::execute(const Buffers& buffers, void* workspace, size_t size,
                     void* stream) const noexcept try {
  if (!impl_) return {Code::kBadArgument, "plan: is empty"};
  if (!impl_->launch) return {};
  const BoundOperands operands(impl_->operands, buffers);
  NORMGRAD_RETURN_IF_ERROR(check_pointers(operands));
  NORMGRAD_RETURN_IF_ERROR(check_workspace(operands, workspace, size, workspace_size()));
  NORMGRAD_RETURN_IF_ERROR(check_overlaps(impl_->operands, operands));
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  const uintptr_t padding = -address % kWorkspaceAlignment;
  return impl_->launch(buffers, static_cast<char*>(workspace) + padding, stream);
} catch (const std::exception&) {  // std::bad_alloc; a longer message could throw again
  return {Code::kInternal, "out of memory"};
}

void Plan::run(const Buffers& buffers, void* workspace, size_t size, void* stream) const {
  throw_if_error(execute(buffers, workspace, size, stream));
}

}  // namespace normgrad
