// The checks and the end of a first stage.
#include "check.hpp"

#include <algorithm>
#include <cstdio>

namespace normgrad::acl {
namespace {

const char* dtype_name(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT:
      return "FLOAT";
    case ACL_FLOAT16:
      return "FLOAT16";
    case ACL_BF16:
      return "BF16";
    case ACL_DOUBLE:
      return "DOUBLE";
    case ACL_INT8:
      return "INT8";
    case ACL_INT32:
      return "INT32";
    case ACL_INT64:
      return "INT64";
    default:
      return "another";
  }
}

int32_t bad_dtype(const Argument& argument, const char* expected) {
  const aclDataType dtype = argument.tensor->dtype;
  return refuse(kInvalid, "%s: expected the type %s, got %s (aclDataType %d)", argument.name,
                expected, dtype_name(dtype), static_cast<int>(dtype));
}

}  // namespace

int32_t check_required(std::initializer_list<Pointer> pointers) noexcept {
  for (const Pointer& pointer : pointers) {
    if (!pointer.object) return null_argument(pointer.name);
  }
  return check_optional(pointers);
}

int32_t check_optional(std::initializer_list<Pointer> pointers) noexcept {
  for (const Pointer& pointer : pointers) {
    if (pointer.object && !normgradAclIsLive(pointer.object, pointer.kind)) {
      return not_live(pointer.name, pointer.object);
    }
  }
  return kSuccess;
}

int32_t check_results(const uint64_t* workspace_size, aclOpExecutor* const* executor) noexcept {
  if (!workspace_size) return null_argument("workspaceSize");
  if (!executor) return null_argument("executor");
  return kSuccess;
}

int32_t check_mask(const aclBoolArray* mask) noexcept {
  if (mask->values.size() == 3) return kSuccess;
  return refuse(kInvalid, "outputMask: expected 3 entries, got %zu", mask->values.size());
}

int32_t check_dtypes(Arguments arguments) noexcept {
  for (const Argument& argument : arguments) {
    if (!argument.tensor) continue;
    const aclDataType dtype = argument.tensor->dtype;
    if (dtype != ACL_FLOAT && dtype != ACL_FLOAT16 && dtype != ACL_BF16) {
      return bad_dtype(argument, "FLOAT16, FLOAT or BF16");
    }
  }
  return kSuccess;
}

int32_t check_dtype(const Argument& argument, aclDataType expected, const char* as) noexcept {
  if (!argument.tensor || argument.tensor->dtype == expected) return kSuccess;
  char what[96];
  std::snprintf(what, sizeof(what), "%s%s", dtype_name(expected), as);
  return bad_dtype(argument, what);
}

int32_t check_parameter_dtype(const Argument& argument, const Argument& x) noexcept {
  if (!argument.tensor || argument.tensor->dtype == ACL_FLOAT) return kSuccess;
  char as[64];
  std::snprintf(as, sizeof(as), " as %s%s", x.name,
                x.tensor->dtype == ACL_FLOAT ? "" : ", or FLOAT");
  return check_dtype(argument, x.tensor->dtype, as);
}

int32_t check_ranks(Arguments arguments, size_t least, size_t most) noexcept {
  for (const Argument& argument : arguments) {
    if (!argument.tensor) continue;
    const size_t rank = argument.tensor->view.shape.size();
    if (rank < least || rank > most) {
      return refuse(kInvalid, "%s: expected %zu to %zu dimensions, got %zu", argument.name, least,
                    most, rank);
    }
  }
  return kSuccess;
}

int32_t check_shape(const Argument& argument, const Shape& expected, const char* as) noexcept {
  if (!argument.tensor || argument.tensor->view.shape == expected) return kSuccess;
  return refuse(kInvalid, "%s: expected the shape %s%s, got %s", argument.name,
                text(expected).characters, as, text(argument.tensor->view.shape).characters);
}

int32_t check_elements(const Argument& argument, int64_t expected, const char* of) noexcept {
  if (!argument.tensor) return kSuccess;
  const Shape& shape = argument.tensor->view.shape;
  if (expected < 0) {
    return refuse(kInvalid, "%s: expected one element per %s, of which there cannot be so many",
                  argument.name, of);
  }
  if (elements(shape.data(), shape.data() + shape.size()) == expected) {
    return kSuccess;
  }
  return refuse(kInvalid, "%s: expected %lld elements, one per %s, got the shape %s", argument.name,
                static_cast<long long>(expected), of, text(shape).characters);
}

