// What the subcommands read from the command line: operators, shapes, element types, devices.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"
#include "reference/cases.hpp"

namespace normgrad::tool {

using reference::Op;

// The names that options take.
inline const std::map<std::string, Op> kOps = {
    {"layer_norm", Op::kLayerNorm}, {"layer_norm_backward", Op::kLayerNorm},
    {"rms_norm", Op::kRmsNorm},     {"rms_norm_backward", Op::kRmsNorm},
    {"batch_norm", Op::kBatchNorm}, {"batch_norm_backward", Op::kBatchNorm},
};
inline const std::map<std::string, DType> kDTypes = {
    {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}};
inline const std::map<std::string, Device> kDevices = {{"cpu", Device::kCpu},
                                                       {"cuda", Device::kCuda}};

inline constexpr Op kAllOps[] = {Op::kLayerNorm, Op::kRmsNorm, Op::kBatchNorm};
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// "16384x4096" -> {16384, 4096}; throws std::runtime_error that begins with where the text stood.
std::vector<int64_t> parse_shape(const std::string& text, const std::string& where = "--shape");

// {16384, 4096} -> "16384x4096"
std::string format_shape(const std::vector<int64_t>& shape);

}  // namespace normgrad::tool
