// libinfinirt on an NVIDIA GPU: every function, with the values that it leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device_test.hpp"
#include "infiniop/normgrad.h"
#include "infinirt.h"

namespace {

constexpr infiniStatus_t kOk = INFINI_STATUS_SUCCESS;
using Bytes = std::vector<unsigned char>;

void expect_refused(infiniStatus_t got, infiniStatus_t expected, const std::string& text) {
  EXPECT_EQ(got, expected) << normgradGetLastError();
  EXPECT_NE(std::string(normgradGetLastError()).find(text), std::string::npos)
      << normgradGetLastError();
}

void on_new_thread(const std::function<void()>& body) { std::thread(body).join(); }

class InfiniNvidia : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), kOk);
  }
  void TearDown() override { EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), kOk); }
};

// Memory of the current device.
class Memory {
 public:
  explicit Memory(size_t size) : size_(size) { EXPECT_EQ(infinirtMalloc(&data_, size), kOk); }
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) {
    EXPECT_EQ(infinirtMemcpy(data_, bytes.data(), size_, INFINIRT_MEMCPY_H2D), kOk);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { EXPECT_EQ(infinirtFree(data_), kOk); }
  void* data() const { return data_; }
  Bytes bytes() const {
    Bytes host(size_);
    EXPECT_EQ(infinirtMemcpy(host.data(), data_, size_, INFINIRT_MEMCPY_D2H), kOk);
    return host;
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { EXPECT_EQ(infinirtStreamCreate(&stream_), kOk); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { EXPECT_EQ(infinirtStreamDestroy(stream_), kOk); }
  operator infinirtStream_t() const { return stream_; }  // NOLINT: as the functions want it
  void wait() const { EXPECT_EQ(infinirtStreamSynchronize(stream_), kOk); }

 private:
  infinirtStream_t stream_ = nullptr;
};

Bytes pattern(size_t size, int seed = 1) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(seed + i * 31 + i / 256);
  return bytes;
}

// Keeps a stream busy for some milliseconds; the memory ends up full of `value`.
constexpr size_t kMuch = size_t{256} << 20;
void fill_for_long(const Memory& memory, int value, infinirtStream_t stream) {
  for (int i = 40; i-- > 0;) {
    ASSERT_EQ(infinirtMemsetAsync(memory.data(), value + i, kMuch, stream), kOk);
  }
}

TEST_F(InfiniNvidia, IsCountedAndSelectedPerThread) {
  const int gpus = normgrad::cuda::device_count();
  int count = -1;
  EXPECT_EQ(infinirtGetDeviceCount(INFINI_DEVICE_NVIDIA, &count), kOk);
  EXPECT_EQ(count, gpus);
  std::vector<int> counts(INFINI_DEVICE_TYPE_COUNT, -1);
  EXPECT_EQ(infinirtGetAllDeviceCount(counts.data()), kOk);
  EXPECT_EQ(counts[INFINI_DEVICE_CPU], 1);
  EXPECT_EQ(counts[INFINI_DEVICE_NVIDIA], gpus);
  on_new_thread([gpus] {
    infiniDevice_t device = INFINI_DEVICE_NVIDIA;
    int id = -1;
    EXPECT_EQ(infinirtGetDevice(&device, &id), kOk);
    EXPECT_EQ(device, INFINI_DEVICE_CPU);
    for (int gpu = 0; gpu < gpus; ++gpu) {
      EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, gpu), kOk);
      EXPECT_EQ(infinirtGetDevice(&device, &id), kOk);
      EXPECT_EQ(device, INFINI_DEVICE_NVIDIA);
      EXPECT_EQ(id, gpu);
      int current = -1;
      device_test::expect_ok(normgrad::cuda::get_device(current));
      EXPECT_EQ(current, gpu);
      EXPECT_EQ(infinirtDeviceSynchronize(), kOk);
    }
  });
  infiniDevice_t device = INFINI_DEVICE_CPU;
  EXPECT_EQ(infinirtGetDevice(&device, nullptr), kOk);
  EXPECT_EQ(device, INFINI_DEVICE_NVIDIA);
}

