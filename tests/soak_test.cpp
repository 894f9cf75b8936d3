// Create, run, destroy, a million times through every dialect: no byte stays behind. Sanitizers
// have no mallinfo2; there a thousand rounds show the leak checker what it has to see.
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_ops_nn.h"
#include "array_ops.h"
#include "ge_api.h"
#include "infiniop.h"
#include "ops_proto_nn.h"

namespace {

#if defined(NORMGRAD_SANITIZE_ADDRESS) || defined(NORMGRAD_SANITIZE_THREAD)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kRounds = kSanitized ? 1000 : 1000000;

// The bytes that the program has from malloc.
size_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void expect_no_growth(const std::function<void()>& round) {
  for (int i = 0; i < 1000; ++i) round();  // caches and thread-local buffers have their size now
  const size_t before = bytes_in_use();
  for (int i = 0; i < kRounds && !testing::Test::HasFailure(); ++i) round();
  // The tables of live objects take their final size when by chance many objects meet in one: 64
  // tables of some hundred bytes. A leak of one byte per round is a million.
  if (!kSanitized) {
    EXPECT_LE(bytes_in_use(), before + 16384);
  }
}

constexpr int64_t kCols = 8;
using Row = std::array<float, kCols>;
constexpr Row kX = {1, -1, 2, -2, 3, -3, 4, -4}, kDy = {1, 2, 3, 4, 5, 6, 7, 8};
// dbeta of the one row is dy; what the calls must have computed.
void expect_computed(const float* dbeta) {
  ASSERT_EQ(std::memcmp(dbeta, kDy.data(), sizeof kDy), 0);
}

TEST(Soak, Infiniop) {
  expect_no_growth([] {
    infiniopHandle_t handle;
    infiniopCreateHandle(&handle);
    const auto tensor = [](std::vector<size_t> shape) {
      infiniopTensorDescriptor_t desc;
      infiniopCreateTensorDescriptor(&desc, shape.size(), shape.data(), nullptr, INFINI_DTYPE_F32);
      return desc;
    };
    const auto rows = tensor({1, kCols}), vector = tensor({kCols}), scalar = tensor({1});
    infiniopLayerNormBackwardDescriptor_t desc;
    ASSERT_EQ(infiniopCreateLayerNormBackwardDescriptor(handle, &desc, rows, vector, vector, rows,
                                                        vector, rows, scalar),
              INFINI_STATUS_SUCCESS);
    size_t size = 0;
    infiniopGetLayerNormBackwardWorkspaceSize(desc, &size);
    std::vector<char> workspace(size);
    Row dx, dgamma, dbeta;
    const float one = 1;
    ASSERT_EQ(
        infiniopLayerNormBackward(desc, workspace.data(), size, dx.data(), dgamma.data(),
                                  dbeta.data(), kDy.data(), kX.data(), kX.data(), &one, nullptr),
        INFINI_STATUS_SUCCESS);
    expect_computed(dbeta.data());
    infiniopDestroyLayerNormBackwardDescriptor(desc);
    for (const auto each : {rows, vector, scalar}) infiniopDestroyTensorDescriptor(each);
    infiniopDestroyHandle(handle);
  });
}

aclTensor* acl_tensor(std::vector<int64_t> shape, const void* data) {
  return aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND,
                         shape.data(), shape.size(), const_cast<void*>(data));
}

