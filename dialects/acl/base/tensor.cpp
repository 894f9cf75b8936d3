// aclTensor: made, looked at, given another address.
#include <algorithm>
#include <atomic>
#include <memory>

#include "base/live.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr uint64_t kMaxRank = 25;

int32_t check_dims(const char* name, const int64_t* dims, uint64_t count) {
  if (!dims && count > 0) return null_argument(name);
  if (count <= kMaxRank) return kSuccess;
  return refuse(kInvalid, "%sNum: expected at most %d dimensions, got %llu", name,
                static_cast<int>(kMaxRank), static_cast<unsigned long long>(count));
}

normgrad::DType dtype_of(aclDataType dtype) {
  return dtype == ACL_FLOAT16 ? normgrad::DType::kF16
         : dtype == ACL_BF16  ? normgrad::DType::kBF16
         : dtype == ACL_INT32 ? normgrad::DType::kI32
                              : normgrad::DType::kF32;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    // Stands still when it overflows: operators refuse such a shape anyway.
    int64_t next = 0;
    if (!__builtin_mul_overflow(stride, std::max<int64_t>(shape[axis], 1), &next)) stride = next;
  }
  return strides;
}

struct Description {
  const int64_t* view_dims;
  uint64_t view_rank;
  aclDataType dtype;
  const int64_t* strides;
  int64_t offset;
  aclFormat format;
  const int64_t* storage_dims;
  uint64_t storage_rank;
  void* data;
};

int32_t check(const Description& from) {
  if (const int32_t status = check_dims("viewDims", from.view_dims, from.view_rank)) return status;
  return check_dims("storageDims", from.storage_dims, from.storage_rank);
}

// Throws before it changes `tensor`, or not at all.
void describe(aclTensor& tensor, const Description& from) {
  static std::atomic<uint64_t> descriptions{0};
  normgrad::Tensor view = {.dtype = dtype_of(from.dtype),
                           .shape = {from.view_dims, from.view_dims + from.view_rank}};
  view.strides = from.strides ? std::vector<int64_t>(from.strides, from.strides + from.view_rank)
                              : contiguous_strides(view.shape);
  std::vector<int64_t> storage(from.storage_dims, from.storage_dims + from.storage_rank);
  tensor.dtype = from.dtype;
  tensor.format = from.format;
  tensor.view = std::move(view);
  tensor.storage_shape = std::move(storage);
  tensor.offset = from.offset;
  tensor.data = from.data;
  tensor.serial = ++descriptions;
}

// Copies `values` into an array of the caller's.
int32_t give(const std::vector<int64_t>& values, int64_t** array, uint64_t* count) {
  return guarded(kInner, [&] {
    int64_t* copy = new int64_t[values.size()];
    std::copy(values.begin(), values.end(), copy);
    *array = copy;
    *count = values.size();
    return kSuccess;
  });
}

}  // namespace

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t* stride, int64_t offset, aclFormat format,
                           const int64_t* storageDims, uint64_t storageDimsNum, void* tensorData) {
  const Description description = {viewDims, viewDimsNum, dataType,       stride,    offset,
                                   format,   storageDims, storageDimsNum, tensorData};
  aclTensor* made = nullptr;
  guarded(kInner, [&] {
    if (const int32_t status = check(description)) return status;
    auto tensor = std::make_unique<aclTensor>();
    describe(*tensor, description);
    made = publish(std::move(tensor));
    return kSuccess;
  });
  return made;
}

aclnnStatus aclInitTensor(aclTensor* tensor, const int64_t* viewDims, uint64_t viewDimsNum,
                          aclDataType dataType, const int64_t* stride, int64_t offset,
                          aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                          void* tensorData) {
  const Description description = {viewDims, viewDimsNum, dataType,       stride,    offset,
                                   format,   storageDims, storageDimsNum, tensorData};
  if (const int32_t status = check(tensor, "tensor", tensor, "tensor")) return status;
  return guarded(kInner, [&] {
    if (const int32_t status = check(description)) return status;
    describe(*tensor, description);
    return kSuccess;
  });
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) { return destroy(tensor, "tensor"); }

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  if (const int32_t status = check(tensor, "tensor", viewDims, "viewDims")) return status;
  if (!viewDimsNum) return null_argument("viewDimsNum");
  return give(tensor->view.shape, viewDims, viewDimsNum);
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims,
                               uint64_t* storageDimsNum) {
  if (const int32_t status = check(tensor, "tensor", storageDims, "storageDims")) return status;
  if (!storageDimsNum) return null_argument("storageDimsNum");
  return give(tensor->storage_shape, storageDims, storageDimsNum);
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue,
                              uint64_t* stridesNum) {
  if (const int32_t status = check(tensor, "tensor", stridesValue, "stridesValue")) return status;
  if (!stridesNum) return null_argument("stridesNum");
  return give(tensor->view.strides, stridesValue, stridesNum);
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  if (const int32_t status = check(tensor, "tensor", offset, "offset")) return status;
  *offset = tensor->offset;
  return kSuccess;
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  if (const int32_t status = check(tensor, "tensor", format, "format")) return status;
  *format = tensor->format;
  return kSuccess;
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  if (const int32_t status = check(tensor, "tensor", dataType, "dataType")) return status;
  *dataType = tensor->dtype;
  return kSuccess;
}

aclnnStatus aclSetRawTensorAddr(aclTensor* tensor, void* addr) {
  if (const int32_t status = check(tensor, "tensor", tensor, "tensor")) return status;
  tensor->data = addr;
  return kSuccess;
}

aclnnStatus aclGetRawTensorAddr(const aclTensor* tensor, void** addr) {
  if (const int32_t status = check(tensor, "tensor", addr, "addr")) return status;
  *addr = tensor->data;
  return kSuccess;
}
