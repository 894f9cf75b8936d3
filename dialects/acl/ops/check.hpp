// What the first stages share: the checks that come before the library's own, each the answer to
// one kind of question about named arguments, and the step that makes the executor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "base/objects.hpp"
#include "base/status.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::acl {

// A tensor and what it is called.
struct Argument {
  const char* name;
  const aclTensor* tensor;
};
using Arguments = std::initializer_list<Argument>;
using Shape = std::vector<int64_t>;

// Any object, for the checks of pointers.
struct Pointer {
  template <class T>
  Pointer(const char* n, const T* o) : name(n), object(o), kind(T::kKind) {}
  const char* name;
  const Object* object;
  Kind kind;
};

// kNullPointer where one is null, kNoObject where one is no live object.
int32_t check_required(std::initializer_list<Pointer> pointers) noexcept;
// The same for those that may be null.
int32_t check_optional(std::initializer_list<Pointer> pointers) noexcept;
// The two results of a first stage.
int32_t check_results(const uint64_t* workspace_size, aclOpExecutor* const* executor) noexcept;
int32_t check_mask(const aclBoolArray* mask) noexcept;

// From here on null tensors are passed over, and the answer to a failed check is kInvalid.

int32_t check_dtypes(Arguments arguments) noexcept;  // FLOAT16, FLOAT, BF16
int32_t check_dtype(const Argument& argument, aclDataType expected, const char* as) noexcept;
// FLOAT, or the type of x.
int32_t check_parameter_dtype(const Argument& argument, const Argument& x) noexcept;
int32_t check_ranks(Arguments arguments, size_t least, size_t most) noexcept;
int32_t check_shape(const Argument& argument, const Shape& expected, const char* as) noexcept;
int32_t check_elements(const Argument& argument, int64_t expected, const char* of) noexcept;
// Strides and offset: none below 0. Strides of 0 are left to the library, which takes them on
// inputs.
int32_t check_layouts(Arguments arguments) noexcept;

// The last dimensions of input are those of normalizedShape, in full, as the document says.
int32_t check_normalized_shape(const aclIntArray* normalized, const aclTensor* input) noexcept;
// x has 1 to 8 dimensions, gamma the last of them, and `per_row` hold an element per row, in any
// shape.
int32_t check_rows(const Argument& x, const Argument& gamma, Arguments per_row);

// The product of the extents, or -1 if one is negative or the product passes 2^63, which
// check_elements refuses.
int64_t elements(const int64_t* begin, const int64_t* end) noexcept;

// "[2, 3, 4]", for sentences.
struct Text {
  char characters[256];
};
Text text(const Shape& shape) noexcept;

inline std::optional<Tensor> view_of(const aclTensor* tensor) {
  return tensor ? std::optional<Tensor>(tensor->view) : std::nullopt;
}

// Where the operators run.
inline Device device() { return normgradAclDevice() == 0 ? Device::kCpu : Device::kCuda; }

// The end of a first stage: hands out the executor with its plan. The results are written last, so
// that a refused call changes nothing.
int32_t publish(std::unique_ptr<aclOpExecutor> made, uint64_t* workspace_size,
                aclOpExecutor** executor) noexcept;

template <class Call>
int32_t prepare(const char* op, const Call& call, const Operands& operands,
                uint64_t* workspace_size, aclOpExecutor** executor, const Sum& sum = {}) {
  auto made = std::make_unique<aclOpExecutor>(op, operands, sum);
  Status status = Plan::create(call, device(), made->plan);
  if (status.ok() && device() == Device::kCuda) status = cuda::get_device(made->gpu);
  if (!status.ok()) return answer(status, kNoExecutor);
  return publish(std::move(made), workspace_size, executor);
}

}  // namespace normgrad::acl
