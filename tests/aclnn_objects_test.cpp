// aclnn's objects and its executor: how they are made, asked, changed and ended.
#include <acl/acl.h>
#include <aclnnop/aclnn_ops_nn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "failing_new.hpp"

namespace {

constexpr int kNullPointer = 161001, kInvalid = 161002, kRuntime = 361001;
constexpr int kInner = 561000, kNoExecutor = 561101, kNoObject = 561103;

using Dims = std::vector<int64_t>;

// Nothing lives at this address, and reading it would be fatal.
template <class T>
T* stranger() {
  return reinterpret_cast<T*>(uintptr_t{16});
}

aclTensor* make(const Dims& dims, void* data = nullptr, aclDataType dtype = ACL_FLOAT) {
  return aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND, dims.data(),
                         dims.size(), data);
}

std::string message() {
  const char* text = aclGetRecentErrMsg();
  return text ? text : "";
}

using Getter = aclnnStatus (*)(const aclTensor*, int64_t**, uint64_t*);

Dims get(Getter getter, const aclTensor* tensor) {
  int64_t* values = nullptr;
  uint64_t count = 99;
  EXPECT_EQ(getter(tensor, &values, &count), 0);
  const std::unique_ptr<int64_t[]> owner(values);
  return Dims(values, values + count);
}

int64_t offset_of(const aclTensor* tensor) {
  int64_t offset = -1;
  EXPECT_EQ(aclGetViewOffset(tensor, &offset), 0);
  return offset;
}

aclFormat format_of(const aclTensor* tensor) {
  aclFormat format = ACL_FORMAT_UNDEFINED;
  EXPECT_EQ(aclGetFormat(tensor, &format), 0);
  return format;
}

aclDataType dtype_of(const aclTensor* tensor) {
  aclDataType dtype = ACL_DT_UNDEFINED;
  EXPECT_EQ(aclGetDataType(tensor, &dtype), 0);
  return dtype;
}

void* address_of(const aclTensor* tensor) {
  void* address = nullptr;
  EXPECT_EQ(aclGetRawTensorAddr(tensor, &address), 0);
  return address;
}

TEST(AclnnTensor, SaysWhatItWasMadeOf) {
  float storage[100];
  int64_t view[] = {2, 3}, strides[] = {20, 2}, shape[] = {100};
  aclTensor* tensor =
      aclCreateTensor(view, 2, ACL_BF16, strides, 7, ACL_FORMAT_NCHW, shape, 1, storage);
  ASSERT_NE(tensor, nullptr);
  view[0] = strides[0] = shape[0] = -5;  // the arrays were copied
  EXPECT_EQ(get(aclGetViewShape, tensor), (Dims{2, 3}));
  EXPECT_EQ(get(aclGetViewStrides, tensor), (Dims{20, 2}));
  EXPECT_EQ(get(aclGetStorageShape, tensor), Dims{100});
  EXPECT_EQ(offset_of(tensor), 7);
  EXPECT_EQ(format_of(tensor), ACL_FORMAT_NCHW);
  EXPECT_EQ(dtype_of(tensor), ACL_BF16);
  EXPECT_EQ(address_of(tensor), storage);  // without the offset
  EXPECT_EQ(aclSetRawTensorAddr(tensor, storage + 1), 0);
  EXPECT_EQ(address_of(tensor), storage + 1);
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
}

TEST(AclnnTensor, NullStridesAreContiguous) {
  aclTensor* tensor = make({4, 5, 6});
  EXPECT_EQ(get(aclGetViewStrides, tensor), (Dims{30, 6, 1}));
  EXPECT_EQ(address_of(tensor), nullptr);
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
  tensor = make({int64_t{1} << 62, 4, 2});  // beyond 64 bits: not undefined
  EXPECT_EQ(get(aclGetViewShape, tensor).size(), 3u);
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
}

TEST(AclnnTensor, RankFrom0To25) {
  aclTensor* scalar =
      aclCreateTensor(nullptr, 0, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr);
  ASSERT_NE(scalar, nullptr);
  EXPECT_TRUE(get(aclGetViewShape, scalar).empty());
  EXPECT_EQ(aclDestroyTensor(scalar), 0);
  aclTensor* many = make(Dims(25, 1));
  EXPECT_NE(many, nullptr);
  EXPECT_EQ(aclDestroyTensor(many), 0);
  EXPECT_EQ(make(Dims(26, 1)), nullptr);
  EXPECT_NE(message().find("viewDimsNum"), std::string::npos) << message();
}