// Each round also has a refused first stage and a refused second one.
TEST(Soak, Aclnn) {
  ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  expect_no_growth([] {
    aclrtStream stream = nullptr;
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    void* dbeta = nullptr;
    ASSERT_EQ(aclrtMalloc(&dbeta, sizeof(Row), ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    const float zero = 0, one = 1;
    aclTensor* x = acl_tensor({1, kCols}, kX.data());
    aclTensor* dy = acl_tensor({1, kCols}, kDy.data());
    aclTensor* mean = acl_tensor({1, 1}, &zero);
    aclTensor* rstd = acl_tensor({1, 1}, &one);
    aclTensor* out = acl_tensor({kCols}, dbeta);
    const int64_t cols = kCols;
    const bool bias_only[] = {false, false, true};
    aclIntArray* normalized = aclCreateIntArray(&cols, 1);
    aclBoolArray* mask = aclCreateBoolArray(bias_only, 3);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const auto first_stage = [&](const aclTensor* input) {
      return aclnnLayerNormBackwardGetWorkspaceSize(dy, input, normalized, mean, rstd, nullptr,
                                                    nullptr, mask, nullptr, nullptr, out, &size,
                                                    &executor);
    };
    ASSERT_EQ(first_stage(mean), 161002);
    ASSERT_EQ(first_stage(x), ACL_SUCCESS);
    ASSERT_EQ(aclnnLayerNormBackward(nullptr, size, executor, stream), 161001);
    ASSERT_EQ(first_stage(x), ACL_SUCCESS);
    std::vector<char> workspace(size);
    ASSERT_EQ(aclnnLayerNormBackward(workspace.data(), size, executor, stream), ACL_SUCCESS);
    expect_computed(static_cast<const float*>(dbeta));
    for (const aclTensor* tensor : {x, dy, mean, rstd, out}) aclDestroyTensor(tensor);
    aclDestroyIntArray(normalized);
    aclDestroyBoolArray(mask);
    aclrtFree(dbeta);
    aclrtDestroyStream(stream);
  });
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
}

// One Data for ever new consumers.
TEST(Soak, AProducerForgetsDeadConsumers) {
  ge::op::Data data("data");
  expect_no_growth([&] {
    ge::op::RmsNormGrad node("node");
    node.set_input_dy(data);
  });
}

// Graph, session and run; each round also runs a graph that is not there.
TEST(Soak, Graph) {
  const std::map<ge::AscendString, ge::AscendString> options;
  ASSERT_EQ(ge::GEInitialize(options), 0u);
  expect_no_growth([&] {
    const float zero = 0, one = 1;
    std::vector<ge::Operator> inputs;
    std::vector<ge::Tensor> tensors;
    const auto feed = [&](const char* name, std::vector<int64_t> shape, const void* data,
                          size_t bytes) {
      const ge::TensorDesc desc(ge::Shape(shape), ge::FORMAT_ND, ge::DT_FLOAT);
      auto node = ge::op::Data(name).set_attr_index(0);
      node.update_output_desc_y(desc);
      inputs.push_back(node);
      tensors.emplace_back(desc, static_cast<const uint8_t*>(data), bytes);
      return node;
    };
    auto dy = feed("dy", {1, kCols}, kDy.data(), sizeof kDy);
    auto x = feed("x", {1, kCols}, kX.data(), sizeof kX);
    auto rstd = feed("rstd", {1, 1}, &one, sizeof one);
    auto mean = feed("mean", {1, 1}, &zero, sizeof zero);
    auto gamma = feed("gamma", {kCols}, kX.data(), sizeof kX);
    ge::op::LayerNormGradV3 node("node");
    node.set_input_dy(dy).set_input_x(x).set_input_rstd(rstd).set_input_mean(mean).set_input_gamma(
        gamma);
    ge::Graph graph("soak");
    graph.SetInputs(inputs).SetOutputs(std::vector<ge::Operator>{node});
    ge::Session session(options);
    ASSERT_EQ(session.AddGraph(1, graph), 0u);
    std::vector<ge::Tensor> outputs;
    ASSERT_EQ(session.RunGraph(1, tensors, outputs), 0u);
    expect_computed(reinterpret_cast<const float*>(outputs[2].GetData()));
    ASSERT_NE(session.RunGraph(2, tensors, outputs), 0u);
  });
  EXPECT_EQ(ge::GEFinalize(), 0u);
}

}  // namespace
