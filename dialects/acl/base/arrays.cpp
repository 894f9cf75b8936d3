// aclScalar and the arrays of integers, floats and booleans: copies of the caller's values.
#include <cstring>
#include <memory>

#include "base/live.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

template <class Array, class T>
Array* create(const T* values, uint64_t size) noexcept {
  Array* made = nullptr;
  guarded(kInner, [&] {
    auto array = std::make_unique<Array>();
    if (values) array->values.assign(values, values + size);
    made = publish(std::move(array));
    return kSuccess;
  });
  return made;
}

template <class Array>
aclnnStatus get_size(const Array* array, uint64_t* size) noexcept {
  if (const int32_t status = check(array, "array", size, "size")) return status;
  *size = array->values.size();
  return kSuccess;
}

}  // namespace

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  if (!value) {
    null_argument("value");
    return nullptr;
  }
  const size_t size = aclDataTypeSize(dataType);
  if (size == 0 || size > sizeof(aclScalar::value)) {
    refuse(kInvalid, "dataType: expected a type with a size of 1 to 16 bytes, got aclDataType %d",
           static_cast<int>(dataType));
    return nullptr;
  }
  aclScalar* made = nullptr;
  guarded(kInner, [&] {
    auto scalar = std::make_unique<aclScalar>();
    scalar->dtype = dataType;
    std::memcpy(scalar->value, value, size);
    made = publish(std::move(scalar));
    return kSuccess;
  });
  return made;
}

aclnnStatus aclDestroyScalar(const aclScalar* scalar) { return destroy(scalar, "scalar"); }

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return create<aclIntArray>(value, size);
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return create<aclFloatArray>(value, size);
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return create<aclBoolArray>(value, size);
}

aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return destroy(array, "array"); }

aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) { return destroy(array, "array"); }

aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return destroy(array, "array"); }

aclnnStatus aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return get_size(array, size);
}

aclnnStatus aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return get_size(array, size);
}

aclnnStatus aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return get_size(array, size);
}
