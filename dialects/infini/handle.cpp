// Handles and tensor descriptors.
#include "infiniop/handle.h"

#include "descriptor.hpp"
#include "infiniop/tensor_descriptor.h"
#include "infinirt.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle_ptr) {
  if (!handle_ptr) return fail(INFINI_STATUS_NULL_POINTER, "handle_ptr is null");
  *handle_ptr = nullptr;
  infiniDevice_t device = INFINI_DEVICE_CPU;
  int id = 0, count = 0;
  if (infiniStatus_t status = infinirtGetDevice(&device, &id)) return status;
  if (infinirtGetDeviceCount(device, &count) != INFINI_STATUS_SUCCESS || count == 0) {
    return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                "handle: the current device type %d is not in this build, or not in this machine",
                static_cast<int>(device));
  }
  if (device == INFINI_DEVICE_CPU) id = 0;  // it has any
  if (id < 0 || id >= count) {
    return fail(INFINI_STATUS_DEVICE_NOT_FOUND,
                "handle: the current device id: expected 0 to %d for device type %d, got %d",
                count - 1, static_cast<int>(device), id);
  }
  return guard([&] {
    return publish(std::make_unique<InfiniopHandle>(Place{device, id}), handle_ptr);
  });
}

infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle) {
  return destroy(handle, kHandle, "handle");
}

infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc_ptr, size_t ndim,
                                              const size_t* shape, const ptrdiff_t* strides,
                                              infiniDtype_t dtype) {
  if (!desc_ptr) return fail(INFINI_STATUS_NULL_POINTER, "desc_ptr is null");
  *desc_ptr = nullptr;
  if (!shape && ndim > 0) return fail(INFINI_STATUS_NULL_POINTER, "shape is null");
  if (ndim > PTRDIFF_MAX / sizeof(size_t)) {
    return fail(INFINI_STATUS_BAD_PARAM, "ndim: expected an array's length, got %zu", ndim);
  }
  return guard([&] {
    auto desc = std::make_unique<InfiniopTensorDescriptor>();
    desc->dtype = dtype;
    desc->tensor.dtype = dtype == INFINI_DTYPE_F16    ? normgrad::DType::kF16
                         : dtype == INFINI_DTYPE_BF16 ? normgrad::DType::kBF16
                                                      : normgrad::DType::kF32;
    // An extent of 2^63 or more becomes negative here; the operators refuse it.
    desc->tensor.shape.assign(shape, shape + ndim);
    if (strides) desc->tensor.strides.assign(strides, strides + ndim);
    return publish(std::move(desc), desc_ptr);
  });
}

infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc) {
  return destroy(desc, kTensor, "desc");
}
