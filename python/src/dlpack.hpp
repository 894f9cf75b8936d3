// The part of DLPack's ABI (1.x, and the capsules without a version before it) that is read here.
// Declared instead of included: Debian's header is older than the versioned structs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace normgrad::python::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kFloat = 2, kBfloat = 4 };

struct Tensor {
  void* data;
  DeviceType device_type;
  int32_t device_id;
  int32_t rank;
  TypeCode code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // null: contiguous
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*release)(ManagedTensor*);
};

struct Version {
  uint32_t major, minor;
};

constexpr uint64_t kReadOnly = 1;

struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*release)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// What a framework offers as its type's __dlpack_c_exchange_api__: a view of an array without a
// capsule, about 20 ns instead of microseconds, and the stream it works on.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* export_managed;
  void* import_managed;
  int (*view)(void* object, Tensor* view);  // may be null; -1: a Python error is set
  int (*current_stream)(DeviceType type, int32_t id, void** stream);
};

}  // namespace normgrad::python::dlpack
