// What the operators share: the objects behind the opaque pointers, the checks that come before
// the library's own, and the three steps that every operator descriptor goes through.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "error.hpp"
#include "infiniop/handle.h"
#include "infiniop/operator_descriptor.h"
#include "infiniop/tensor_descriptor.h"
#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad::infini {

// Bits, so that a check can admit several kinds.
enum Kind : uint64_t {
  kHandle = 1,
  kTensor = 2,
  kLayerNorm = 4,
  kRmsNorm = 8,
  kAddRmsNorm = 16,
  kBatchNorm = 32,
  kLayerNormBackward = 64,
  kRmsNormBackward = 128,
  kBatchNormBackward = 256,
  kOperator = 511 & ~(kHandle | kTensor),
};

// A device. Tensor descriptors, which belong to none, have the CPU's.
struct Place {
  int32_t device = INFINI_DEVICE_CPU;
  int32_t id = 0;
};

// Every object begins with the two integers that callers may read, then says what it is: `tag` is
// kMagic plus the kind while the object lives and 0 afterwards. `place` is what counts, for callers
// may also write.
struct Object {
  static constexpr uint64_t kMagic = 0x6e6f726d67720000;

  explicit Object(Kind kind, const Place& at = {})
      : device(at.device), device_id(at.id), tag(kMagic | kind), place(at) {}

  int32_t device;
  int32_t device_id;
  uint64_t tag;
  const Place place;
};

// Live objects are in a set of pointers, so that a pointer that is not can be refused without being
// read. A lookup holds one of 64 locks for some 20 ns. An address that a later object got again
// passes for that object.
void enter(Object* object);
// BAD_PARAM for null and for what is not a live object of that kind, DEVICE_TYPE_NOT_SUPPORTED for
// one whose device type was overwritten. `leave` takes the object out of the set as well.
infiniStatus_t check(const Object* object, Kind kind, const char* name) noexcept;
infiniStatus_t leave(Object* object, Kind kind, const char* name) noexcept;

template <class T>
infiniStatus_t publish(std::unique_ptr<T> object, T** out) {
  enter(object.get());
  *out = object.release();
  return INFINI_STATUS_SUCCESS;
}

template <class T>
infiniStatus_t destroy(T* object, Kind kind, const char* name) noexcept {
  if (!object) return INFINI_STATUS_SUCCESS;
  if (infiniStatus_t status = leave(object, kind, name)) return status;
  delete object;
  return INFINI_STATUS_SUCCESS;
}

// The status and sentence of the library in this dialect.
infiniStatus_t answer(const Status& status) noexcept;

// A tensor argument of a Create function.
struct Operand {
  const char* name;
  infiniopTensorDescriptor_t desc;
  bool optional;
};

// The checks of every Create function, in the documented order: null and stale pointers, the
// handle's device, which must be the current one, dtypes (one for all operands if `one_dtype`),
// extents that fit 64 bits with a sign. Sets *desc_ptr to null.
infiniStatus_t check_operands(infiniopHandle_t handle, struct InfiniopDescriptor** desc_ptr,
                              std::span<const Operand> operands, bool one_dtype) noexcept;

// The documents fix more than the library does: what operators check once it has made a plan.
// BAD_TENSOR_SHAPE unless the tensor, if there, has one of these shapes.
infiniStatus_t check_shape(const Operand& operand,
                           std::initializer_list<std::vector<int64_t>> shapes);
// The same for one element per row of data: the leading dimensions, or those and a 1.
infiniStatus_t check_row_shape(const Operand& operand, const std::vector<int64_t>& data);
// BAD_TENSOR_STRIDES unless the tensor, if there, is contiguous, or is along its last axis; extents
// of 1 may have any stride.
infiniStatus_t check_contiguous(const Operand& operand) noexcept;
infiniStatus_t check_last_axis(const Operand& operand) noexcept;

// The rest of a Create function: plans the call for the handle's device, then hands the plan over
// as a descriptor.
template <class Call>
infiniStatus_t make_plan(infiniopHandle_t handle, const Call& call, Plan& plan) noexcept;
infiniStatus_t publish_plan(infiniopHandle_t handle, Plan plan, Kind kind,
                            struct InfiniopDescriptor** desc_ptr);

// Get...WorkspaceSize and the computation.
infiniStatus_t workspace_size(const struct InfiniopDescriptor* desc, Kind kind,
                              size_t* size) noexcept;
infiniStatus_t execute(const struct InfiniopDescriptor* desc, Kind kind, const Buffers& buffers,
                       void* workspace, size_t workspace_size, void* stream) noexcept;

}  // namespace normgrad::infini

struct InfiniopHandle : normgrad::infini::Object {
  explicit InfiniopHandle(const normgrad::infini::Place& at)
      : Object(normgrad::infini::kHandle, at) {}
};

struct InfiniopTensorDescriptor : normgrad::infini::Object {
  InfiniopTensorDescriptor() : Object(normgrad::infini::kTensor) {}
  infiniDtype_t dtype = INFINI_DTYPE_INVALID;
  normgrad::Tensor tensor;  // its dtype counts only if the one above is supported
};

struct InfiniopDescriptor : normgrad::infini::Object {
  InfiniopDescriptor(normgrad::infini::Kind kind, const normgrad::infini::Place& at,
                     normgrad::Plan p)
      : Object(kind, at), plan(std::move(p)) {}
  const normgrad::Plan plan;
};

namespace normgrad::infini {

template <class Call>
infiniStatus_t make_plan(infiniopHandle_t handle, const Call& call, Plan& plan) noexcept {
  const bool nvidia = handle->place.device == INFINI_DEVICE_NVIDIA;
  return answer(Plan::create(call, nvidia ? Device::kCuda : Device::kCpu, plan));
}

inline std::optional<Tensor> optional_tensor(infiniopTensorDescriptor_t desc) {
  return desc ? std::optional<Tensor>(desc->tensor) : std::nullopt;
}

}  // namespace normgrad::infini
