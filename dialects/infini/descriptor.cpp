#include "descriptor.hpp"

#include <array>
#include <mutex>
#include <string>
#include <unordered_set>

#include "normgrad/cuda.hpp"

namespace normgrad::infini {
namespace {

struct Shard {
  std::mutex mutex;
  std::unordered_set<const Object*> objects;
};

// Never destroyed: programs keep descriptors in thread-local and static caches and destroy them
// while the process exits, possibly after the destructors of this library's statics.
Shard& shard_of(const Object* object) {
  static auto& shards = *new std::array<Shard, 64>;
  // Allocators hand out multiples of 16 bytes; the multiplication spreads what is left.
  const uint64_t hash = (reinterpret_cast<uintptr_t>(object) >> 4) * 0x9e3779b97f4a7c15;
  return shards[hash >> 58];
}

const char* kind_name(Kind kind) {
  switch (kind) {
    case kHandle:
      return "handle";
    case kTensor:
      return "tensor descriptor";
    case kLayerNorm:
      return "LayerNorm descriptor";
    case kRmsNorm:
      return "RMSNorm descriptor";
    case kAddRmsNorm:
      return "AddRMSNorm descriptor";
    case kBatchNorm:
      return "BatchNorm descriptor";
    case kLayerNormBackward:
      return "LayerNormBackward descriptor";
    case kRmsNormBackward:
      return "RMSNormBackward descriptor";
    case kBatchNormBackward:
      return "BatchNormBackward descriptor";
    default:
      return "operator descriptor";
  }
}

// `shard.mutex` is held: nobody can be freeing an object that is in the set.
infiniStatus_t check_in(const Shard& shard, const Object* object, Kind kind, const char* name) {
  const bool live = shard.objects.count(object) != 0 &&
                    (object->tag & ~uint64_t{0xffff}) == Object::kMagic &&
                    (object->tag & kind) != 0;
  if (!live) {
    return fail(INFINI_STATUS_BAD_PARAM,
                "%s: expected a live %s, got %p, which was destroyed or is something else", name,
                kind_name(kind), static_cast<const void*>(object));
  }
  if (object->device != object->place.device) {
    return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                "%s: expected device type %d, for which it was made, got %d", name,
                object->place.device, object->device);
  }
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t null_argument(const char* name) {
  return fail(INFINI_STATUS_BAD_PARAM, "%s is null", name);
}

const char* dtype_name(infiniDtype_t dtype) {
  static constexpr const char* kNames[] = {"INVALID", "BYTE", "BOOL", "I8",  "I16",  "I32", "I64",
                                           "U8",      "U16",  "U32",  "U64", "F8",   "F16", "F32",
                                           "F64",     "C16",  "C32",  "C64", "C128", "BF16"};
  const auto index = static_cast<unsigned>(dtype);
  return index < std::size(kNames) ? kNames[index] : "an unknown dtype";
}

bool supported(infiniDtype_t dtype) {
  return dtype == INFINI_DTYPE_F16 || dtype == INFINI_DTYPE_F32 || dtype == INFINI_DTYPE_BF16;
}

infiniStatus_t check_dtypes(std::span<const Operand> operands, bool one_dtype) {
  const Operand* first = nullptr;
  for (const Operand& operand : operands) {
    if (!operand.desc) continue;
    const infiniDtype_t dtype = operand.desc->dtype;
    if (!supported(dtype)) {
      return fail(INFINI_STATUS_BAD_TENSOR_DTYPE, "%s: expected F16, F32 or BF16, got %s",
                  operand.name, dtype_name(dtype));
    }
    if (!first) first = &operand;
    if (one_dtype && dtype != first->desc->dtype) {
      return fail(INFINI_STATUS_BAD_TENSOR_DTYPE, "%s: expected %s as %s, got %s", operand.name,
                  dtype_name(first->desc->dtype), first->name, dtype_name(dtype));
    }
  }
  return INFINI_STATUS_SUCCESS;
}

// GPUs of one machine may differ, and work given to another one than the current fails later and
// takes the program along.
infiniStatus_t check_current(const Place& place, const char* name) {
  if (place.device != INFINI_DEVICE_NVIDIA) return INFINI_STATUS_SUCCESS;
  int id = -1;
  if (infiniStatus_t status = answer(cuda::get_device(id))) return status;
  if (id == place.id) return INFINI_STATUS_SUCCESS;
  return fail(INFINI_STATUS_BAD_PARAM,
              "%s: made for NVIDIA device %d, but the thread's CUDA device is %d; call "
              "infinirtSetDevice",
              name, place.id, id);
}

}  // namespace

void enter(Object* object) {
  Shard& shard = shard_of(object);
  const std::lock_guard lock(shard.mutex);
  shard.objects.insert(object);
}

infiniStatus_t check(const Object* object, Kind kind, const char* name) noexcept {
  if (!object) return null_argument(name);
  return guard([&] {
    Shard& shard = shard_of(object);
    const std::lock_guard lock(shard.mutex);
    return check_in(shard, object, kind, name);
  });
}

infiniStatus_t leave(Object* object, Kind kind, const char* name) noexcept {
  return guard([&] {
    Shard& shard = shard_of(object);
    const std::lock_guard lock(shard.mutex);
    if (infiniStatus_t status = check_in(shard, object, kind, name)) return status;
    shard.objects.erase(object);
    object->tag = 0;
    return INFINI_STATUS_SUCCESS;
  });
}

infiniStatus_t answer(const Status& status) noexcept {
  infiniStatus_t code = INFINI_STATUS_INTERNAL_ERROR;
  switch (status.code()) {
    case Code::kOk:
      return INFINI_STATUS_SUCCESS;
    case Code::kNullPointer:  // the documents list BAD_PARAM, not NULL_POINTER
    case Code::kBadArgument:
      code = INFINI_STATUS_BAD_PARAM;
      break;
    case Code::kBadDType:
      code = INFINI_STATUS_BAD_TENSOR_DTYPE;
      break;
    case Code::kBadShape:
      code = INFINI_STATUS_BAD_TENSOR_SHAPE;
      break;
    case Code::kBadStrides:
      code = INFINI_STATUS_BAD_TENSOR_STRIDES;
      break;
    case Code::kInsufficientWorkspace:
      code = INFINI_STATUS_INSUFFICIENT_WORKSPACE;
      break;
    case Code::kUnsupportedDevice:
      code = INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED;
      break;
    case Code::kInternal:
    case Code::kCommunication:
      break;
  }
  return fail(code, "%s", status.message().c_str());
}

infiniStatus_t check_operands(infiniopHandle_t handle, InfiniopDescriptor** desc_ptr,
                              std::span<const Operand> operands, bool one_dtype) noexcept {
  if (!desc_ptr) return null_argument("desc_ptr");
  *desc_ptr = nullptr;
  if (!handle) return null_argument("handle");
  for (const Operand& operand : operands) {
    if (!operand.desc && operand.optional) continue;
    if (infiniStatus_t status = check(operand.desc, kTensor, operand.name)) return status;
  }
  if (infiniStatus_t status = check(handle, kHandle, "handle")) return status;
  if (infiniStatus_t status = check_current(handle->place, "handle")) return status;
  if (infiniStatus_t status = check_dtypes(operands, one_dtype)) return status;
  for (const Operand& operand : operands) {
    if (!operand.desc) continue;
    for (const int64_t extent : operand.desc->tensor.shape) {
      if (extent < 0) {
        return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: expected extents below 2^63, got %zu",
                    operand.name, static_cast<size_t>(extent));
      }
    }
  }
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t check_shape(const Operand& operand,
                           std::initializer_list<std::vector<int64_t>> shapes) {
  if (!operand.desc) return INFINI_STATUS_SUCCESS;
  const auto text = [](const std::vector<int64_t>& shape) {
    std::string list;
    for (const int64_t extent : shape) list += (list.empty() ? "" : ", ") + std::to_string(extent);
    return "(" + list + ")";
  };
  std::string expected;
  for (const std::vector<int64_t>& shape : shapes) {
    if (operand.desc->tensor.shape == shape) return INFINI_STATUS_SUCCESS;
    expected += (expected.empty() ? "" : " or ") + text(shape);
  }
  return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "%s: expected shape %s, got %s", operand.name,
              expected.c_str(), text(operand.desc->tensor.shape).c_str());
}

