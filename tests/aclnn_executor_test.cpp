// aclnn's executor between the two stages: run once or repeatedly, by many threads, ended by
// errors.
#include <array>
#include <atomic>
#include <thread>

#include "aclnn_objects.hpp"
#include "failing_new.hpp"

namespace acl_test {
namespace {

// A LayerNorm of two rows of two whose results are known: dx = {-2, -94, -877.5, -1747.5},
// dgamma = {20, 62}, dbeta = {6, 8}.
struct LayerNorm {
  enum Index { kDy, kX, kMean, kRstd, kWeight, kDx, kDgamma, kDbeta, kCount };

  LayerNorm() {
    const Dims shapes[kCount] = {{2, 2}, {2, 2}, {2, 1}, {2, 1}, {2}, {2, 2}, {2}, {2}};
    for (int i = 0; i < kCount; ++i) tensors[i] = make(shapes[i], data[i].data());
    const int64_t columns = 2;
    const bool all[] = {true, true, true};
    normalized_shape = aclCreateIntArray(&columns, 1);
    mask = aclCreateBoolArray(all, 3);
  }
  ~LayerNorm() {
    for (aclTensor* tensor : tensors) EXPECT_EQ(aclDestroyTensor(tensor), 0);
    EXPECT_EQ(aclDestroyIntArray(normalized_shape), 0);
    EXPECT_EQ(aclDestroyBoolArray(mask), 0);
  }
  LayerNorm(const LayerNorm&) = delete;
  LayerNorm& operator=(const LayerNorm&) = delete;

  aclnnStatus prepare() {
    const aclnnStatus status = aclnnLayerNormBackwardGetWorkspaceSize(
        tensors[kDy], tensors[kX], normalized_shape, tensors[kMean], tensors[kRstd],
        tensors[kWeight], nullptr, mask, tensors[kDx], tensors[kDgamma], tensors[kDbeta],
        &workspace_size, &executor);
    workspace.resize(workspace_size);
    return status;
  }
  aclnnStatus run(aclrtStream stream = nullptr) {
    return aclnnLayerNormBackward(workspace_size > 0 ? workspace.data() : nullptr, workspace_size,
                                  executor, stream);
  }
  void clear() {
    for (int output : {kDx, kDgamma, kDbeta}) data[output] = {-1, -1, -1, -1};
  }
  bool untouched() const {
    const std::array<float, 4> canary = {-1, -1, -1, -1};
    return data[kDx] == canary && data[kDgamma] == canary && data[kDbeta] == canary;
  }
  bool right() const {
    return data[kDx] == std::array<float, 4>{-2, -94, -877.5f, -1747.5f} &&
           data[kDgamma] == std::array<float, 4>{20, 62, -1, -1} &&
           data[kDbeta] == std::array<float, 4>{6, 8, -1, -1};
  }

  std::array<std::array<float, 4>, kCount> data = {{{2, 3, 4, 5},
                                                    {2, 3, 4, 5},
                                                    {2, 3},
                                                    {4, 5},
                                                    {1, 1},
                                                    {-1, -1, -1, -1},
                                                    {-1, -1, -1, -1},
                                                    {-1, -1, -1, -1}}};
  aclTensor* tensors[kCount] = {};
  aclIntArray* normalized_shape = nullptr;
  aclBoolArray* mask = nullptr;
  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  std::vector<char> workspace;
};

TEST(AclnnExecutor, RunsOnce) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0) << message();
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(call.run(), 0) << message();
  EXPECT_TRUE(call.right());
  call.clear();
  EXPECT_EQ(call.run(), kInvalid);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), kNoObject);
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(call.executor), kInner);
  EXPECT_TRUE(call.untouched());
}

