// Elements of a tensor as float64: reading them through the strides, writing them, rounding them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "normgrad/tensor.hpp"

namespace normgrad::reference {

int64_t count(const Tensor& tensor);

// The strides of the tensor, written out where they are implied.
std::vector<int64_t> strides_of(const Tensor& tensor);

// `data` points to the element with all indices 0; the vector is dense and row-major.
std::vector<double> gather(const Tensor& tensor, const void* data);

// Rounds each value once, from float64 to the type of the tensor. Where strides are 0 the last
// value stays.
void scatter(const Tensor& tensor, void* data, std::span<const double> values);

// Sets every byte of every element.
void erase(const Tensor& tensor, void* data, std::byte byte);

// The nearest value of the type, ties to even; beyond its largest number the result is Inf.
double round_to(DType dtype, double value);

}  // namespace normgrad::reference
