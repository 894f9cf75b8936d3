// The safetensors file format: 8 bytes of little-endian header length, a JSON header, the data.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "normgrad/tensor.hpp"

namespace normgrad::tool {

struct StoredTensor {
  Tensor tensor;  // contiguous
  std::vector<std::byte> data;
};
using StoredTensors = std::map<std::string, StoredTensor>;

// Both throw std::runtime_error; the message names the file, the tensor, what was expected and
// what came. Reading accepts what this library computes with: F32, F16 and BF16.
StoredTensors read_safetensors(const std::string& path);
void write_safetensors(const std::string& path, const StoredTensors& tensors);

}  // namespace normgrad::tool