TEST(AclnnExecutor, NullPointers) {
  LayerNorm call;
  EXPECT_EQ(aclnnLayerNormBackward(nullptr, 0, nullptr, nullptr), kNullPointer);
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(nullptr), kNoObject);
  EXPECT_EQ(aclDestroyAclOpExecutor(nullptr), kNoObject);
  uint64_t size = 77;
  aclOpExecutor* const before = stranger<aclOpExecutor>();
  aclOpExecutor* executor = before;
  const auto first = [&](uint64_t* s, aclOpExecutor** e) {
    return aclnnLayerNormBackwardGetWorkspaceSize(nullptr, nullptr, nullptr, nullptr, nullptr,
                                                  nullptr, nullptr, nullptr, nullptr, nullptr,
                                                  nullptr, s, e);
  };
  EXPECT_EQ(first(nullptr, &executor), kNullPointer);
  EXPECT_NE(message().find("workspaceSize"), std::string::npos);
  EXPECT_EQ(first(&size, nullptr), kNullPointer);
  EXPECT_NE(message().find("executor"), std::string::npos);
  EXPECT_EQ(first(&size, &executor), kNullPointer);
  EXPECT_NE(message().find("gradOut"), std::string::npos);
  EXPECT_EQ(size, 77u);  // a refused call changes nothing
  EXPECT_EQ(executor, before);
}

TEST(AclnnExecutor, StrangersAreNotRead) {
  LayerNorm call;
  aclOpExecutor* const nobody = stranger<aclOpExecutor>();
  EXPECT_EQ(aclnnLayerNormBackward(nullptr, 0, nobody, nullptr), kInvalid);
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(nobody), kInner);
  EXPECT_EQ(aclDestroyAclOpExecutor(nobody), kNoObject);
  auto* const tensor = reinterpret_cast<aclOpExecutor*>(call.tensors[0]);
  EXPECT_EQ(aclnnLayerNormBackward(nullptr, 0, tensor, nullptr), kInvalid);
  aclTensor* const own = call.tensors[LayerNorm::kRstd];
  call.tensors[LayerNorm::kRstd] = stranger<aclTensor>();
  EXPECT_EQ(call.prepare(), kNoObject);
  EXPECT_NE(message().find("rstd"), std::string::npos) << message();
  call.tensors[LayerNorm::kRstd] = own;
}

TEST(AclnnExecutor, BelongsToItsOperator) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  void* const workspace = call.workspace.data();
  const uint64_t size = call.workspace_size;
  EXPECT_EQ(aclnnRmsNormGrad(workspace, size, call.executor, nullptr), kInvalid);
  EXPECT_NE(message().find("aclnnLayerNormBackward"), std::string::npos) << message();
  EXPECT_EQ(aclnnBatchNormBackward(workspace, size, call.executor, nullptr), kInvalid);
  EXPECT_EQ(aclnnBatchNormReduceBackward(workspace, size, call.executor, nullptr), kInvalid);
  EXPECT_EQ(aclnnBatchNormElemtBackward(workspace, size, call.executor, nullptr), kInvalid);
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(call.run(), 0);  // none of these ended it
  EXPECT_TRUE(call.right());
}

TEST(AclnnExecutor, DestroyedWithoutARun) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 0);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), kNoObject);
  EXPECT_EQ(call.run(), kInvalid);
  EXPECT_TRUE(call.untouched());
}

TEST(AclnnExecutor, MissingWorkspaceEndsIt) {
  for (const bool repeatable : {false, true}) {
    LayerNorm call;
    ASSERT_EQ(call.prepare(), 0);
    ASSERT_GT(call.workspace_size, 0u);
    if (repeatable) {
      EXPECT_EQ(aclSetAclOpExecutorRepeatable(call.executor), 0);
    }
    EXPECT_EQ(aclnnLayerNormBackward(nullptr, call.workspace_size, call.executor, nullptr),
              kNullPointer);
    EXPECT_EQ(call.run(), kInvalid);
    EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), kNoObject);
    EXPECT_TRUE(call.untouched());
  }
}

