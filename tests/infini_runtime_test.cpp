// libinfinirt on the CPU, and on a GPU that is not there: devices, streams, events and memory.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "infiniop.h"
#include "infiniop/normgrad.h"
#include "infinirt.h"
#include "normgrad/cuda.hpp"

namespace {

// Device selections live and die with their thread.
void on_new_thread(const std::function<void()>& body) { std::thread(body).join(); }

bool last_error_says(const std::string& text) {
  return std::string(normgradGetLastError()).find(text) != std::string::npos;
}

// Some machines have GPUs, none this many.
constexpr int kNoDevice = 1000;
int gpus() { return normgrad::cuda::device_count(); }
infiniStatus_t refusal_of(infiniDevice_t device) {
  return device == INFINI_DEVICE_NVIDIA && gpus() > 0 ? INFINI_STATUS_DEVICE_NOT_FOUND
                                                      : INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED;
}

TEST(InfiniRuntime, EveryThreadStartsOnCpu0) {
  ASSERT_EQ(infinirtInit(), INFINI_STATUS_SUCCESS);
  ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 7), INFINI_STATUS_SUCCESS);  // any id
  on_new_thread([] {
    infiniDevice_t device = INFINI_DEVICE_NVIDIA;
    int id = -1;
    EXPECT_EQ(infinirtGetDevice(&device, &id), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(device, INFINI_DEVICE_CPU);
    EXPECT_EQ(id, 0);
  });
  int id = -1;
  EXPECT_EQ(infinirtGetDevice(nullptr, &id), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(id, 7);
  EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  infiniDevice_t device = INFINI_DEVICE_NVIDIA;
  EXPECT_EQ(infinirtGetDevice(&device, nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(device, INFINI_DEVICE_CPU);
}

TEST(InfiniRuntime, DeviceCounts) {
  for (int type = 0; type < INFINI_DEVICE_TYPE_COUNT; ++type) {
    int count = -1;
    EXPECT_EQ(infinirtGetDeviceCount(static_cast<infiniDevice_t>(type), &count),
              INFINI_STATUS_SUCCESS);
    EXPECT_EQ(count, type == INFINI_DEVICE_CPU ? 1 : type == INFINI_DEVICE_NVIDIA ? gpus() : 0);
  }
  int count = -1;
  EXPECT_EQ(infinirtGetDeviceCount(INFINI_DEVICE_TYPE_COUNT, &count),
            INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);

  std::vector<int> counts(INFINI_DEVICE_TYPE_COUNT, -1), expected(INFINI_DEVICE_TYPE_COUNT, 0);
  expected[INFINI_DEVICE_CPU] = 1;
  expected[INFINI_DEVICE_NVIDIA] = gpus();
  EXPECT_EQ(infinirtGetAllDeviceCount(counts.data()), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(counts, expected);

  // Programs built when there were nine device types have room for nine; the parentheses reach the
  // function behind the macro.
  std::vector<int> old(INFINI_DEVICE_TYPE_COUNT, -1);
  EXPECT_EQ((infinirtGetAllDeviceCount)(old.data()), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(old, (std::vector<int>{1, gpus(), 0, 0, 0, 0, 0, 0, 0, -1, -1}));
}

TEST(InfiniRuntime, RefusedDeviceStaysSelected) {
  for (int type = 1; type <= INFINI_DEVICE_TYPE_COUNT; ++type) {
    on_new_thread([type] {
      const auto wanted = static_cast<infiniDevice_t>(type);
      EXPECT_EQ(infinirtSetDevice(wanted, kNoDevice), refusal_of(wanted));
      EXPECT_TRUE(last_error_says("infinirtSetDevice"));
      infiniDevice_t device = INFINI_DEVICE_CPU;
      int id = -1;
      EXPECT_EQ(infinirtGetDevice(&device, &id), INFINI_STATUS_SUCCESS);
      EXPECT_EQ(device, wanted);
      EXPECT_EQ(id, kNoDevice);

      infiniopHandle_t handle = reinterpret_cast<infiniopHandle_t>(&device);
      EXPECT_EQ(infiniopCreateHandle(&handle), refusal_of(wanted));
      EXPECT_EQ(handle, nullptr);
      EXPECT_TRUE(last_error_says("handle"));

      EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
      EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_SUCCESS);
      EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
    });
  }
}

// Every function that acts on the current device, with arguments that are right.
std::map<std::string, std::function<infiniStatus_t()>> device_calls() {
  static void* pointer;
  static char bytes[8];
  static infinirtEventStatus_t status;
  static float ms;
  return {
      {"infinirtDeviceSynchronize", [] { return infinirtDeviceSynchronize(); }},
      {"infinirtStreamCreate", [] { return infinirtStreamCreate(&pointer); }},
      {"infinirtStreamDestroy", [] { return infinirtStreamDestroy(nullptr); }},
      {"infinirtStreamSynchronize", [] { return infinirtStreamSynchronize(nullptr); }},
      {"infinirtStreamWaitEvent", [] { return infinirtStreamWaitEvent(nullptr, bytes); }},
      {"infinirtEventCreate", [] { return infinirtEventCreate(&pointer); }},
      {"infinirtEventCreateWithFlags", [] { return infinirtEventCreateWithFlags(&pointer, 0); }},
      {"infinirtEventRecord", [] { return infinirtEventRecord(bytes, nullptr); }},
      {"infinirtEventQuery", [] { return infinirtEventQuery(bytes, &status); }},
      {"infinirtEventSynchronize", [] { return infinirtEventSynchronize(bytes); }},
      {"infinirtEventDestroy", [] { return infinirtEventDestroy(bytes); }},
      {"infinirtEventElapsedTime", [] { return infinirtEventElapsedTime(&ms, bytes, bytes); }},
      {"infinirtMalloc", [] { return infinirtMalloc(&pointer, 8); }},
      {"infinirtMallocHost", [] { return infinirtMallocHost(&pointer, 8); }},
      {"infinirtMallocAsync", [] { return infinirtMallocAsync(&pointer, 8, nullptr); }},
      {"infinirtFree", [] { return infinirtFree(bytes); }},
      {"infinirtFreeHost", [] { return infinirtFreeHost(bytes); }},
      {"infinirtFreeAsync", [] { return infinirtFreeAsync(bytes, nullptr); }},
      {"infinirtMemcpy", [] { return infinirtMemcpy(bytes, bytes, 8, INFINIRT_MEMCPY_H2D); }},
      {"infinirtMemcpyAsync",
       [] { return infinirtMemcpyAsync(bytes, bytes, 8, INFINIRT_MEMCPY_H2D, nullptr); }},
      {"infinirtMemset", [] { return infinirtMemset(bytes, 0, 8); }},
      {"infinirtMemsetAsync", [] { return infinirtMemsetAsync(bytes, 0, 8, nullptr); }},
      {"infinirtStreamBeginCapture",
       [] { return infinirtStreamBeginCapture(nullptr, INFINIRT_STREAM_CAPTURE_MODE_RELAXED); }},
      {"infinirtStreamEndCapture", [] { return infinirtStreamEndCapture(nullptr, &pointer); }},
      {"infinirtGraphDestroy", [] { return infinirtGraphDestroy(nullptr); }},
      {"infinirtGraphInstantiate",
       [] { return infinirtGraphInstantiate(&pointer, nullptr, nullptr, bytes, 8); }},
      {"infinirtGraphExecDestroy", [] { return infinirtGraphExecDestroy(nullptr); }},
      {"infinirtGraphLuanch", [] { return infinirtGraphLuanch(nullptr, nullptr); }},
  };
}

TEST(InfiniRuntime, NothingRunsOnADeviceThatIsNotThere) {
  on_new_thread([] {
    (void)infinirtSetDevice(INFINI_DEVICE_NVIDIA, kNoDevice);
    for (const auto& [name, call] : device_calls()) {
      EXPECT_EQ(call(), refusal_of(INFINI_DEVICE_NVIDIA)) << name;
      EXPECT_TRUE(last_error_says(name)) << normgradGetLastError();
    }
  });
}

// A build without CUDA, and a machine without a GPU.
TEST(InfiniRuntime, WithoutAGpuEverythingIsRefusedAndTheCpuGoesOn) {
  if (gpus() > 0) return;
  on_new_thread([] {
    EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
    EXPECT_TRUE(last_error_says("infinirtSetDevice: device type 1"));
    void* memory = &memory;
    EXPECT_EQ(infinirtMalloc(&memory, 8), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
    EXPECT_EQ(memory, &memory);
    infiniopHandle_t handle = nullptr;
    EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
    EXPECT_EQ(handle, nullptr);
    ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtMalloc(&memory, 8), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtFree(memory), INFINI_STATUS_SUCCESS);
  });
}

TEST(InfiniRuntime, TheCpuHasNoGraphs) {
  for (const auto& [name, call] : device_calls()) {
    if (name.find("Graph") == std::string::npos && name.find("Capture") == std::string::npos) {
      continue;
    }
    EXPECT_EQ(call(), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED) << name;
    EXPECT_TRUE(last_error_says(name)) << normgradGetLastError();
  }
}

TEST(InfiniRuntime, NullPointers) {
  char byte = 0;
  size_t bytes = 0;
  infinirtEvent_t event = nullptr;
  ASSERT_EQ(infinirtEventCreate(&event), INFINI_STATUS_SUCCESS);
  float ms = 0;
  const infiniStatus_t answers[] = {
      infinirtGetDeviceCount(INFINI_DEVICE_CPU, nullptr),
      infinirtGetAllDeviceCount(nullptr),
      infinirtGetDevice(nullptr, nullptr),
      infinirtStreamCreate(nullptr),
      infinirtStreamWaitEvent(nullptr, nullptr),
      infinirtEventCreate(nullptr),
      infinirtEventCreateWithFlags(nullptr, 0),
      infinirtEventRecord(nullptr, nullptr),
      infinirtEventQuery(nullptr, nullptr),
      infinirtEventQuery(event, nullptr),
      infinirtEventSynchronize(nullptr),
      infinirtEventElapsedTime(nullptr, event, event),
      infinirtEventElapsedTime(&ms, nullptr, event),
      infinirtEventElapsedTime(&ms, event, nullptr),
      infinirtMalloc(nullptr, 8),
      infinirtMallocHost(nullptr, 8),
      infinirtMallocAsync(nullptr, 8, nullptr),
      infinirtMemcpy(nullptr, &byte, 1, INFINIRT_MEMCPY_H2H),
      infinirtMemcpy(&byte, nullptr, 1, INFINIRT_MEMCPY_H2H),
      infinirtMemset(nullptr, 0, 1),
      infinirtGetMemInfo(INFINI_DEVICE_CPU, 0, nullptr, &bytes),
      infinirtGetMemInfo(INFINI_DEVICE_CPU, 0, &bytes, nullptr),
      infinirtGetDeviceResourceSnapshot(INFINI_DEVICE_CPU, 0, nullptr),
      infiniopCreateHandle(nullptr),
      infiniopCreateTensorDescriptor(nullptr, 0, nullptr, nullptr, INFINI_DTYPE_F32),
  };
  for (size_t i = 0; i < std::size(answers); ++i) {
    EXPECT_EQ(answers[i], INFINI_STATUS_NULL_POINTER) << "answer " << i;
  }
  EXPECT_EQ(infinirtEventDestroy(event), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventDestroy(nullptr), INFINI_STATUS_SUCCESS);
}

TEST(InfiniRuntime, EventsMeasureTime) {
  infinirtStream_t stream = &stream;
  ASSERT_EQ(infinirtStreamCreate(&stream), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(stream, nullptr);
  infinirtEvent_t start = nullptr, end = nullptr;
  ASSERT_EQ(infinirtEventCreate(&start), INFINI_STATUS_SUCCESS);
  ASSERT_EQ(infinirtEventCreateWithFlags(&end, INFINIRT_EVENT_BLOCKING_SYNC),
            INFINI_STATUS_SUCCESS);
  float ms = -1;
  ASSERT_EQ(infinirtEventRecord(start, stream), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, start, end), INFINI_STATUS_BAD_PARAM);
  EXPECT_TRUE(last_error_says("end"));
  EXPECT_EQ(infinirtEventElapsedTime(&ms, end, start), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(ms, -1);

  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::duration<float, std::milli>;
  const auto outside = Clock::now();
  ASSERT_EQ(infinirtEventRecord(start, stream), INFINI_STATUS_SUCCESS);
  const auto inside = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Milliseconds least = Clock::now() - inside;
  ASSERT_EQ(infinirtEventRecord(end, stream), INFINI_STATUS_SUCCESS);
  const Milliseconds most = Clock::now() - outside;
  EXPECT_EQ(infinirtEventSynchronize(end), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtStreamWaitEvent(stream, end), INFINI_STATUS_SUCCESS);
  infinirtEventStatus_t status = INFINIRT_EVENT_NOT_READY;
  EXPECT_EQ(infinirtEventQuery(end, &status), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(status, INFINIRT_EVENT_COMPLETE);
  EXPECT_EQ(infinirtEventElapsedTime(&ms, start, end), INFINI_STATUS_SUCCESS);
  EXPECT_GE(ms, least.count() - 0.01f);
  EXPECT_LE(ms, most.count() + 0.01f);
  float back = 0;
  EXPECT_EQ(infinirtEventElapsedTime(&back, end, start), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(back, -ms);

  EXPECT_EQ(infinirtEventDestroy(start), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtEventDestroy(end), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtStreamSynchronize(stream), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtStreamDestroy(stream), INFINI_STATUS_SUCCESS);
}

TEST(InfiniRuntime, Memory) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}}) {
    void* all[3] = {};
    ASSERT_EQ(infinirtMalloc(&all[0], size), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtMallocHost(&all[1], size), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtMallocAsync(&all[2], size, nullptr), INFINI_STATUS_SUCCESS);
    for (void* memory : all) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
      EXPECT_EQ(infinirtMemset(memory, 0x5a, size), INFINI_STATUS_SUCCESS);
    }
    EXPECT_EQ(infinirtMemsetAsync(all[1], 1, size, nullptr), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtMemcpy(all[0], all[1], size, INFINIRT_MEMCPY_H2D), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtMemcpyAsync(all[2], all[0], size, INFINIRT_MEMCPY_D2D, nullptr),
              INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtDeviceSynchronize(), INFINI_STATUS_SUCCESS);
    const std::vector<unsigned char> ones(size, 1);
    if (size > 0) {
      EXPECT_EQ(std::memcmp(all[0], ones.data(), size), 0);
      EXPECT_EQ(std::memcmp(all[2], ones.data(), size), 0);
    }
    EXPECT_EQ(infinirtFree(all[0]), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtFreeHost(all[1]), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtFreeAsync(all[2], nullptr), INFINI_STATUS_SUCCESS);
  }
  EXPECT_EQ(infinirtFree(nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtMemcpy(nullptr, nullptr, 0, INFINIRT_MEMCPY_D2H), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinirtMemset(nullptr, 0, 0), INFINI_STATUS_SUCCESS);
#if !defined(NORMGRAD_SANITIZE_ADDRESS) && \
    !defined(NORMGRAD_SANITIZE_THREAD)  // where this is an abort
  void* memory = &memory;
  EXPECT_EQ(infinirtMalloc(&memory, SIZE_MAX / 2), INFINI_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(memory, &memory);
  EXPECT_TRUE(last_error_says("size"));
#endif
}

TEST(InfiniRuntime, MemoryInfo) {
  size_t available = 0, total = 0;
  ASSERT_EQ(infinirtGetMemInfo(INFINI_DEVICE_CPU, 0, &available, &total), INFINI_STATUS_SUCCESS);
  EXPECT_GT(available, 0u);
  EXPECT_GT(total, available);
  infinirtDeviceResourceSnapshot_t snapshot;
  std::memset(&snapshot, 0xff, sizeof(snapshot));
  ASSERT_EQ(infinirtGetDeviceResourceSnapshot(INFINI_DEVICE_CPU, 0, &snapshot),
            INFINI_STATUS_SUCCESS);
  EXPECT_EQ(snapshot.device_type, INFINI_DEVICE_CPU);
  EXPECT_EQ(snapshot.device_id, 0);
  EXPECT_EQ(snapshot.valid_fields, uint64_t{INFINIRT_RESOURCE_FIELD_MEMORY_CAPACITY});
  EXPECT_EQ(snapshot.estimated_fields, 0u);
  EXPECT_EQ(snapshot.total_bytes, total);
  EXPECT_EQ(snapshot.used_bytes, snapshot.total_bytes - snapshot.free_bytes);
  EXPECT_EQ(snapshot.reserved_bytes, 0u);
  EXPECT_EQ(snapshot.compute_utilization, 0);
  EXPECT_EQ(snapshot.communication_bytes, 0u);

  EXPECT_EQ(infinirtGetMemInfo(INFINI_DEVICE_NVIDIA, kNoDevice, &available, &total),
            refusal_of(INFINI_DEVICE_NVIDIA));
  EXPECT_EQ(infinirtGetDeviceResourceSnapshot(INFINI_DEVICE_NVIDIA, kNoDevice, &snapshot),
            refusal_of(INFINI_DEVICE_NVIDIA));
}

TEST(InfiniRuntime, LastErrorBelongsToItsThread) {
  (void)infinirtGetDevice(nullptr, nullptr);
  const std::string mine = normgradGetLastError();
  EXPECT_FALSE(mine.empty());
  on_new_thread([] {
    EXPECT_STREQ(normgradGetLastError(), "");
    (void)infinirtMalloc(nullptr, 1);
    EXPECT_TRUE(last_error_says("infinirtMalloc: p_ptr"));
  });
  EXPECT_EQ(infinirtDeviceSynchronize(), INFINI_STATUS_SUCCESS);  // success leaves it alone
  EXPECT_EQ(normgradGetLastError(), mine);
}

}  // namespace
