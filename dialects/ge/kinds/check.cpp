// The checks that operators share.
#include "kinds/check.hpp"

#include <algorithm>

namespace normgrad::graph_mode {

using ::ge::DataType;
using ::ge::Shape;
using ::ge::TensorDesc;

std::string text(DataType type) {
  switch (type) {
    case ::ge::DT_FLOAT:
      return "DT_FLOAT";
    case ::ge::DT_FLOAT16:
      return "DT_FLOAT16";
    case ::ge::DT_BF16:
      return "DT_BF16";
    case ::ge::DT_INT32:
      return "DT_INT32";
    case ::ge::DT_INT64:
      return "DT_INT64";
    case ::ge::DT_DOUBLE:
      return "DT_DOUBLE";
    case ::ge::DT_UNDEFINED:
      return "DT_UNDEFINED";
    default:
      return "DataType " + std::to_string(static_cast<int>(type));
  }
}

std::string text(const Shape& shape) {
  std::string result = "[";
  for (const int64_t extent : shape.GetDims()) {
    if (result.size() > 1) result += ", ";
    if (extent == ::ge::UNKNOWN_DIM_NUM) {
      result += "...";
    } else {
      result += extent < 0 ? "?" : std::to_string(extent);
    }
  }
  return result + "]";
}

bool is_known(const Shape& shape) {
  const std::vector<int64_t> dims = shape.GetDims();
  return std::all_of(dims.begin(), dims.end(), [](int64_t extent) { return extent >= 0; });
}

int64_t count_elements(const Shape& shape) {
  int64_t count = 1;
  bool overflow = false, empty = false;
  for (size_t axis = 0; axis < shape.GetDimNum(); ++axis) {
    empty |= shape.GetDim(axis) == 0;
    overflow |= __builtin_mul_overflow(count, shape.GetDim(axis), &count);
  }
  return empty ? 0 : overflow ? -1 : count;
}

int64_t count_bytes(const TensorDesc& desc) {
  const int64_t elements = count_elements(desc.GetShape());
  const int size = ::ge::GetSizeByDataType(desc.GetDataType());
  int64_t bytes = 0;
  if (elements < 0 || size < 0 || size > ::ge::kDataTypeSizeBitOffset) return -1;
  return __builtin_mul_overflow(elements, static_cast<int64_t>(size), &bytes) ? -1 : bytes;
}

void refuse(const Invocation& invocation, const std::string& argument, const std::string& reason) {
  refuse("node '" + invocation.node + "' (" + invocation.kind.type + "): " + argument +
         (argument.empty() ? "" : ": ") + reason);
}

namespace {

void mismatch(const Invocation& invocation, size_t input, const std::string& expected,
              const std::string& came) {
  refuse(invocation, invocation.kind.inputs[input], "expected " + expected + ", got " + came);
}

// Formats whose elements do not lie in the order of the shape.
bool is_blocked(::ge::Format format) {
  switch (format) {
    case ::ge::FORMAT_NC1HWC0:
    case ::ge::FORMAT_FRACTAL_Z:
    case ::ge::FORMAT_NC1HWC0_C04:
    case ::ge::FORMAT_FRACTAL_NZ:
    case ::ge::FORMAT_NDC1HWC0:
    case ::ge::FORMAT_FRACTAL_Z_3D:
    case ::ge::FORMAT_FRACTAL_NZ_C0_16:
      return true;
    default:
      return false;
  }
}

}  // namespace

void expect_type(const Invocation& invocation, size_t input,
                 std::initializer_list<DataType> allowed) {
  const DataType type = invocation.inputs[input].GetDataType();
  if (std::find(allowed.begin(), allowed.end(), type) != allowed.end()) return;
  std::string expected;
  for (const DataType one : allowed) {
    if (expected == text(one)) continue;  // FLOAT, or what is FLOAT as well
    expected += (expected.empty() ? "" : " or ") + text(one);
  }
  mismatch(invocation, input, expected, text(type));
}

void expect_same_type(const Invocation& invocation, size_t input, size_t as) {
  const DataType type = invocation.inputs[input].GetDataType();
  const DataType other = invocation.inputs[as].GetDataType();
  if (type == other) return;
  mismatch(invocation, input,
           "the type of " + std::string(invocation.kind.inputs[as]) + ", " + text(other),
           text(type));
}

void expect_same_shape(const Invocation& invocation, size_t input, size_t as) {
  const Shape shape = invocation.inputs[input].GetShape();
  const Shape other = invocation.inputs[as].GetShape();
  if (shape.GetDims() == other.GetDims()) return;
  mismatch(invocation, input,
           "the shape of " + std::string(invocation.kind.inputs[as]) + ", " + text(other),
           text(shape));
}

void expect_float_or_type(const Invocation& invocation, size_t input, size_t as) {
  expect_type(invocation, input, {::ge::DT_FLOAT, invocation.inputs[as].GetDataType()});
}

void expect_same_output_type(const Invocation& invocation, size_t output, size_t as) {
  const DataType type = invocation.outputs[output].GetDataType();
  const DataType other = invocation.outputs[as].GetDataType();
  if (type == other) return;
  refuse(invocation, invocation.kind.outputs[output],
         "expected the type of " + std::string(invocation.kind.outputs[as]) + ", " + text(other) +
             ", got " + text(type));
}

void check_data(const Invocation& invocation, size_t dy, size_t x) {
  for (size_t input = 0; input < invocation.inputs.size(); ++input) {
    const ::ge::Format format = invocation.inputs[input].GetFormat();
    if (is_blocked(format))
      mismatch(invocation, input, "a plain format", ::ge::GetFormatName(format));
  }
  const ::ge::Format format = invocation.inputs[x].GetFormat();
  const ::ge::Format other = invocation.inputs[dy].GetFormat();
  if (format != other && format != ::ge::FORMAT_ND && other != ::ge::FORMAT_ND) {
    mismatch(invocation, dy,
             "the format of " + std::string(invocation.kind.inputs[x]) + ", " +
                 ::ge::GetFormatName(format),
             ::ge::GetFormatName(other));
  }
  const Shape shape = invocation.inputs[dy].GetShape();
  const std::vector<int64_t> dims = shape.GetDims();
  if (dims.empty() || dims.size() > 8) {
    mismatch(invocation, dy, "1 to 8 axes", text(shape));
  }
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) {
    mismatch(invocation, dy, "extents of 1 and more", text(shape));
  }
  if (count_bytes(invocation.inputs[dy]) < 0) {
    mismatch(invocation, dy, "a shape whose size fits 63 bits", text(shape));
  }
  expect_same_shape(invocation, x, dy);
  expect_type(invocation, dy, {::ge::DT_FLOAT, ::ge::DT_FLOAT16, ::ge::DT_BF16});
  expect_same_type(invocation, x, dy);
}