TEST_F(InfiniNvidia, AWrongNumberStaysSelectedAndDoesNothing) {
  const Memory memory(pattern(8));
  for (const int wrong : {-1, normgrad::cuda::device_count(), 1000}) {
    expect_refused(infinirtSetDevice(INFINI_DEVICE_NVIDIA, wrong), INFINI_STATUS_DEVICE_NOT_FOUND,
                   "infinirtSetDevice: device id");
    int id = 0;
    EXPECT_EQ(infinirtGetDevice(nullptr, &id), kOk);
    EXPECT_EQ(id, wrong);
    expect_refused(infinirtMemset(memory.data(), 0, 8), INFINI_STATUS_DEVICE_NOT_FOUND,
                   "infinirtMemset: device id");
    size_t available = 0, total = 0;
    expect_refused(infinirtGetMemInfo(INFINI_DEVICE_NVIDIA, wrong, &available, &total),
                   INFINI_STATUS_DEVICE_NOT_FOUND, "infinirtGetMemInfo");
  }
  ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), kOk);
  EXPECT_EQ(memory.bytes(), pattern(8));
}

TEST_F(InfiniNvidia, CopiesAndFills) {
  const Stream stream;
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    const Bytes source = pattern(size);
    void *first = nullptr, *second = nullptr, *pinned = nullptr;
    ASSERT_EQ(infinirtMalloc(&first, size), kOk);
    ASSERT_EQ(infinirtMallocAsync(&second, size, stream), kOk);
    ASSERT_EQ(infinirtMallocHost(&pinned, size), kOk);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
    std::memset(pinned, 0, size);  // the host reaches it
    Bytes result(size);
    EXPECT_EQ(infinirtMemcpy(pinned, source.data(), size, INFINIRT_MEMCPY_H2H), kOk);
    EXPECT_EQ(std::memcmp(pinned, source.data(), size), 0);
    EXPECT_EQ(infinirtMemcpyAsync(first, pinned, size, INFINIRT_MEMCPY_H2D, stream), kOk);
    EXPECT_EQ(infinirtMemcpyAsync(second, first, size, INFINIRT_MEMCPY_D2D, stream), kOk);
    EXPECT_EQ(infinirtMemsetAsync(first, 0x15a, size, stream), kOk);  // a byte of it counts
    EXPECT_EQ(infinirtStreamSynchronize(stream), kOk);
    EXPECT_EQ(infinirtMemcpy(result.data(), second, size, INFINIRT_MEMCPY_D2H), kOk);
    EXPECT_EQ(result, source);
    EXPECT_EQ(infinirtMemcpy(result.data(), first, size, static_cast<infinirtMemcpyKind_t>(99)),
              kOk);
    EXPECT_EQ(result, Bytes(size, 0x5a));
    EXPECT_EQ(infinirtMemset(first, 7, size / 2), kOk);
    EXPECT_EQ(infinirtDeviceSynchronize(), kOk);
    EXPECT_EQ(infinirtMemcpyAsync(pinned, first, size, INFINIRT_MEMCPY_D2H, stream), kOk);
    stream.wait();
    Bytes half(size, 0x5a);
    std::fill_n(half.begin(), size / 2, 7);
    EXPECT_EQ(std::memcmp(pinned, half.data(), size), 0);
    EXPECT_EQ(infinirtFreeAsync(second, stream), kOk);
    EXPECT_EQ(infinirtFree(first), kOk);
    EXPECT_EQ(infinirtFreeHost(pinned), kOk);
  }
}

TEST_F(InfiniNvidia, NothingIsAllocatedCopiedAndFreed) {
  void* memory = &memory;
  for (const auto& allocate :
       {std::function([&] { return infinirtMalloc(&memory, 0); }),
        std::function([&] { return infinirtMallocHost(&memory, 0); }),
        std::function([&] { return infinirtMallocAsync(&memory, 0, {}); })}) {
    memory = &memory;
    EXPECT_EQ(allocate(), kOk);
    EXPECT_EQ(memory, nullptr);
  }
  EXPECT_EQ(infinirtFree(nullptr), kOk);
  EXPECT_EQ(infinirtFreeHost(nullptr), kOk);
  EXPECT_EQ(infinirtFreeAsync(nullptr, nullptr), kOk);
  EXPECT_EQ(infinirtMemcpy(nullptr, nullptr, 0, INFINIRT_MEMCPY_D2H), kOk);
  EXPECT_EQ(infinirtMemsetAsync(nullptr, 0, 0, nullptr), kOk);
}