infiniStatus_t check_row_shape(const Operand& operand, const std::vector<int64_t>& data) {
  const std::vector<int64_t> rows(data.begin(), data.end() - 1);
  std::vector<int64_t> rows_kept = rows;
  rows_kept.push_back(1);
  return check_shape(operand, {rows, rows_kept});
}

infiniStatus_t check_last_axis(const Operand& operand) noexcept {
  if (!operand.desc) return INFINI_STATUS_SUCCESS;
  const Tensor& tensor = operand.desc->tensor;
  if (tensor.strides.empty() || tensor.shape.back() <= 1 || tensor.strides.back() == 1) {
    return INFINI_STATUS_SUCCESS;
  }
  return fail(INFINI_STATUS_BAD_TENSOR_STRIDES,
              "%s: expected stride 1 in the last dimension, got %td", operand.name,
              tensor.strides.back());
}

infiniStatus_t check_contiguous(const Operand& operand) noexcept {
  const Tensor& tensor = operand.desc->tensor;
  if (tensor.strides.empty()) return INFINI_STATUS_SUCCESS;
  for (const int64_t extent : tensor.shape) {
    if (extent == 0) return INFINI_STATUS_SUCCESS;
  }
  int64_t expected = 1;
  for (size_t axis = tensor.shape.size(); axis-- > 0;) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) {
      return fail(INFINI_STATUS_BAD_TENSOR_STRIDES,
                  "%s: expected a contiguous tensor, stride %td in dimension %zu, got %td",
                  operand.name, expected, axis, tensor.strides[axis]);
    }
    expected *= tensor.shape[axis];
  }
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t publish_plan(infiniopHandle_t handle, Plan plan, Kind kind,
                            InfiniopDescriptor** desc_ptr) {
  return publish(std::make_unique<InfiniopDescriptor>(kind, handle->place, std::move(plan)),
                 desc_ptr);
}