TEST(AclnnExecutor, WorkspaceTooSmallLeavesIt) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  ASSERT_GT(call.workspace_size, 0u);
  EXPECT_EQ(aclnnLayerNormBackward(call.workspace.data(), call.workspace_size - 1, call.executor,
                                   nullptr),
            kInvalid);
  EXPECT_NE(message().find("workspaceSize"), std::string::npos) << message();
  EXPECT_EQ(aclnnLayerNormBackward(nullptr, 0, call.executor, nullptr), kInvalid);
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(call.run(), 0);
  EXPECT_TRUE(call.right());
}

TEST(AclnnExecutor, AFailedRunEndsASingleUse) {
  for (const bool repeatable : {false, true}) {
    LayerNorm call;
    ASSERT_EQ(call.prepare(), 0);
    if (repeatable) {
      EXPECT_EQ(aclSetAclOpExecutorRepeatable(call.executor), 0);
    }
    aclTensor* const dgamma = call.tensors[LayerNorm::kDgamma];
    ASSERT_EQ(aclSetRawTensorAddr(dgamma, call.data[LayerNorm::kDx].data()), 0);
    EXPECT_EQ(call.run(), kInvalid);  // two outputs overlap
    EXPECT_TRUE(call.untouched());
    ASSERT_EQ(aclSetRawTensorAddr(dgamma, nullptr), 0);
    EXPECT_EQ(call.run(), repeatable ? kNullPointer : kInvalid);
    EXPECT_TRUE(call.untouched());
    ASSERT_EQ(aclSetRawTensorAddr(dgamma, call.data[LayerNorm::kDgamma].data()), 0);
    EXPECT_EQ(call.run(), repeatable ? 0 : kInvalid);
    EXPECT_EQ(call.right(), repeatable);
    EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), repeatable ? 0 : kNoObject);
  }
}

TEST(AclnnExecutor, StaleStream) {
  LayerNorm call;
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclInit(nullptr), 0);
  ASSERT_EQ(aclrtSetDevice(0), 0);
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  ASSERT_EQ(call.prepare(), 0);
  EXPECT_EQ(call.run(stream), 0) << message();
  EXPECT_EQ(aclrtSynchronizeStream(stream), 0);
  EXPECT_TRUE(call.right());
  EXPECT_EQ(aclrtDestroyStream(stream), 0);
  call.clear();
  ASSERT_EQ(call.prepare(), 0);
  EXPECT_EQ(call.run(stream), kRuntime);
  EXPECT_EQ(message().rfind("AclNN_Runtime_Error(EZ9903): stream", 0), 0u) << message();
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(call.run(), kInvalid);  // that run ended it
  EXPECT_EQ(aclrtResetDevice(0), 0);
  EXPECT_EQ(aclFinalize(), 0);
}

TEST(AclnnExecutor, AddressesAreReadWhenItRuns) {
  LayerNorm call;
  std::array<float, 4> elsewhere = {-1, -1, -1, -1};
  ASSERT_EQ(call.prepare(), 0);
  ASSERT_EQ(aclSetRawTensorAddr(call.tensors[LayerNorm::kDx], elsewhere.data()), 0);
  EXPECT_EQ(call.run(), 0);
  EXPECT_EQ(elsewhere, (std::array<float, 4>{-2, -94, -877.5f, -1747.5f}));
  EXPECT_EQ(call.data[LayerNorm::kDx], (std::array<float, 4>{-1, -1, -1, -1}));
}

TEST(AclnnExecutor, TensorsMayGoAfterTheRunNotBefore) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  aclTensor*& mean = call.tensors[LayerNorm::kMean];
  EXPECT_EQ(aclDestroyTensor(mean), 0);
  EXPECT_EQ(call.run(), kNoObject);
  EXPECT_TRUE(call.untouched());
  mean = make({2, 1}, call.data[LayerNorm::kMean].data());
}