int32_t check_layouts(Arguments arguments) noexcept {
  constexpr int64_t kMaxOffset = PTRDIFF_MAX / 4;  // its bytes are a pointer difference
  for (const Argument& argument : arguments) {
    if (!argument.tensor) continue;
    const Tensor& view = argument.tensor->view;
    for (size_t axis = 0; axis < view.shape.size(); ++axis) {
      if (view.strides[axis] < 0 && view.shape[axis] > 1) {
        return refuse(kInvalid, "%s: expected strides of 0 or more, got %s", argument.name,
                      text(view.strides).characters);
      }
    }
    const int64_t offset = argument.tensor->offset;
    if (offset < 0 || offset > kMaxOffset) {
      return refuse(kInvalid, "%s: expected an offset of 0 to %lld elements, got %lld",
                    argument.name, static_cast<long long>(kMaxOffset),
                    static_cast<long long>(offset));
    }
  }
  return kSuccess;
}

int32_t check_normalized_shape(const aclIntArray* normalized_shape,
                               const aclTensor* input) noexcept {
  const Shape& shape = input->view.shape;
  const Shape& normalized = normalized_shape->values;
  if (normalized.empty() || normalized.size() > 8) {
    return refuse(kInvalid, "normalizedShape: expected 1 to 8 entries, got %zu", normalized.size());
  }
  if (shape.size() < normalized.size()) {
    return refuse(kInvalid,
                  "input: expected at least the %zu dimensions of normalizedShape, got %zu",
                  normalized.size(), shape.size());
  }
  if (!std::equal(normalized.begin(), normalized.end(), shape.end() - normalized.size())) {
    return refuse(kInvalid, "normalizedShape: expected the last dimensions of input %s, got %s",
                  text(shape).characters, text(normalized).characters);
  }
  return kSuccess;
}

int32_t check_rows(const Argument& x, const Argument& gamma, Arguments per_row) {
  const Shape& shape = x.tensor->view.shape;
  const size_t columns = gamma.tensor->view.shape.size();
  if (const int32_t status = check_ranks({x}, 1, 8)) return status;
  if (const int32_t status = check_ranks(per_row, 0, 8)) return status;
  if (const int32_t status = check_ranks({gamma}, 1, shape.size())) return status;
  char as[64], of[64];
  std::snprintf(as, sizeof(as), ", the last dimensions of %s", x.name);
  std::snprintf(of, sizeof(of), "row of %s", x.name);
  const auto split = shape.end() - static_cast<ptrdiff_t>(columns);
  if (const int32_t status = check_shape(gamma, {split, shape.end()}, as)) return status;
  const int64_t rows = elements(shape.data(), shape.data() + (shape.size() - columns));
  for (const Argument& argument : per_row) {
    if (const int32_t status = check_elements(argument, rows, of)) return status;
  }
  return kSuccess;
}

int64_t elements(const int64_t* begin, const int64_t* end) noexcept {
  int64_t product = 1;
  for (const int64_t* extent = begin; extent != end; ++extent) {
    if (*extent < 0 || __builtin_mul_overflow(product, *extent, &product)) return -1;
  }
  return product;
}

Text text(const Shape& shape) noexcept {
  Text result = {"["};
  size_t length = 1;
  for (size_t axis = 0; axis < shape.size() && length < sizeof(result.characters); ++axis) {
    length += std::snprintf(result.characters + length, sizeof(result.characters) - length,
                            axis == 0 ? "%lld" : ", %lld", static_cast<long long>(shape[axis]));
  }
  if (length < sizeof(result.characters)) {
    std::snprintf(result.characters + length, sizeof(result.characters) - length, "]");
  }
  return result;
}

int32_t publish(std::unique_ptr<aclOpExecutor> made, uint64_t* workspace_size,
                aclOpExecutor** executor) noexcept {
  if (!normgradAclEnter(made.get())) return refuse(kNoExecutor, "out of memory");
  *workspace_size = made->workspace_size();
  *executor = made.release();
  return kSuccess;
}

}  // namespace normgrad::acl