TEST(AclnnTensor, NullDimensionsAreRefused) {
  const int64_t dims[] = {2};
  EXPECT_EQ(aclCreateTensor(nullptr, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, dims, 1, nullptr),
            nullptr);
  EXPECT_EQ(aclCreateTensor(dims, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 1, nullptr),
            nullptr);
}

TEST(AclnnTensor, InitMakesItAnother) {
  float data = 0;
  aclTensor* tensor = make({4, 5});
  const int64_t view[] = {3}, strides[] = {2}, storage[] = {9};
  EXPECT_EQ(
      aclInitTensor(nullptr, view, 1, ACL_FLOAT16, strides, 1, ACL_FORMAT_NC, storage, 1, nullptr),
      kNullPointer);
  EXPECT_NE(aclInitTensor(tensor, nullptr, 1, ACL_FLOAT16, strides, 1, ACL_FORMAT_NC, storage, 1,
                          nullptr),
            0);
  EXPECT_EQ(get(aclGetViewShape, tensor), (Dims{4, 5}));  // a refused call changes nothing
  EXPECT_EQ(
      aclInitTensor(tensor, view, 1, ACL_FLOAT16, strides, 1, ACL_FORMAT_NC, storage, 1, &data), 0);
  EXPECT_EQ(get(aclGetViewShape, tensor), Dims{3});
  EXPECT_EQ(get(aclGetViewStrides, tensor), Dims{2});
  EXPECT_EQ(get(aclGetStorageShape, tensor), Dims{9});
  EXPECT_EQ(offset_of(tensor), 1);
  EXPECT_EQ(format_of(tensor), ACL_FORMAT_NC);
  EXPECT_EQ(dtype_of(tensor), ACL_FLOAT16);
  EXPECT_EQ(address_of(tensor), &data);
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
}

TEST(AclnnTensor, NullArgumentsOfGettersAndSetters) {
  aclTensor* tensor = make({2});
  int64_t *values = nullptr, offset = 0;
  uint64_t count = 0;
  aclFormat format;
  aclDataType dtype;
  void* address = nullptr;
  for (const Getter getter : {aclGetViewShape, aclGetStorageShape, aclGetViewStrides}) {
    EXPECT_EQ(getter(nullptr, &values, &count), kNullPointer);
    EXPECT_EQ(getter(tensor, nullptr, &count), kNullPointer);
    EXPECT_EQ(getter(tensor, &values, nullptr), kNullPointer);
    EXPECT_EQ(values, nullptr);
  }
  EXPECT_EQ(aclGetViewOffset(nullptr, &offset), kNullPointer);
  EXPECT_EQ(aclGetViewOffset(tensor, nullptr), kNullPointer);
  EXPECT_EQ(aclGetFormat(nullptr, &format), kNullPointer);
  EXPECT_EQ(aclGetFormat(tensor, nullptr), kNullPointer);
  EXPECT_EQ(aclGetDataType(nullptr, &dtype), kNullPointer);
  EXPECT_EQ(aclGetDataType(tensor, nullptr), kNullPointer);
  EXPECT_EQ(aclGetRawTensorAddr(nullptr, &address), kNullPointer);
  EXPECT_EQ(aclGetRawTensorAddr(tensor, nullptr), kNullPointer);
  EXPECT_EQ(aclSetRawTensorAddr(nullptr, &offset), kNullPointer);
  EXPECT_EQ(message(), "AclNN_Parameter_Error(EZ1001): tensor is null");
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
}

TEST(AclnnArrays, HoldCopies) {
  int64_t integers[] = {1, 2, 3};
  float floats[] = {1, 2};
  bool booleans[] = {true, false, true, true};
  aclIntArray* i = aclCreateIntArray(integers, 3);
  aclFloatArray* f = aclCreateFloatArray(floats, 2);
  aclBoolArray* b = aclCreateBoolArray(booleans, 4);
  uint64_t size = 0;
  EXPECT_EQ(aclGetIntArraySize(i, &size), 0);
  EXPECT_EQ(size, 3u);
  EXPECT_EQ(aclGetFloatArraySize(f, &size), 0);
  EXPECT_EQ(size, 2u);
  EXPECT_EQ(aclGetBoolArraySize(b, &size), 0);
  EXPECT_EQ(size, 4u);
  EXPECT_EQ(aclGetIntArraySize(nullptr, &size), kNullPointer);
  EXPECT_EQ(aclGetIntArraySize(i, nullptr), kNullPointer);
  EXPECT_EQ(aclGetFloatArraySize(nullptr, &size), kNullPointer);
  EXPECT_EQ(aclGetFloatArraySize(f, nullptr), kNullPointer);
  EXPECT_EQ(aclGetBoolArraySize(nullptr, &size), kNullPointer);
  EXPECT_EQ(aclGetBoolArraySize(b, nullptr), kNullPointer);
  EXPECT_EQ(aclDestroyIntArray(i), 0);
  EXPECT_EQ(aclDestroyFloatArray(f), 0);
  EXPECT_EQ(aclDestroyBoolArray(b), 0);
}

