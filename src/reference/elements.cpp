// Elements of a tensor as float64.
#include "reference/elements.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/float16.hpp"

namespace normgrad::reference {
namespace {

// Calls visit(offset, position, extent, stride) for each line along the last axis: the offset of
// its first element in memory and its position in row-major order.
template <class Visit>
void for_each_line(const Tensor& tensor, Visit visit) {
  const int64_t total = count(tensor);
  if (total == 0) return;
  const std::vector<int64_t> strides = strides_of(tensor);
  const size_t leading = tensor.shape.empty() ? 0 : tensor.shape.size() - 1;
  const int64_t extent = tensor.shape.empty() ? 1 : tensor.shape.back();
  const int64_t stride = tensor.shape.empty() ? 1 : strides.back();
  std::vector<int64_t> index(leading, 0);
  int64_t offset = 0;
  for (int64_t position = 0; position < total; position += extent) {
    visit(offset, position, extent, stride);
    for (size_t axis = leading; axis-- > 0;) {
      offset += strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      offset -= strides[axis] * tensor.shape[axis];
      index[axis] = 0;
    }
  }
}

template <class T, class Convert>
std::vector<double> gather_as(const Tensor& tensor, const void* data, Convert convert) {
  std::vector<double> values(static_cast<size_t>(count(tensor)));
  const T* elements = static_cast<const T*>(data);
  for_each_line(tensor, [&](int64_t offset, int64_t position, int64_t extent, int64_t stride) {
    for (int64_t i = 0; i < extent; ++i) {
      values[position + i] = convert(elements[offset + i * stride]);
    }
  });
  return values;
}

template <class T, class Convert>
void scatter_as(const Tensor& tensor, void* data, std::span<const double> values, Convert convert) {
  T* elements = static_cast<T*>(data);
  for_each_line(tensor, [&](int64_t offset, int64_t position, int64_t extent, int64_t stride) {
    for (int64_t i = 0; i < extent; ++i) {
      elements[offset + i * stride] = convert(values[position + i]);
    }
  });
}

}  // namespace

int64_t count(const Tensor& tensor) {
  int64_t total = 1;
  for (int64_t extent : tensor.shape) total *= extent;
  return total;
}

std::vector<int64_t> strides_of(const Tensor& tensor) {
  if (!tensor.strides.empty()) return tensor.strides;
  std::vector<int64_t> strides(tensor.shape.size());
  int64_t stride = 1;
  for (size_t axis = strides.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return strides;
}

std::vector<double> gather(const Tensor& tensor, const void* data) {
  switch (tensor.dtype) {
    case DType::kF16:
      return gather_as<uint16_t>(tensor, data, f32_from_f16);
    case DType::kBF16:
      return gather_as<uint16_t>(tensor, data, f32_from_bf16);
    case DType::kI32:
      return gather_as<int32_t>(tensor, data, [](int32_t value) { return value; });
    case DType::kI64:
      return gather_as<int64_t>(tensor, data,
                                [](int64_t value) { return static_cast<double>(value); });
    case DType::kF64:
      return gather_as<double>(tensor, data, [](double value) { return value; });
    default:
      return gather_as<float>(tensor, data, [](float value) { return value; });
  }
}

// The conversions below get values that round_to has made exact, so they do not round again.
void scatter(const Tensor& tensor, void* data, std::span<const double> values) {
  switch (tensor.dtype) {
    case DType::kF16:
      return scatter_as<uint16_t>(tensor, data, values, [](double value) {
        return f16_from_f32(static_cast<float>(round_to(DType::kF16, value)));
      });
    case DType::kBF16:
      return scatter_as<uint16_t>(tensor, data, values, [](double value) {
        return bf16_from_f32(static_cast<float>(round_to(DType::kBF16, value)));
      });
    case DType::kI32:
      return scatter_as<int32_t>(tensor, data, values,
                                 [](double value) { return static_cast<int32_t>(value); });
    case DType::kI64:
      return scatter_as<int64_t>(tensor, data, values,
                                 [](double value) { return static_cast<int64_t>(value); });
    case DType::kF64:
      return scatter_as<double>(tensor, data, values, [](double value) { return value; });
    default:
      return scatter_as<float>(tensor, data, values,
                               [](double value) { return static_cast<float>(value); });
  }
}

void erase(const Tensor& tensor, void* data, std::byte byte) {
  const int64_t size = static_cast<int64_t>(size_of(tensor.dtype));
  std::byte* bytes = static_cast<std::byte*>(data);
  for_each_line(tensor, [&](int64_t offset, int64_t, int64_t extent, int64_t stride) {
    for (int64_t i = 0; i < extent; ++i) {
      std::fill_n(bytes + (offset + i * stride) * size, size, byte);
    }
  });
}

double round_to(DType dtype, double value) {
  if (dtype == DType::kF32) return static_cast<float>(value);
  if (dtype == DType::kF64 || dtype == DType::kI64) return value;
  if (!std::isfinite(value)) return value;
  const bool f16 = dtype == DType::kF16;
  const int smallest = f16 ? -14 : -126;  // exponent of the smallest normal number
  const int digits = f16 ? 11 : 8;
  const double largest = f16 ? 65504 : 0x1.FEp127;
  if (std::abs(value) >= 2 * largest) return std::copysign(INFINITY, value);
  const int stored = static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7FF);
  const int exponent = std::max(smallest, stored - 1023);
  // A sum with 1.5 * 2^52 quanta has no bits below a quantum: it is rounded to nearest even.
  const uint64_t unit_exponent = static_cast<uint64_t>(1023 + 52 + exponent - (digits - 1));
  const double unit = std::bit_cast<double>(unit_exponent << 52 | uint64_t{1} << 51);
  const double rounded = std::copysign((std::abs(value) + unit) - unit, value);
  return std::abs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

}  // namespace normgrad::reference