TEST_F(InfiniNvidia, MoreMemoryThanThereIs) {
  void* memory = &memory;
  expect_refused(infinirtMalloc(&memory, size_t{1} << 50), INFINI_STATUS_INTERNAL_ERROR,
                 "infinirtMalloc: size 1125899906842624");
  expect_refused(infinirtMallocAsync(&memory, size_t{1} << 50, nullptr),
                 INFINI_STATUS_INTERNAL_ERROR, "infinirtMallocAsync: size");
  EXPECT_EQ(memory, &memory);
  EXPECT_EQ(infinirtDeviceSynchronize(), kOk);  // the failure is not told again
}

TEST_F(InfiniNvidia, MemoryInfo) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(infinirtGetMemInfo(INFINI_DEVICE_NVIDIA, 0, &before, &total), kOk);
  EXPECT_GT(total, size_t{1} << 30);
  EXPECT_LT(before, total);
  const Memory memory(kMuch);
  ASSERT_EQ(infinirtGetMemInfo(INFINI_DEVICE_NVIDIA, 0, &after, &total), kOk);
  EXPECT_LE(after + kMuch, before);
  infinirtDeviceResourceSnapshot_t snapshot;
  std::memset(&snapshot, 0xff, sizeof(snapshot));
  ASSERT_EQ(infinirtGetDeviceResourceSnapshot(INFINI_DEVICE_NVIDIA, 0, &snapshot), kOk);
  EXPECT_EQ(snapshot.device_type, INFINI_DEVICE_NVIDIA);
  EXPECT_EQ(snapshot.device_id, 0);
  EXPECT_EQ(snapshot.valid_fields, uint64_t{INFINIRT_RESOURCE_FIELD_MEMORY_CAPACITY});
  EXPECT_EQ(snapshot.estimated_fields, 0u);
  EXPECT_EQ(snapshot.total_bytes, total);
  EXPECT_EQ(snapshot.used_bytes, total - snapshot.free_bytes);
  EXPECT_EQ(snapshot.compute_utilization, 0);
}

TEST_F(InfiniNvidia, StreamsKeepTheirOrderAndWaitForEvents) {
  const Stream first, second;
  ASSERT_NE(static_cast<infinirtStream_t>(first), nullptr);
  ASSERT_NE(static_cast<infinirtStream_t>(first), static_cast<infinirtStream_t>(second));
  const Memory source(kMuch), copy(kMuch);
  infinirtEvent_t event = nullptr;
  ASSERT_EQ(infinirtEventCreateWithFlags(
                &event, INFINIRT_EVENT_DISABLE_TIMING | INFINIRT_EVENT_BLOCKING_SYNC),
            kOk);
  fill_for_long(source, 3, first);
  ASSERT_EQ(infinirtEventRecord(event, first), kOk);
  ASSERT_EQ(infinirtStreamWaitEvent(second, event), kOk);
  ASSERT_EQ(infinirtMemcpyAsync(copy.data(), source.data(), kMuch, INFINIRT_MEMCPY_D2D, second),
            kOk);
  infinirtEventStatus_t status = INFINIRT_EVENT_COMPLETE;
  EXPECT_EQ(infinirtEventQuery(event, &status), kOk);
  EXPECT_EQ(status, INFINIRT_EVENT_NOT_READY);  // milliseconds of work, a moment ago
  second.wait();
  EXPECT_EQ(infinirtEventQuery(event, &status), kOk);
  EXPECT_EQ(status, INFINIRT_EVENT_COMPLETE);
  EXPECT_EQ(infinirtEventSynchronize(event), kOk);
  EXPECT_EQ(copy.bytes(), Bytes(kMuch, 3));
  EXPECT_EQ(infinirtEventDestroy(event), kOk);
}

TEST_F(InfiniNvidia, EventsMeasureTheDevicesTime) {
  const Stream stream;
  const Memory memory(kMuch);
  infinirtEvent_t start = nullptr, end = nullptr, timeless = nullptr;
  ASSERT_EQ(infinirtEventCreate(&start), kOk);
  ASSERT_EQ(infinirtEventCreateWithFlags(&end, INFINIRT_EVENT_BLOCKING_SYNC), kOk);
  ASSERT_EQ(infinirtEventCreateWithFlags(&timeless, INFINIRT_EVENT_DISABLE_TIMING), kOk);
  float ms = -1;
  EXPECT_NE(infinirtEventElapsedTime(&ms, start, end), kOk);  // never recorded
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(infinirtEventRecord(start, stream), kOk);
  fill_for_long(memory, 1, stream);
  ASSERT_EQ(infinirtEventRecord(end, stream), kOk);
  ASSERT_EQ(infinirtEventRecord(timeless, stream), kOk);
  ASSERT_EQ(infinirtEventSynchronize(end), kOk);
  const std::chrono::duration<float, std::milli> wall = std::chrono::steady_clock::now() - before;
  EXPECT_EQ(ms, -1);
  ASSERT_EQ(infinirtEventElapsedTime(&ms, start, end), kOk);
  EXPECT_GT(ms, 0.1f);  // 10 GB: no GPU writes 100 TB/s
  EXPECT_LE(ms, wall.count() + 0.01f);
  stream.wait();
  const float measured = ms;
  EXPECT_NE(infinirtEventElapsedTime(&ms, start, timeless), kOk);
  expect_refused(infinirtEventCreateWithFlags(&timeless, 4), INFINI_STATUS_BAD_PARAM,
                 "flags: expected 0 to 3, got 4");
  EXPECT_EQ(ms, measured);
  for (infinirtEvent_t event : {start, end, timeless}) EXPECT_EQ(infinirtEventDestroy(event), kOk);
}

