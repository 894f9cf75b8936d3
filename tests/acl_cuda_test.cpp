// libascendcl with NORMGRAD_ACL_DEVICE=cuda: every function that reaches the device, with the
// values that it leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "device_test.hpp"

namespace {

// Before anybody asks for the device, which is once.
[[maybe_unused]] const int kChosen = setenv("NORMGRAD_ACL_DEVICE", "cuda", 1);

using Bytes = std::vector<unsigned char>;
constexpr size_t kMuch = size_t{256} << 20;

void expect_refused(aclError got, aclError expected, const std::string& word) {
  EXPECT_EQ(got, expected);
  const char* message = aclGetRecentErrMsg();
  EXPECT_NE(std::string(message ? message : "").find(word), std::string::npos) << message;
}

class AclCuda : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(aclrtSetDevice(0), 0);
    set_ = true;
  }
  void TearDown() override {
    if (!set_) return;
    EXPECT_EQ(aclrtResetDevice(0), 0);
  }

 private:
  bool set_ = false;
};

class Memory {
 public:
  explicit Memory(size_t size) : size_(size) {
    EXPECT_EQ(aclrtMalloc(&data_, size, ACL_MEM_MALLOC_HUGE_FIRST), 0);
  }
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) {
    EXPECT_EQ(aclrtMemcpy(data_, size_, bytes.data(), size_, ACL_MEMCPY_HOST_TO_DEVICE), 0);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { EXPECT_EQ(aclrtFree(data_), 0); }
  void* data() const { return data_; }
  Bytes bytes() const {
    Bytes host(size_);
    EXPECT_EQ(aclrtMemcpy(host.data(), size_, data_, size_, ACL_MEMCPY_DEVICE_TO_HOST), 0);
    return host;
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

Bytes pattern(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 31 + i / 256);
  return bytes;
}

// Some milliseconds of work; the memory ends up full of `value`.
void fill_for_long(const Memory& memory, int value, aclrtStream stream) {
  for (int i = 40; i-- > 0;) {
    ASSERT_EQ(aclrtMemsetAsync(memory.data(), kMuch, value + i, kMuch, stream), 0);
  }
}

TEST_F(AclCuda, DevicesAreTheGpus) {
  const int gpus = normgrad::cuda::device_count();
  uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), 0);
  EXPECT_EQ(static_cast<int>(count), gpus);
  EXPECT_STREQ(aclrtGetSocName(), "NormGrad-CUDA");
  expect_refused(aclrtSetDevice(gpus), 107001, "deviceId is " + std::to_string(gpus));
  expect_refused(aclrtSetDevice(-1), 107001, "deviceId is -1");
  expect_refused(aclrtResetDevice(gpus), 107001, "deviceId");
  for (int gpu = 0; gpu < gpus; ++gpu) {
    std::thread([gpu] {
      int32_t device = -1, current = -1;
      EXPECT_EQ(aclrtSetDevice(gpu), 0);
      EXPECT_EQ(aclrtGetDevice(&device), 0);
      EXPECT_EQ(device, gpu);
      device_test::expect_ok(normgrad::cuda::get_device(current));
      EXPECT_EQ(current, gpu);
      EXPECT_EQ(aclrtSynchronizeDevice(), 0);
      aclrtContext context = nullptr;
      EXPECT_EQ(aclrtCreateContext(&context, gpu), 0);
      EXPECT_EQ(aclrtGetDevice(&device), 0);
      EXPECT_EQ(device, gpu);
      EXPECT_EQ(aclrtDestroyContext(context), 0);
      EXPECT_EQ(aclrtResetDevice(gpu), 0);
    }).join();
  }
  int32_t device = -1;
  EXPECT_EQ(aclrtGetDevice(&device), 0);
  EXPECT_EQ(device, 0);
}

TEST_F(AclCuda, CopiesAndFills) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    const Bytes source = pattern(size);
    const Memory first(size), second(size);
    void* pinned = nullptr;
    ASSERT_EQ(aclrtMallocHost(&pinned, size), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % 64, 0u);
    EXPECT_EQ(aclrtMemcpy(pinned, size, source.data(), size, ACL_MEMCPY_HOST_TO_HOST), 0);
    EXPECT_EQ(std::memcmp(pinned, source.data(), size), 0);
    EXPECT_EQ(aclrtMemcpyAsync(first.data(), size, pinned, size, ACL_MEMCPY_HOST_TO_DEVICE, stream),
              0);
    EXPECT_EQ(aclrtMemcpyAsync(second.data(), size, first.data(), size, ACL_MEMCPY_DEVICE_TO_DEVICE,
                               stream),
              0);
    EXPECT_EQ(aclrtMemsetAsync(first.data(), size, 0x5a, size, stream), 0);
    EXPECT_EQ(aclrtSynchronizeStream(stream), 0);
    EXPECT_EQ(second.bytes(), source);
    EXPECT_EQ(first.bytes(), Bytes(size, 0x5a));
    EXPECT_EQ(aclrtMemset(first.data(), size, 7, size / 2), 0);
    EXPECT_EQ(aclrtSynchronizeDevice(), 0);
    Bytes half(size, 0x5a);
    std::fill_n(half.begin(), size / 2, 7);
    EXPECT_EQ(first.bytes(), half);
    expect_refused(aclrtMemcpy(first.data(), size - 1, second.data(), size, ACL_MEMCPY_DEFAULT),
                   107000, "destMax");
    expect_refused(aclrtFree(pinned), 107000, "devPtr");
    EXPECT_EQ(aclrtFreeHost(pinned), 0);
  }
  void* memory = &memory;
  void* const before = memory;
  expect_refused(aclrtMalloc(&memory, size_t{1} << 50, ACL_MEM_MALLOC_HUGE_FIRST), 207001,
                 "no memory for size 1125899906842624");
  EXPECT_EQ(memory, before);
  EXPECT_EQ(aclrtDestroyStream(stream), 0);
  expect_refused(aclrtSynchronizeStream(stream), 107017, "stream");
}