infiniStatus_t workspace_size(const InfiniopDescriptor* desc, Kind kind, size_t* size) noexcept {
  if (infiniStatus_t status = check(desc, kind, "desc")) return status;
  if (!size) return null_argument("size");
  *size = desc->plan.workspace_size();
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t execute(const InfiniopDescriptor* desc, Kind kind, const Buffers& buffers,
                       void* workspace, size_t workspace_size, void* stream) noexcept {
  if (infiniStatus_t status = check(desc, kind, "desc")) return status;
  if (infiniStatus_t status = check_current(desc->place, "desc")) return status;
  return answer(desc->plan.execute(buffers, workspace, workspace_size, stream));
}

}  // namespace normgrad::infini

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

infiniStatus_t infiniopGetDescriptorDeviceType(const InfiniopDescriptor* desc,
                                               infiniDevice_t* device_type) {
  if (!device_type) return fail(INFINI_STATUS_NULL_POINTER, "device_type is null");
  if (infiniStatus_t status = check(desc, kOperator, "desc")) return status;
  *device_type = static_cast<infiniDevice_t>(desc->device);
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infiniopGetDescriptorDeviceId(const InfiniopDescriptor* desc, int* device_id) {
  if (!device_id) return fail(INFINI_STATUS_NULL_POINTER, "device_id is null");
  if (infiniStatus_t status = check(desc, kOperator, "desc")) return status;
  *device_id = desc->device_id;
  return INFINI_STATUS_SUCCESS;
}