TEST_F(InfiniNvidia, NullPointers) {
  infinirtEvent_t event = nullptr;
  ASSERT_EQ(infinirtEventCreate(&event), kOk);
  const Memory memory(8);
  float ms = 0;
  infinirtGraphExec_t executable = nullptr;
  const infiniStatus_t answers[] = {
      infinirtStreamCreate(nullptr),
      infinirtStreamWaitEvent(nullptr, nullptr),
      infinirtEventCreate(nullptr),
      infinirtEventRecord(nullptr, nullptr),
      infinirtEventQuery(event, nullptr),
      infinirtEventSynchronize(nullptr),
      infinirtEventElapsedTime(nullptr, event, event),
      infinirtEventElapsedTime(&ms, event, nullptr),
      infinirtMalloc(nullptr, 8),
      infinirtMallocHost(nullptr, 8),
      infinirtMallocAsync(nullptr, 8, nullptr),
      infinirtMemcpy(memory.data(), nullptr, 1, INFINIRT_MEMCPY_H2D),
      infinirtMemcpyAsync(nullptr, memory.data(), 1, INFINIRT_MEMCPY_D2H, nullptr),
      infinirtMemset(nullptr, 0, 1),
      infinirtMemsetAsync(nullptr, 0, 1, nullptr),
      infinirtGetMemInfo(INFINI_DEVICE_NVIDIA, 0, nullptr, nullptr),
      infinirtGetDeviceResourceSnapshot(INFINI_DEVICE_NVIDIA, 0, nullptr),
      infinirtGraphInstantiate(&executable, nullptr, nullptr, nullptr, 0),
      infinirtGraphLuanch(nullptr, nullptr),
  };
  for (size_t i = 0; i < std::size(answers); ++i) {
    EXPECT_EQ(answers[i], INFINI_STATUS_NULL_POINTER) << "answer " << i;
  }
  EXPECT_EQ(infinirtEventDestroy(event), kOk);
  EXPECT_EQ(infinirtEventDestroy(nullptr), kOk);
  EXPECT_EQ(infinirtStreamDestroy(nullptr), kOk);
  EXPECT_EQ(infinirtStreamSynchronize(nullptr), kOk);
  EXPECT_EQ(infinirtGraphDestroy(nullptr), kOk);
  EXPECT_EQ(infinirtGraphExecDestroy(nullptr), kOk);
}

constexpr infinirtStreamCaptureMode_t kModes[] = {INFINIRT_STREAM_CAPTURE_MODE_GLOBAL,
                                                  INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                  INFINIRT_STREAM_CAPTURE_MODE_RELAXED};

