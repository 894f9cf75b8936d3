// What the tests of wrong graphs share: a correct call to spoil, and what a refusal leaves alone.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ge_table_call.hpp"

namespace ge_test {

// A correct call on x of (2, 3, 4, 5), all of one dtype but for what is always FLOAT.
inline normgrad::reference::Case correct(const std::string& type, DType dtype) {
  using normgrad::reference::Op;
  normgrad::reference::Case c;
  c.op = type == "RmsNormGrad"       ? Op::kRmsNorm
         : type == "BatchNormGradV3" ? Op::kBatchNorm
                                     : Op::kLayerNorm;
  c.shape = {2, 3, 4, 5};
  c.normalized_axes = 2;
  c.keep_axis = c.op == Op::kLayerNorm;
  c.data = c.gamma = c.params = dtype;
  if (c.op == Op::kRmsNorm) c.params = DType::kF32;
  if (type == "LayerNormGrad") c.statistics = normgrad::Statistics::kMeanVariance;
  return c;
}

// A failed run leaves the vector that it was given, and the tensors in it.
struct Kept {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(8, 0xAB);
  std::vector<ge::Tensor> outputs = {
      ge::Tensor(ge::TensorDesc(ge::Shape({2})), bytes.data(), bytes.size())};
  const uint8_t* data = outputs[0].GetData();

  bool intact(const std::vector<ge::Tensor>& now) const {
    return now.size() == 1 && now[0].GetData() == data && now[0].GetSize() == 8 &&
           std::memcmp(data, bytes.data(), 8) == 0;
  }
};

inline void expect_named(const std::string& message, const std::string& node,
                         const std::string& argument) {
  EXPECT_NE(message.find(node), std::string::npos) << message;
  EXPECT_NE(message.find(argument), std::string::npos) << message;
}

}  // namespace ge_test
