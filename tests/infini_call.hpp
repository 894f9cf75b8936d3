// The InfiniOP operators behind one interface, so that a test is written once for all: tensor
// arguments are lists in the order of the C functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "infiniop.h"
#include "infiniop/normgrad.h"
#include "infinirt.h"

namespace infini_test {

// The gradients, then the layers.
enum class Op {
  kLayerNorm,
  kBatchNorm,
  kRmsNorm,
  kForwardLayerNorm,
  kForwardBatchNorm,
  kForwardRmsNorm,
  kAddRmsNorm
};
inline constexpr Op kOps[] = {Op::kLayerNorm,        Op::kBatchNorm,        Op::kRmsNorm,
                              Op::kForwardLayerNorm, Op::kForwardBatchNorm, Op::kForwardRmsNorm,
                              Op::kAddRmsNorm};
inline bool is_gradient(Op op) { return op <= Op::kRmsNorm; }
inline bool is_batch_norm(Op op) { return op == Op::kBatchNorm || op == Op::kForwardBatchNorm; }
inline constexpr infiniDtype_t kDtypes[] = {INFINI_DTYPE_F32, INFINI_DTYPE_F16, INFINI_DTYPE_BF16};

inline const char* name_of(Op op) {
  constexpr const char* kNames[] = {"LayerNorm",        "BatchNorm",        "RMSNorm",
                                    "ForwardLayerNorm", "ForwardBatchNorm", "ForwardRMSNorm",
                                    "AddRMSNorm"};
  return kNames[static_cast<int>(op)];
}
inline const char* name_of(infiniDtype_t dtype) {
  return dtype == INFINI_DTYPE_F32 ? "F32" : dtype == INFINI_DTYPE_F16 ? "F16" : "BF16";
}
inline size_t size_of(infiniDtype_t dtype) { return dtype == INFINI_DTYPE_F32 ? 4 : 2; }

enum class Role { kData, kVector, kRowScalar };
struct Argument {
  const char* name;
  Role role;
  bool output;
  bool optional = false;   // its descriptor may be null
  bool any_dtype = false;  // also one that the data do not have
};

// The tensor arguments of an operator, in the order of its Create and compute functions.
inline std::vector<Argument> arguments(Op op) {
  switch (op) {
    case Op::kLayerNorm:
      return {{"grad_input", Role::kData, true},
              {"grad_weight", Role::kVector, true},
              {"grad_bias", Role::kVector, true, /*optional=*/true},
              {"grad_output", Role::kData, false},
              {"weight", Role::kVector, false},
              {"input_standardization", Role::kData, false},
              {"input_std_deviation", Role::kRowScalar, false}};
    case Op::kBatchNorm:
      return {{"grad_input", Role::kData, true},      {"grad_weight", Role::kVector, true},
              {"grad_bias", Role::kVector, true},     {"input", Role::kData, false},
              {"grad_output", Role::kData, false},    {"weight", Role::kVector, false},
              {"running_mean", Role::kVector, false}, {"running_var", Role::kVector, false}};
    case Op::kRmsNorm:
      return {{"grad_x", Role::kData, true},
              {"grad_w", Role::kVector, true},
              {"grad_y", Role::kData, false},
              {"x", Role::kData, false},
              {"w", Role::kVector, false}};
    case Op::kForwardLayerNorm:
      return {{"output", Role::kData, true},
              {"input_standardization", Role::kData, true},
              {"input_std_deviation", Role::kRowScalar, true},
              {"input", Role::kData, false},
              {"weight", Role::kVector, false},
              {"bias", Role::kVector, false, /*optional=*/true}};
    case Op::kForwardBatchNorm:
      return {{"output", Role::kData, true},        {"running_mean", Role::kVector, true},
              {"running_var", Role::kVector, true}, {"input", Role::kData, false},
              {"weight", Role::kVector, false},     {"bias", Role::kVector, false}};
    case Op::kForwardRmsNorm:
      return {{"y", Role::kData, true},
              {"x", Role::kData, false},
              {"w", Role::kVector, false, /*optional=*/false, /*any_dtype=*/true}};
    default:
      return {{"y", Role::kData, true},
              {"residual_out", Role::kData, true},
              {"a", Role::kData, false},
              {"b", Role::kData, false},
              {"weight", Role::kVector, false, /*optional=*/false, /*any_dtype=*/true}};
  }
}

using Descriptor = struct InfiniopDescriptor*;
using Tensors = std::vector<infiniopTensorDescriptor_t>;
using Pointers = std::vector<void*>;

// What only the extension entry points take. Without it the ordinary ones are called.
struct Extension {
  double epsilon = 0;
  bool frozen = false;
};

// The numbers of a layer. An epsilon that can be seen also in the small call's F16.
struct Numbers {
  float epsilon = 0.5f;
  float momentum = 0.25f;
};

inline infiniStatus_t create(Op op, infiniopHandle_t handle, Descriptor* desc, const Tensors& t,
                             const std::optional<Extension>& extension = {},
                             const Numbers& numbers = {}) {
  switch (op) {
    case Op::kLayerNorm:
      return (extension ? normgradCreateLayerNormBackwardDescriptor
                        : infiniopCreateLayerNormBackwardDescriptor)(handle, desc, t[0], t[1], t[2],
                                                                     t[3], t[4], t[5], t[6]);
    case Op::kBatchNorm:
      return extension ? normgradCreateBatchNormBackwardDescriptor(
                             handle, desc, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
                             extension->epsilon, extension->frozen)
                       : infiniopCreateBatchNormBackwardDescriptor(handle, desc, t[0], t[1], t[2],
                                                                   t[3], t[4], t[5], t[6], t[7]);
    case Op::kRmsNorm:
      return extension ? normgradCreateRMSNormBackwardDescriptor(handle, desc, t[0], t[1], t[2],
                                                                 t[3], t[4], extension->epsilon)
                       : infiniopCreateRMSNormBackwardDescriptor(handle, desc, t[0], t[1], t[2],
                                                                 t[3], t[4]);
    case Op::kForwardLayerNorm:
      return infiniopCreateLayerNormDescriptor(handle, desc, t[0], t[1], t[2], t[3], t[4], t[5],
                                               numbers.epsilon);
    case Op::kForwardBatchNorm:
      return extension
                 ? normgradCreateBatchNormDescriptor(handle, desc, t[0], t[1], t[2], t[3], t[4],
                                                     t[5], extension->epsilon)
                 : infiniopCreateBatchNormDescriptor(handle, desc, t[0], t[1], t[2], t[3], t[4],
                                                     t[5], numbers.momentum, numbers.epsilon);
    case Op::kForwardRmsNorm:
      return infiniopCreateRMSNormDescriptor(handle, desc, t[0], t[1], t[2], numbers.epsilon);
    default:
      return infiniopCreateAddRMSNormDescriptor(handle, desc, t[0], t[1], t[2], t[3], t[4],
                                                numbers.epsilon);
  }
}

inline infiniStatus_t workspace_size(Op op, Descriptor desc, size_t* size) {
  return (op == Op::kLayerNorm          ? infiniopGetLayerNormBackwardWorkspaceSize
          : op == Op::kBatchNorm        ? infiniopGetBatchNormBackwardWorkspaceSize
          : op == Op::kRmsNorm          ? infiniopGetRMSNormBackwardWorkspaceSize
          : op == Op::kForwardLayerNorm ? infiniopGetLayerNormWorkspaceSize
          : op == Op::kForwardBatchNorm ? infiniopGetBatchNormWorkspaceSize
          : op == Op::kForwardRmsNorm   ? infiniopGetRMSNormWorkspaceSize
                                        : infiniopGetAddRMSNormWorkspaceSize)(desc, size);
}

inline infiniStatus_t compute(Op op, Descriptor desc, void* workspace, size_t size,
                              const Pointers& p, infinirtStream_t stream = nullptr) {
  switch (op) {
    case Op::kLayerNorm:
      return infiniopLayerNormBackward(desc, workspace, size, p[0], p[1], p[2], p[3], p[4], p[5],
                                       p[6], stream);
    case Op::kBatchNorm:
      return infiniopBatchNormBackward(desc, workspace, size, p[0], p[1], p[2], p[3], p[4], p[5],
                                       p[6], p[7], stream);
    case Op::kRmsNorm:
      return infiniopRMSNormBackward(desc, workspace, size, p[0], p[1], p[2], p[3], p[4], stream);
    case Op::kForwardLayerNorm:
      return infiniopLayerNorm(desc, workspace, size, p[0], p[1], p[2], p[3], p[4], p[5], stream);
    case Op::kForwardBatchNorm:
      return infiniopBatchNorm(desc, workspace, size, p[0], p[1], p[2], p[3], p[4], p[5], stream);
    case Op::kForwardRmsNorm:
      return infiniopRMSNorm(desc, workspace, size, p[0], p[1], p[2], stream);
    default:
      return infiniopAddRMSNorm(desc, workspace, size, p[0], p[1], p[2], p[3], p[4], stream);
  }
}

inline infiniStatus_t destroy(Op op, Descriptor desc) {
  return (op == Op::kLayerNorm          ? infiniopDestroyLayerNormBackwardDescriptor
          : op == Op::kBatchNorm        ? infiniopDestroyBatchNormBackwardDescriptor
          : op == Op::kRmsNorm          ? infiniopDestroyRMSNormBackwardDescriptor
          : op == Op::kForwardLayerNorm ? infiniopDestroyLayerNormDescriptor
          : op == Op::kForwardBatchNorm ? infiniopDestroyBatchNormDescriptor
          : op == Op::kForwardRmsNorm   ? infiniopDestroyRMSNormDescriptor
                                        : infiniopDestroyAddRMSNormDescriptor)(desc);
}

// The arguments of CreateTensorDescriptor. No strides: NULL.
struct Tensor {
  infiniDtype_t dtype = INFINI_DTYPE_F32;
  std::vector<size_t> shape;
  std::vector<ptrdiff_t> strides = {};
};

inline infiniopTensorDescriptor_t make(const Tensor& tensor) {
  infiniopTensorDescriptor_t desc = nullptr;
  (void)infiniopCreateTensorDescriptor(&desc, tensor.shape.size(), tensor.shape.data(),
                                       tensor.strides.empty() ? nullptr : tensor.strides.data(),
                                       tensor.dtype);
  return desc;
}

// A small correct call: extents that differ from each other, contiguous.
inline std::vector<Tensor> small_call(Op op, infiniDtype_t dtype) {
  const std::vector<size_t> data =
      is_batch_norm(op) ? std::vector<size_t>{3, 5, 4} : std::vector<size_t>{3, 4, 10};
  std::vector<Tensor> tensors;
  for (const Argument& argument : arguments(op)) {
    Tensor tensor = {dtype, data};
    if (argument.role == Role::kVector) tensor.shape = {is_batch_norm(op) ? data[1] : data[2]};
    if (argument.role == Role::kRowScalar) tensor.shape.pop_back();
    tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace infini_test
