// Handles and descriptors: how they live and die, with several threads and without memory.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "failing_new.hpp"
#include "infini_call.hpp"
#include "infinirt.h"

namespace infini_test {
namespace {

// A small call with its handle, tensor descriptors and data.
struct SmallCall {
  explicit SmallCall(Op o) : op(o) {
    EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_SUCCESS);
    for (const Tensor& tensor : small_call(op, INFINI_DTYPE_F32)) {
      tensors.push_back(make(tensor));
      size_t size = 1;
      for (size_t extent : tensor.shape) size *= extent;
      memory.emplace_back(size, 1.5f);
      memory.back()[0] = 2;
    }
    for (auto& data : memory) pointers.push_back(data.data());
  }
  ~SmallCall() {
    for (auto tensor : tensors) EXPECT_EQ(infiniopDestroyTensorDescriptor(tensor), 0);
    EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
  }
  Op op;
  infiniopHandle_t handle = nullptr;
  Tensors tensors;
  std::vector<std::vector<float>> memory;
  Pointers pointers;
};

TEST(InfiniObjects, DestroyingNullIsSuccess) {
  EXPECT_EQ(infiniopDestroyHandle(nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopDestroyTensorDescriptor(nullptr), INFINI_STATUS_SUCCESS);
  for (const Op op : kOps) EXPECT_EQ(destroy(op, nullptr), INFINI_STATUS_SUCCESS);
}

TEST(InfiniObjects, TensorDescriptorTakesAnything) {
  infiniopTensorDescriptor_t desc = nullptr;
  EXPECT_EQ(infiniopCreateTensorDescriptor(&desc, 0, nullptr, nullptr, INFINI_DTYPE_F64), 0);
  EXPECT_EQ(infiniopDestroyTensorDescriptor(desc), INFINI_STATUS_SUCCESS);
  const std::vector<size_t> shape(20, 3);
  EXPECT_EQ(infiniopCreateTensorDescriptor(&desc, 20, shape.data(), nullptr, INFINI_DTYPE_I8), 0);
  EXPECT_EQ(infiniopDestroyTensorDescriptor(desc), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopCreateTensorDescriptor(&desc, 2, nullptr, nullptr, INFINI_DTYPE_F32),
            INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(desc, nullptr);
}

// An address that nothing lives at is refused without being read: page 0 cannot be.
TEST(InfiniObjects, StrangersAreNotRead) {
  SmallCall call(Op::kRmsNorm);
  void* const stranger = reinterpret_cast<void*>(uintptr_t{16});
  const auto handle = static_cast<infiniopHandle_t>(stranger);
  const auto tensor = static_cast<infiniopTensorDescriptor_t>(stranger);
  EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infiniopDestroyTensorDescriptor(tensor), INFINI_STATUS_BAD_PARAM);
  Descriptor desc = nullptr;
  EXPECT_EQ(create(call.op, handle, &desc, call.tensors), INFINI_STATUS_BAD_PARAM);
  Tensors tensors = call.tensors;
  tensors[0] = tensor;
  EXPECT_EQ(create(call.op, call.handle, &desc, tensors), INFINI_STATUS_BAD_PARAM);
  desc = static_cast<Descriptor>(stranger);
  size_t size = 0;
  infiniDevice_t device;
  EXPECT_EQ(infiniopGetDescriptorDeviceType(desc, &device), INFINI_STATUS_BAD_PARAM);
  for (const Op op : kOps) {
    const Pointers pointers(arguments(op).size());
    EXPECT_EQ(workspace_size(op, desc, &size), INFINI_STATUS_BAD_PARAM);
    EXPECT_EQ(compute(op, desc, nullptr, 0, pointers), INFINI_STATUS_BAD_PARAM);
    EXPECT_EQ(destroy(op, desc), INFINI_STATUS_BAD_PARAM);
  }
}

TEST(InfiniObjects, DeviceOfADescriptor) {
  for (const Op op : kOps) {
    SmallCall call(op);
    Descriptor desc = nullptr;
    ASSERT_EQ(create(op, call.handle, &desc, call.tensors), INFINI_STATUS_SUCCESS);
    infiniDevice_t device = INFINI_DEVICE_NVIDIA;
    int id = -1;
    EXPECT_EQ(infiniopGetDescriptorDeviceType(desc, &device), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infiniopGetDescriptorDeviceId(desc, &id), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(device, INFINI_DEVICE_CPU);
    EXPECT_EQ(id, 0);
    EXPECT_EQ(infiniopGetDescriptorDeviceType(desc, nullptr), INFINI_STATUS_NULL_POINTER);
    EXPECT_EQ(infiniopGetDescriptorDeviceId(desc, nullptr), INFINI_STATUS_NULL_POINTER);
    EXPECT_EQ(destroy(op, desc), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infiniopGetDescriptorDeviceType(desc, &device), INFINI_STATUS_BAD_PARAM);
    EXPECT_EQ(infiniopGetDescriptorDeviceId(nullptr, &id), INFINI_STATUS_BAD_PARAM);
  }
}

// Upstream's programs destroy handle and tensor descriptors as soon as they can.
TEST(InfiniObjects, DescriptorOutlivesWhatItWasMadeFrom) {
  for (const Op op : kOps) {
    Descriptor desc = nullptr;
    {
      SmallCall call(op);
      ASSERT_EQ(create(op, call.handle, &desc, call.tensors), INFINI_STATUS_SUCCESS);
    }
    SmallCall data(op);
    size_t size = 0;
    EXPECT_EQ(workspace_size(op, desc, &size), INFINI_STATUS_SUCCESS);
    std::vector<char> workspace(size);
    EXPECT_EQ(compute(op, desc, workspace.data(), size, data.pointers), INFINI_STATUS_SUCCESS);
    EXPECT_NE(data.memory[0], SmallCall(op).memory[0]);
    EXPECT_EQ(destroy(op, desc), INFINI_STATUS_SUCCESS);
  }
}

#if !defined(NORMGRAD_SANITIZE_THREAD)
// The k-th allocation fails, for every k that there is.
TEST(InfiniObjects, RunningOutOfMemory) {
  for (const Op op : kOps) {
    SmallCall call(op);
    infiniStatus_t status = INFINI_STATUS_INTERNAL_ERROR;
    int k = 0;
    for (; status != INFINI_STATUS_SUCCESS; ++k) {
      ASSERT_LT(k, 1000);
      Descriptor desc = reinterpret_cast<Descriptor>(&call);
      allocations_left = k;
      status = create(op, call.handle, &desc, call.tensors);
      allocations_left = -1;
      if (status == INFINI_STATUS_SUCCESS) {
        EXPECT_EQ(destroy(op, desc), INFINI_STATUS_SUCCESS);
      } else {
        ASSERT_EQ(status, INFINI_STATUS_INTERNAL_ERROR) << "k = " << k;
        EXPECT_EQ(desc, nullptr);
        EXPECT_STREQ(normgradGetLastError(), "out of memory");
      }
    }
    EXPECT_GT(k, 1);
  }
  infiniopHandle_t handle = nullptr;
  infiniopTensorDescriptor_t tensor = nullptr;
  const size_t shape[] = {2, 3};
  infinirtEvent_t event = nullptr;
  allocations_left = 0;
  const infiniStatus_t answers[] = {
      infiniopCreateHandle(&handle),
      infiniopCreateTensorDescriptor(&tensor, 2, shape, nullptr, INFINI_DTYPE_F32),
      infinirtEventCreate(&event)};
  allocations_left = -1;
  for (infiniStatus_t answer : answers) EXPECT_EQ(answer, INFINI_STATUS_INTERNAL_ERROR);
}

TEST(InfiniObjects, ComputingAllocatesNothing) {
  for (const Op op : kOps) {
    SmallCall call(op);
    Descriptor desc = nullptr;
    ASSERT_EQ(create(op, call.handle, &desc, call.tensors), INFINI_STATUS_SUCCESS);
    size_t size = 0;
    ASSERT_EQ(workspace_size(op, desc, &size), INFINI_STATUS_SUCCESS);
    std::vector<char> workspace(size);
    const int64_t before = allocations;
    const infiniStatus_t status = compute(op, desc, workspace.data(), size, call.pointers);
    EXPECT_EQ(allocations, before);
    EXPECT_EQ(status, INFINI_STATUS_SUCCESS);
    EXPECT_EQ(destroy(op, desc), INFINI_STATUS_SUCCESS);
  }
}

#endif  // NORMGRAD_SANITIZE_THREAD

// Threads share one handle and one descriptor, and make and destroy others meanwhile.
TEST(InfiniObjects, ThreadsShareDescriptors) {
  constexpr int kThreads = 8, kCalls = 200;
  for (const Op op : kOps) {
    SmallCall call(op);
    Descriptor shared = nullptr;
    ASSERT_EQ(create(op, call.handle, &shared, call.tensors), INFINI_STATUS_SUCCESS);
    size_t size = 0;
    ASSERT_EQ(workspace_size(op, shared, &size), INFINI_STATUS_SUCCESS);
    SmallCall expected(op);
    std::vector<char> workspace(size);
    ASSERT_EQ(compute(op, shared, workspace.data(), size, expected.pointers), 0);

    std::atomic<int> failures = 0;
    const auto work = [&] {
      for (int i = 0; i < kCalls; ++i) {
        SmallCall own(op);
        std::vector<char> own_workspace(size);
        Descriptor desc = nullptr;
        failures += create(op, call.handle, &desc, own.tensors) != INFINI_STATUS_SUCCESS;
        failures += compute(op, i % 2 ? desc : shared, own_workspace.data(), size, own.pointers) !=
                    INFINI_STATUS_SUCCESS;
        failures += own.memory != expected.memory;
        failures += destroy(op, desc) != INFINI_STATUS_SUCCESS;
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(destroy(op, shared), INFINI_STATUS_SUCCESS);
  }
}

}  // namespace
}  // namespace infini_test