TEST_F(InfiniNvidia, GraphsReplayWhatWasCaptured) {
  for (const infinirtStreamCaptureMode_t mode : kModes) {
    SCOPED_TRACE(mode);
    const Stream stream;
    const Memory from(pattern(1000)), to(Bytes(1000, 1));
    ASSERT_EQ(infinirtStreamBeginCapture(stream, mode), kOk);
    EXPECT_EQ(infinirtMemcpyAsync(to.data(), from.data(), 1000, INFINIRT_MEMCPY_D2D, stream), kOk);
    EXPECT_EQ(infinirtMemsetAsync(from.data(), 9, 1000, stream), kOk);
    infinirtGraph_t graph = nullptr;
    ASSERT_EQ(infinirtStreamEndCapture(stream, &graph), kOk);
    ASSERT_NE(graph, nullptr);
    infinirtGraphExec_t executable = nullptr;
    infinirtGraphNode_t node = &node;
    char log[64] = "old";
    ASSERT_EQ(infinirtGraphInstantiate(&executable, graph, &node, log, sizeof(log)), kOk);
    EXPECT_EQ(node, nullptr);
    EXPECT_STREQ(log, "");
    EXPECT_EQ(infinirtGraphDestroy(graph), kOk);
    EXPECT_EQ(to.bytes(), Bytes(1000, 1));  // nothing has run yet
    ASSERT_EQ(infinirtGraphLuanch(executable, stream), kOk);
    stream.wait();
    EXPECT_EQ(to.bytes(), pattern(1000));
    EXPECT_EQ(from.bytes(), Bytes(1000, 9));
    ASSERT_EQ(infinirtGraphLuanch(executable, nullptr), kOk);
    EXPECT_EQ(infinirtDeviceSynchronize(), kOk);
    EXPECT_EQ(to.bytes(), Bytes(1000, 9));
    EXPECT_EQ(infinirtGraphExecDestroy(executable), kOk);
  }
}

// Allocating synchronizes: CUDA refuses it to whoever captures, to nobody, or to all.
TEST_F(InfiniNvidia, CaptureModesSayWhatElseMayHappen) {
  for (const infinirtStreamCaptureMode_t mode : kModes) {
    SCOPED_TRACE(mode);
    const bool relaxed = mode == INFINIRT_STREAM_CAPTURE_MODE_RELAXED;
    const Stream stream;
    ASSERT_EQ(infinirtStreamBeginCapture(stream, mode), kOk);
    void* memory = nullptr;
    const infiniStatus_t allocated = infinirtMalloc(&memory, 8);
    EXPECT_EQ(allocated == kOk, relaxed);
    infinirtGraph_t graph = nullptr;
    EXPECT_EQ(infinirtStreamEndCapture(stream, &graph) == kOk, relaxed);
    EXPECT_EQ(infinirtGraphDestroy(graph), kOk);
    EXPECT_EQ(infinirtFree(memory), kOk);
  }
  for (const infinirtStreamCaptureMode_t mode :
       {INFINIRT_STREAM_CAPTURE_MODE_GLOBAL, INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    SCOPED_TRACE(mode);
    const Stream stream;
    ASSERT_EQ(infinirtStreamBeginCapture(stream, mode), kOk);
    on_new_thread([&] {
      EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), kOk);
      void* memory = nullptr;
      EXPECT_EQ(infinirtMalloc(&memory, 8) == kOk,
                mode == INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL);
      EXPECT_EQ(infinirtFree(memory), kOk);
    });
    infinirtGraph_t graph = nullptr;
    (void)infinirtStreamEndCapture(stream, &graph);
    EXPECT_EQ(infinirtGraphDestroy(graph), kOk);
  }
  EXPECT_EQ(infinirtDeviceSynchronize(), kOk);
}

TEST_F(InfiniNvidia, CapturesThatAreRefused) {
  const Stream stream;
  infinirtGraph_t graph = &graph;
  expect_refused(infinirtStreamBeginCapture(nullptr, INFINIRT_STREAM_CAPTURE_MODE_GLOBAL),
                 INFINI_STATUS_BAD_PARAM, "got null");
  expect_refused(infinirtStreamBeginCapture(stream, static_cast<infinirtStreamCaptureMode_t>(3)),
                 INFINI_STATUS_BAD_PARAM, "mode: expected 0 to 2, got 3");
  EXPECT_NE(infinirtStreamEndCapture(stream, &graph), kOk);  // never begun
  EXPECT_EQ(graph, &graph);
  ASSERT_EQ(infinirtStreamBeginCapture(stream, INFINIRT_STREAM_CAPTURE_MODE_RELAXED), kOk);
  EXPECT_NE(infinirtStreamBeginCapture(stream, INFINIRT_STREAM_CAPTURE_MODE_RELAXED), kOk);
  EXPECT_NE(infinirtStreamSynchronize(stream), kOk);  // which spoils the capture
  EXPECT_NE(infinirtStreamEndCapture(stream, &graph), kOk);
  EXPECT_EQ(graph, &graph);
  char log[200] = "";
  infinirtGraphExec_t executable = nullptr;
  EXPECT_EQ(infinirtGraphInstantiate(&executable, nullptr, nullptr, log, sizeof(log)),
            INFINI_STATUS_NULL_POINTER);
  EXPECT_STREQ(log, normgradGetLastError());
  stream.wait();
}

}  // namespace