TEST(AclnnArrays, NullOrNothingIsEmpty) {
  const int64_t integer = 1;
  uint64_t size = 9;
  for (aclIntArray* array : {aclCreateIntArray(nullptr, 5), aclCreateIntArray(&integer, 0)}) {
    ASSERT_NE(array, nullptr);
    EXPECT_EQ(aclGetIntArraySize(array, &size), 0);
    EXPECT_EQ(size, 0u);
    EXPECT_EQ(aclDestroyIntArray(array), 0);
  }
  aclFloatArray* floats = aclCreateFloatArray(nullptr, 3);
  aclBoolArray* booleans = aclCreateBoolArray(nullptr, 3);
  EXPECT_EQ(aclGetFloatArraySize(floats, &size), 0);
  EXPECT_EQ(size, 0u);
  EXPECT_EQ(aclGetBoolArraySize(booleans, &size), 0);
  EXPECT_EQ(size, 0u);
  EXPECT_EQ(aclDestroyFloatArray(floats), 0);
  EXPECT_EQ(aclDestroyBoolArray(booleans), 0);
}

TEST(AclnnScalar, NeedsAValueWithASize) {
  double value = 3;
  EXPECT_EQ(aclCreateScalar(nullptr, ACL_FLOAT), nullptr);
  EXPECT_EQ(aclCreateScalar(&value, ACL_DT_UNDEFINED), nullptr);
  aclScalar* scalar = aclCreateScalar(&value, ACL_DOUBLE);
  EXPECT_NE(scalar, nullptr);
  EXPECT_EQ(aclDestroyScalar(scalar), 0);
}

TEST(AclnnLists, OwnTheirMembers) {
  float value = 1;
  const aclTensor* const tensors[] = {make({2}), make({3})};
  const aclScalar* const scalars[] = {aclCreateScalar(&value, ACL_FLOAT)};
  aclTensorList* tensor_list = aclCreateTensorList(tensors, 2);
  aclScalarList* scalar_list = aclCreateScalarList(scalars, 1);
  uint64_t size = 0;
  EXPECT_EQ(aclGetTensorListSize(tensor_list, &size), 0);
  EXPECT_EQ(size, 2u);
  EXPECT_EQ(aclGetScalarListSize(scalar_list, &size), 0);
  EXPECT_EQ(size, 1u);
  EXPECT_EQ(aclGetTensorListSize(nullptr, &size), kNullPointer);
  EXPECT_EQ(aclGetTensorListSize(tensor_list, nullptr), kNullPointer);
  EXPECT_EQ(aclGetScalarListSize(nullptr, &size), kNullPointer);
  EXPECT_EQ(aclGetScalarListSize(scalar_list, nullptr), kNullPointer);
  EXPECT_EQ(aclDestroyTensorList(tensor_list), 0);
  EXPECT_EQ(aclDestroyScalarList(scalar_list), 0);
  EXPECT_EQ(aclDestroyTensor(tensors[0]), kNoObject);  // went with the list
  EXPECT_EQ(aclDestroyTensor(tensors[1]), kNoObject);
  EXPECT_EQ(aclDestroyScalar(scalars[0]), kNoObject);
}

TEST(AclnnLists, EmptyAndStrange) {
  uint64_t size = 9;
  aclTensorList* list = aclCreateTensorList(nullptr, 0);
  EXPECT_EQ(aclGetTensorListSize(list, &size), 0);
  EXPECT_EQ(size, 0u);
  EXPECT_EQ(aclDestroyTensorList(list), 0);
  const aclTensor* const members[] = {stranger<aclTensor>()};
  EXPECT_EQ(aclCreateTensorList(members, 1), nullptr);
}

TEST(AclnnObjects, DestroyingNullIsSuccess) {
  EXPECT_EQ(aclDestroyTensor(nullptr), 0);
  EXPECT_EQ(aclDestroyScalar(nullptr), 0);
  EXPECT_EQ(aclDestroyIntArray(nullptr), 0);
  EXPECT_EQ(aclDestroyFloatArray(nullptr), 0);
  EXPECT_EQ(aclDestroyBoolArray(nullptr), 0);
  EXPECT_EQ(aclDestroyTensorList(nullptr), 0);
  EXPECT_EQ(aclDestroyScalarList(nullptr), 0);
}

