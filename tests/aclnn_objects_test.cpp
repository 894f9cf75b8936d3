// aclnn's objects: how they are made, asked, changed and ended.
#include "aclnn_objects.hpp"

#include <memory>

#include "failing_new.hpp"

namespace acl_test {
namespace {

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

#if !defined(NORMGRAD_SANITIZE_THREAD)
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

}  // namespace
}  // namespace acl_test