TEST_F(AclCuda, MemoryInfo) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &before, &total), 0);
  EXPECT_GT(total, size_t{1} << 30);
  const Memory memory(kMuch);
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &after, &total), 0);
  EXPECT_LE(after + kMuch, before);
}

TEST_F(AclCuda, StreamsAndEventsKeepTheirOrder) {
  aclrtStream first = nullptr, second = nullptr;
  ASSERT_EQ(aclrtCreateStream(&first), 0);
  ASSERT_EQ(aclrtCreateStreamWithConfig(&second, 0, ACL_STREAM_FAST_LAUNCH), 0);
  aclrtEvent start = nullptr, end = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&start), 0);
  ASSERT_EQ(aclrtCreateEventWithFlag(&end, ACL_EVENT_TIME_LINE), 0);
  float ms = -1;
  expect_refused(aclrtEventElapsedTime(&ms, start, end), 107006,
                 "startEvent has not been recorded");
  aclrtEventRecordedStatus recorded = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  EXPECT_EQ(aclrtQueryEventStatus(end, &recorded), 0);
  EXPECT_EQ(recorded, ACL_EVENT_RECORDED_STATUS_NOT_READY);

  const Memory source(kMuch), copy(kMuch);
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(aclrtRecordEvent(start, first), 0);
  fill_for_long(source, 3, first);
  ASSERT_EQ(aclrtRecordEvent(end, first), 0);
  ASSERT_EQ(aclrtStreamWaitEvent(second, end), 0);
  ASSERT_EQ(aclrtMemcpyAsync(copy.data(), kMuch, source.data(), kMuch, ACL_MEMCPY_DEVICE_TO_DEVICE,
                             second),
            0);
  // All of this was a moment ago.
  aclrtStreamStatus status = ACL_STREAM_STATUS_COMPLETE;
  EXPECT_EQ(aclrtStreamQuery(first, &status), 0);
  EXPECT_EQ(status, ACL_STREAM_STATUS_NOT_READY);
  EXPECT_EQ(aclrtQueryEventStatus(end, &recorded), 0);
  EXPECT_EQ(recorded, ACL_EVENT_RECORDED_STATUS_NOT_READY);
  expect_refused(aclrtSynchronizeStreamWithTimeout(first, 0), 507046, "not complete after 0 ms");
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(second, 10000), 0);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(first, -1), 0);
  EXPECT_EQ(aclrtSynchronizeEvent(end), 0);
  const std::chrono::duration<float, std::milli> wall = std::chrono::steady_clock::now() - before;
  EXPECT_EQ(aclrtStreamQuery(first, &status), 0);
  EXPECT_EQ(status, ACL_STREAM_STATUS_COMPLETE);
  EXPECT_EQ(aclrtQueryEventStatus(end, &recorded), 0);
  EXPECT_EQ(recorded, ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(copy.bytes(), Bytes(kMuch, 3));
  EXPECT_EQ(ms, -1);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), 0);
  EXPECT_GT(ms, 0.1f);  // 10 GB: no GPU writes 100 TB/s
  EXPECT_LE(ms, wall.count() + 0.01f);
  expect_refused(aclrtEventElapsedTime(&ms, end, start), 107007, "before startEvent");

  expect_refused(aclrtRecordEvent(start, end), 107017, "stream");
  EXPECT_EQ(aclrtDestroyEvent(start), 0);
  expect_refused(aclrtRecordEvent(start, nullptr), 107017, "event");
  EXPECT_EQ(aclrtDestroyEvent(end), 0);
  EXPECT_EQ(aclrtDestroyStream(first), 0);
  EXPECT_EQ(aclrtDestroyStream(second), 0);
  expect_refused(aclrtDestroyStream(first), 107017, "stream");
}

TEST_F(AclCuda, StreamsEndWithTheirContext) {
  aclrtContext context = nullptr;
  ASSERT_EQ(aclrtCreateContext(&context, 0), 0);
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  EXPECT_EQ(aclrtDestroyContext(context), 0);
  expect_refused(aclrtSynchronizeStream(stream), 107017, "stream");
  EXPECT_EQ(aclrtSynchronizeDevice(), 0);
}

}  // namespace