// What the first stage saw is what runs: a tensor described anew, or one in the place of another,
// is not written to with the old strides.
TEST(AclnnExecutor, TensorsMayNotChangeBetweenTheStages) {
  for (const bool again : {false, true}) {
    LayerNorm call;
    ASSERT_EQ(call.prepare(), 0);
    aclTensor*& dx = call.tensors[LayerNorm::kDx];
    void* memory = call.data[LayerNorm::kDx].data();
    const int64_t dims[] = {1, 2}, strides[] = {2, 1};
    if (again) {
      ASSERT_EQ(
          aclInitTensor(dx, dims, 2, ACL_FLOAT16, strides, -1, ACL_FORMAT_ND, dims, 2, memory), 0);
    } else {
      EXPECT_EQ(aclDestroyTensor(dx), 0);
      dx = make({1, 2}, memory);  // most likely at the same address
    }
    EXPECT_EQ(call.run(), kNoObject);
    EXPECT_TRUE(call.untouched());
  }
}

TEST(AclnnExecutor, MayBeDestroyedDuringARun) {
  for (int round = 0; round < 200; ++round) {
    LayerNorm call;
    ASSERT_EQ(call.prepare(), 0);
    ASSERT_EQ(aclSetAclOpExecutorRepeatable(call.executor), 0);
    std::thread runner([&] {
      aclnnStatus status = 0;
      while (status == 0) status = call.run();
      EXPECT_EQ(status, kInvalid);
    });
    EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 0);
    runner.join();
  }
}

TEST(AclnnExecutor, RepeatableRunsAgainWithOtherAddresses) {
  LayerNorm call;
  std::array<float, 4> other_dy = {4, 6, 8, 10}, other_dx = {};
  ASSERT_EQ(call.prepare(), 0);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(call.executor), 0);
  for (int round = 0; round < 3; ++round) {
    call.clear();
    EXPECT_EQ(call.run(), 0);
    EXPECT_TRUE(call.right());
  }
  EXPECT_EQ(aclSetInputTensorAddr(call.executor, 0, call.tensors[LayerNorm::kDy], other_dy.data()),
            0);
  EXPECT_EQ(aclSetOutputTensorAddr(call.executor, 0, call.tensors[LayerNorm::kDx], other_dx.data()),
            0);
  EXPECT_EQ(call.run(), 0);
  EXPECT_EQ(other_dx, (std::array<float, 4>{-4, -188, -1755, -3495}));
  for (auto* set : {aclSetTensorAddr, AclSetTensorAddr, AclSetInputTensorAddr}) {
    other_dx = {};
    EXPECT_EQ(set(call.executor, 5, call.tensors[LayerNorm::kDx], call.data[0].data()), 0);
    EXPECT_EQ(
        AclSetOutputTensorAddr(call.executor, 1, call.tensors[LayerNorm::kDx], other_dx.data()), 0);
    EXPECT_EQ(call.run(), 0);
    EXPECT_EQ(other_dx, (std::array<float, 4>{-4, -188, -1755, -3495}));
  }
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 0);
  EXPECT_EQ(call.run(), kInvalid);
}

TEST(AclnnExecutor, SettingAddressesOfNothing) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  float place = 0;
  aclTensor* const dx = call.tensors[LayerNorm::kDx];
  for (auto* set : {aclSetInputTensorAddr, aclSetOutputTensorAddr, aclSetTensorAddr,
                    AclSetInputTensorAddr, AclSetOutputTensorAddr, AclSetTensorAddr}) {
    EXPECT_EQ(set(call.executor, 0, nullptr, &place), kNoObject);
    EXPECT_EQ(set(call.executor, 0, stranger<aclTensor>(), &place), kNoObject);
    ASSERT_EQ(aclSetRawTensorAddr(dx, nullptr), 0);
    EXPECT_EQ(set(nullptr, 0, dx, &place), kNoObject);
    EXPECT_EQ(address_of(dx), &place);  // aclnn changes the tensor before it looks further
    EXPECT_EQ(set(stranger<aclOpExecutor>(), 0, dx, &place), kNoObject);
  }
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 0);
}