void check_rows(const Invocation& invocation, size_t dy, size_t gamma, size_t statistic) {
  const std::vector<int64_t> dims = invocation.inputs[dy].GetShape().GetDims();
  const Shape gamma_shape = invocation.inputs[gamma].GetShape();
  const std::vector<int64_t> columns = gamma_shape.GetDims();
  if (columns.empty() || columns.size() > dims.size() ||
      !std::equal(columns.begin(), columns.end(), dims.end() - columns.size())) {
    mismatch(invocation, gamma, "the last axes of dy, " + text(invocation.inputs[dy].GetShape()),
             text(gamma_shape));
  }
  int64_t rows = 1;  // divides the number of elements, which fits
  for (size_t axis = 0; axis < dims.size() - columns.size(); ++axis) rows *= dims[axis];
  const Shape shape = invocation.inputs[statistic].GetShape();
  if (count_elements(shape) != rows) {
    mismatch(invocation, statistic, std::to_string(rows) + " elements, one per row of dy",
             text(shape));
  }
}

Tensor native(const TensorDesc& desc) {
  const DataType type = desc.GetDataType();
  return {.dtype = type == ::ge::DT_FLOAT     ? DType::kF32
                   : type == ::ge::DT_FLOAT16 ? DType::kF16
                                              : DType::kBF16,
          .shape = desc.GetShape().GetDims()};
}

}  // namespace normgrad::graph_mode