// An address that nothing lives at is refused without being read.
TEST(AclnnObjects, StrangersAreNotRead) {
  int64_t offset = 0;
  uint64_t size = 0;
  EXPECT_EQ(aclDestroyTensor(stranger<aclTensor>()), kNoObject);
  EXPECT_EQ(aclDestroyScalar(stranger<aclScalar>()), kNoObject);
  EXPECT_EQ(aclDestroyIntArray(stranger<aclIntArray>()), kNoObject);
  EXPECT_EQ(aclDestroyTensorList(stranger<aclTensorList>()), kNoObject);
  EXPECT_EQ(aclGetViewOffset(stranger<aclTensor>(), &offset), kNoObject);
  EXPECT_EQ(aclGetIntArraySize(stranger<aclIntArray>(), &size), kNoObject);
  EXPECT_EQ(aclSetRawTensorAddr(stranger<aclTensor>(), nullptr), kNoObject);
  EXPECT_EQ(message().rfind("AclNN_Inner_Error(EZ9999): tensor", 0), 0u) << message();
  aclTensor* tensor = make({2});  // one kind does not pass for another
  EXPECT_EQ(aclDestroyIntArray(reinterpret_cast<aclIntArray*>(tensor)), kNoObject);
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
  EXPECT_EQ(aclDestroyTensor(tensor), kNoObject);
}

TEST(AclnnObjects, InitAndFinalize) {
  EXPECT_EQ(aclnnInit(nullptr), 0);
  EXPECT_EQ(aclnnInit("nowhere.json"), 0);
  EXPECT_EQ(aclnnFinalize(), 0);
  EXPECT_EQ(OK, 0);
}

TEST(AclnnObjects, NothingIsDumped) {
  aclTensor* tensors[] = {make({2}), nullptr};
  EXPECT_EQ(aclDumpOpTensors("Op", "op", tensors, 1, 0, nullptr), 0);
  EXPECT_EQ(aclDumpOpTensors("Op", "op", tensors, 1, 1, nullptr), kNullPointer);
  EXPECT_EQ(aclDumpOpTensors(nullptr, "op", tensors, 1, 0, nullptr), kNullPointer);
  EXPECT_EQ(aclDumpOpTensors("Op", nullptr, tensors, 1, 0, nullptr), kNullPointer);
  EXPECT_EQ(aclDumpOpTensors("Op", "op", nullptr, 1, 0, nullptr), kNullPointer);
  EXPECT_EQ(aclDestroyTensor(tensors[0]), 0);
}

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

TEST(AclnnObjects, OutOfMemory) {
  const int64_t value = 1;
  const Dims dims = {2};
  for (int64_t limit = 0; limit < 3; ++limit) {
    allocations_left = limit;
    aclTensor* const tensor = make(dims);
    allocations_left = limit < 2 ? limit : 0;
    aclIntArray* const array = aclCreateIntArray(&value, 1);
    allocations_left = -1;
    EXPECT_EQ(tensor, nullptr);
    EXPECT_EQ(array, nullptr);
  }
}
#endif

int64_t resident_pages() {
  long long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return 0;
  const int fields = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? resident : 0;
}

TEST(AclnnExecutor, RoundsLeaveNothingBehind) {
  const auto rounds = [](int count) {
    for (int round = 0; round < count; ++round) {
      LayerNorm call;
      ASSERT_EQ(call.prepare(), 0);
      ASSERT_EQ(call.run(), 0);
      ASSERT_TRUE(call.right());
      ASSERT_EQ(call.prepare(), 0);
      if (round % 2 == 0) {
        EXPECT_EQ(aclSetAclOpExecutorRepeatable(call.executor), 0);
      }
      ASSERT_EQ(aclDestroyAclOpExecutor(call.executor), 0);
      const int64_t wrong = 3;
      ASSERT_EQ(aclDestroyIntArray(call.normalized_shape), 0);
      call.normalized_shape = aclCreateIntArray(&wrong, 1);
      ASSERT_EQ(call.prepare(), kInvalid);
    }
  };
  rounds(1000);
  const int64_t before = resident_pages();
  rounds(100000);
  const int64_t grown = (resident_pages() - before) * sysconf(_SC_PAGESIZE);
#if !defined(NORMGRAD_SANITIZE_ADDRESS) && \
    !defined(NORMGRAD_SANITIZE_THREAD)  // which keep freed memory
  EXPECT_LT(grown, 1 << 20);
#else
  (void)grown;
#endif
}

}  // namespace