TEST(AclnnExecutor, SettingAddressesInAList) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  float place = 0;
  aclTensor* const members[] = {make({2}), make({3})};
  aclTensorList* list = aclCreateTensorList(members, 2);
  for (auto* set :
       {aclSetDynamicInputTensorAddr, aclSetDynamicOutputTensorAddr, aclSetDynamicTensorAddr,
        AclSetDynamicInputTensorAddr, AclSetDynamicOutputTensorAddr, AclSetDynamicTensorAddr}) {
    ASSERT_EQ(aclSetRawTensorAddr(members[1], nullptr), 0);
    EXPECT_EQ(set(call.executor, 0, 1, list, &place), 0);
    EXPECT_EQ(address_of(members[0]), nullptr);
    EXPECT_EQ(address_of(members[1]), &place);
    EXPECT_EQ(set(call.executor, 0, 2, list, &place), kInvalid);
    EXPECT_EQ(set(call.executor, 0, 0, nullptr, &place), kNoObject);
    EXPECT_EQ(set(nullptr, 0, 1, list, &place), kNoObject);
  }
  EXPECT_EQ(aclDestroyTensorList(list), 0);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 0);
}

TEST(AclnnExecutor, NothingWantedNothingDone) {
  LayerNorm call;
  const bool none[] = {false, false, false};
  EXPECT_EQ(aclDestroyBoolArray(call.mask), 0);
  call.mask = aclCreateBoolArray(none, 3);
  ASSERT_EQ(aclSetRawTensorAddr(call.tensors[LayerNorm::kX], nullptr), 0);
  ASSERT_EQ(call.prepare(), 0);
  EXPECT_EQ(call.workspace_size, 0u);
  EXPECT_EQ(call.run(), 0);
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(call.run(), kInvalid);
}

TEST(AclnnExecutor, ThreadsDoNotMeet) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      LayerNorm call;
      for (int round = 0; round < 500; ++round) {
        call.clear();
        ASSERT_EQ(call.prepare(), 0);
        ASSERT_EQ(call.run(), 0);
        ASSERT_TRUE(call.right());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AclnnExecutor, OneOfManyThreadsRunsIt) {
  LayerNorm call;
  for (int round = 0; round < 50; ++round) {
    call.clear();
    ASSERT_EQ(call.prepare(), 0);
    std::atomic<int> ran = 0, refused = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] { ++(call.run() == 0 ? ran : refused); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(refused, 3);
    EXPECT_TRUE(call.right());
  }
}

#if !defined(NORMGRAD_SANITIZE_THREAD)
// Whichever allocation of the first stage fails, it says so and leaves nothing behind.
TEST(AclnnExecutor, OutOfMemory) {
  LayerNorm call;
  ASSERT_EQ(call.prepare(), 0);
  ASSERT_EQ(call.run(), 0);
  call.clear();
  bool prepared = false;
  for (int64_t limit = 0; limit < 1000 && !prepared; ++limit) {
    aclOpExecutor* const before = call.executor = stranger<aclOpExecutor>();
    allocations_left = limit;
    const aclnnStatus status = call.prepare();
    allocations_left = -1;
    prepared = status == 0;
    if (prepared) continue;
    ASSERT_EQ(status, kNoExecutor) << message();
    ASSERT_EQ(message().rfind("AclNN_Inner_Error(EZ9999): ", 0), 0u) << message();
    ASSERT_EQ(call.executor, before);
  }
  ASSERT_TRUE(prepared);
  EXPECT_TRUE(call.untouched());
  const int64_t before = allocations;
  EXPECT_EQ(call.run(), 0);
  EXPECT_EQ(allocations, before);  // the second stage allocates nothing
  EXPECT_TRUE(call.right());
}

#endif

}  // namespace
}  // namespace acl_test
