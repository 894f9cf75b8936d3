// libascendcl: every rule of the runtime, one thing varied at a time.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "normgrad/cuda.hpp"

namespace {

std::string last_message() {
  const char* message = aclGetRecentErrMsg();
  return message ? message : "";
}

// The code, and a message that names what was wrong.
void expect_refused(aclError got, aclError expected, const std::string& word) {
  EXPECT_EQ(got, expected);
  const std::string message = last_message();
  EXPECT_NE(message.find(word), std::string::npos) << message;
}

// aclInit and the choice of a device are remembered for the process, so these run in children of
// their own, and before all others: that is what their suites are called for.
void in_child(const std::function<bool()>& body) {
  EXPECT_EXIT(std::_Exit(body() ? 0 : 1), testing::ExitedWithCode(0), "");
}

std::string file_with(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << content;
  return path;
}

TEST(AclInitDeathTest, CountsReferences) {
  in_child([] {
    return aclInit(nullptr) == ACL_SUCCESS && aclInit(nullptr) == 100002 &&
           aclFinalize() == ACL_SUCCESS && aclFinalize() == 100037 &&
           aclInit(nullptr) == ACL_SUCCESS && aclFinalize() == ACL_SUCCESS;
  });
  in_child([] { return aclFinalize() == ACL_SUCCESS && aclFinalize() == 100037; });
  in_child([] {
    uint64_t left = 99;
    return aclFinalizeReference(&left) == 100037 && left == 99 && aclInit(nullptr) == 0 &&
           aclInit(nullptr) == 100002 && aclFinalizeReference(&left) == 0 && left == 1 &&
           aclFinalizeReference(nullptr) == 0 && aclFinalizeReference(&left) == 100037 &&
           aclFinalize() == 100037 && aclInit(nullptr) == 0;
  });
}

TEST(AclInitDeathTest, ConfigurationIsTheSameEveryTime) {
  const std::string empty = file_with("empty.json", " { }\n"),
                    other = file_with("o.json", "{\"a\":1}");
  in_child([&] { return aclInit("/nowhere/acl.json") == 100003; });
  in_child([&] { return aclInit(testing::TempDir().c_str()) == 100003; });  // a folder
  in_child([&] {
    return aclInit("") == 0 && aclFinalize() == 0 && aclInit(empty.c_str()) == 0 &&
           aclFinalize() == 0 && aclInit(other.c_str()) == 100000 && aclInit(nullptr) == 0;
  });
}

TEST(AclDevice, IsCountedAndPerThread) {
  int32_t device = 7;
  expect_refused(aclrtGetDevice(&device), 107002, "context");
  EXPECT_EQ(device, 7);
  expect_refused(aclrtSetDevice(1), 107001, "deviceId is 1");
  expect_refused(aclrtSetDevice(-1), 107001, "deviceId is -1");
  expect_refused(aclrtResetDevice(0), 107002, "not set");
  EXPECT_EQ(aclrtSetDevice(0), 0);
  EXPECT_EQ(aclrtSetDevice(0), 0);
  expect_refused(aclrtGetDevice(nullptr), 100000, "deviceId");
  EXPECT_EQ(aclrtGetDevice(&device), 0);
  EXPECT_EQ(device, 0);
  std::thread([] {
    int32_t other = 7;
    EXPECT_EQ(aclrtGetDevice(&other), 107002);
  }).join();
  EXPECT_EQ(aclrtResetDevice(0), 0);
  EXPECT_EQ(aclrtGetDevice(&device), 0);
  EXPECT_EQ(aclrtResetDevice(0), 0);
  EXPECT_EQ(aclrtGetDevice(&device), 107002);
  uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), 0);
  EXPECT_EQ(count, 1u);
  expect_refused(aclrtGetDeviceCount(nullptr), 100000, "count");
  aclrtRunMode mode = ACL_DEVICE;
  EXPECT_EQ(aclrtGetRunMode(&mode), 0);
  EXPECT_EQ(mode, ACL_HOST);
  EXPECT_EQ(aclrtSynchronizeDevice(), 0);
  EXPECT_STREQ(aclrtGetSocName(), "NormGrad-CPU");
}

// Read once per process.
TEST(AclDeviceDeathTest, IsChosenByTheEnvironment) {
  in_child([] {
    setenv("NORMGRAD_ACL_DEVICE", "cpu", 1);
    return aclrtSetDevice(0) == 0;
  });
  for (const char* name : {"cuda", "tpu"}) {
    if (std::string(name) == "cuda" && normgrad::cuda::device_count() > 0) continue;
    in_child([&] {
      setenv("NORMGRAD_ACL_DEVICE", name, 1);
      uint32_t count = 0;
      void* memory = nullptr;
      aclrtStream stream = nullptr;
      return aclrtSetDevice(0) == 207004 &&
             last_message().find("NORMGRAD_ACL_DEVICE") != std::string::npos &&
             aclrtGetDeviceCount(&count) == 207004 &&
             aclrtMalloc(&memory, 4, ACL_MEM_MALLOC_HUGE_FIRST) == 207004 &&
             aclrtCreateStream(&stream) == 207004;
    });
  }
  // Without a word it is the CPU, whatever else there is.
  in_child([] {
    unsetenv("NORMGRAD_ACL_DEVICE");
    return aclrtSetDevice(0) == 0 && std::string(aclrtGetSocName()) == "NormGrad-CPU";
  });
}

TEST(AclContext, Lives) {
  aclrtContext first = nullptr, second = nullptr, current = nullptr;
  expect_refused(aclrtCreateContext(nullptr, 0), 100000, "context");
  expect_refused(aclrtCreateContext(&first, 3), 107001, "deviceId is 3");
  ASSERT_EQ(aclrtCreateContext(&first, 0), 0);
  ASSERT_EQ(aclrtCreateContext(&second, 0), 0);
  EXPECT_EQ(aclrtGetCurrentContext(&current), 0);
  EXPECT_EQ(current, second);
  EXPECT_EQ(aclrtSetCurrentContext(first), 0);
  EXPECT_EQ(aclrtGetCurrentContext(&current), 0);
  EXPECT_EQ(current, first);
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  EXPECT_EQ(aclrtDestroyContext(first), 0);
  expect_refused(aclrtSynchronizeStream(stream), 107017, "stream");  // it went with its context
  expect_refused(aclrtGetCurrentContext(&current), 107002, "context");
  expect_refused(aclrtDestroyContext(first), 107017, "context");
  expect_refused(aclrtSetCurrentContext(first), 107017, "context");
  expect_refused(aclrtSetCurrentContext(nullptr), 100000, "context");
  EXPECT_EQ(aclrtDestroyContext(second), 0);
}

TEST(AclStream, Lives) {
  aclrtStream stream = nullptr;
  expect_refused(aclrtCreateStream(nullptr), 100000, "stream");
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  ASSERT_NE(stream, nullptr);
  aclrtStreamStatus status = ACL_STREAM_STATUS_RESERVED;
  EXPECT_EQ(aclrtStreamQuery(stream, &status), 0);
  EXPECT_EQ(status, ACL_STREAM_STATUS_COMPLETE);
  EXPECT_EQ(aclrtSynchronizeStream(stream), 0);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), 0);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, 10), 0);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, -1), 0);
  expect_refused(aclrtSynchronizeStreamWithTimeout(stream, -2), 107000, "timeout is -2");
  EXPECT_EQ(aclrtDestroyStream(stream), 0);
  expect_refused(aclrtDestroyStream(stream), 107017, "stream");
  expect_refused(aclrtDestroyStream(nullptr), 100000, "stream");
  expect_refused(aclrtSynchronizeStream(stream), 107017, "stream");
  expect_refused(aclrtStreamQuery(stream, &status), 107017, "stream");
  int something = 0;
  expect_refused(aclrtDestroyStream(&something), 107017, "stream");
  ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_FAST_LAUNCH), 0);
  EXPECT_EQ(aclrtDestroyStream(stream), 0);
}

TEST(AclEvent, TellsTime) {
  aclrtEvent start = nullptr, end = nullptr;
  expect_refused(aclrtCreateEvent(nullptr), 100000, "event");
  ASSERT_EQ(aclrtCreateEvent(&start), 0);
  ASSERT_EQ(aclrtCreateEventWithFlag(&end, ACL_EVENT_TIME_LINE), 0);
  float ms = -1;
  expect_refused(aclrtEventElapsedTime(&ms, start, end), 107006, "startEvent has not been");
  aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  EXPECT_EQ(aclrtQueryEventStatus(start, &status), 0);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
  ASSERT_EQ(aclrtRecordEvent(start, nullptr), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(aclrtRecordEvent(end, nullptr), 0);
  EXPECT_EQ(aclrtSynchronizeEvent(end), 0);
  EXPECT_EQ(aclrtStreamWaitEvent(nullptr, end), 0);
  EXPECT_EQ(aclrtQueryEventStatus(end, &status), 0);
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(ms, -1);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), 0);
  EXPECT_GE(ms, 5);
  EXPECT_LT(ms, 5000);
  const float before = ms;
  expect_refused(aclrtEventElapsedTime(&ms, end, start), 107007, "before startEvent");
  EXPECT_EQ(ms, before);
  expect_refused(aclrtEventElapsedTime(nullptr, start, end), 100000, "ms");
  expect_refused(aclrtRecordEvent(nullptr, nullptr), 100000, "event");
  EXPECT_EQ(aclrtDestroyEvent(end), 0);
  expect_refused(aclrtDestroyEvent(end), 107017, "event");
  expect_refused(aclrtRecordEvent(end, nullptr), 107017, "event");
  expect_refused(aclrtRecordEvent(start, end), 107017, "stream");
  expect_refused(aclrtEventElapsedTime(&ms, start, end), 107017, "endEvent");
  EXPECT_EQ(aclrtDestroyEvent(start), 0);
}

TEST(AclMemory, IsAlignedAndWhole) {
  for (size_t size = 1; size < 300; ++size) {
    void *device = nullptr, *host = nullptr;
    ASSERT_EQ(aclrtMalloc(&device, size, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    ASSERT_EQ(aclrtMallocHost(&host, size), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device) % 64, 0u);
    std::memset(device, 1, (size + 31) / 32 * 32);
    std::memset(host, 1, size);
    EXPECT_EQ(aclrtFree(device), 0);
    EXPECT_EQ(aclrtFreeHost(host), 0);
  }
  void* memory = &memory;
  void* const before = memory;
  expect_refused(aclrtMalloc(nullptr, 4, ACL_MEM_MALLOC_HUGE_FIRST), 100000, "devPtr");
  expect_refused(aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST), 100000, "size is 0");
  expect_refused(aclrtMalloc(&memory, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST), 207001, "no memory");
  expect_refused(aclrtMallocHost(nullptr, 4), 100000, "hostPtr");
  expect_refused(aclrtMallocHost(&memory, 0), 100000, "size is 0");
  expect_refused(aclrtFree(nullptr), 100000, "devPtr");
  expect_refused(aclrtFreeHost(nullptr), 100000, "hostPtr");
  EXPECT_EQ(memory, before);
  int something = 0;
  expect_refused(aclrtFree(&something), 107000, "devPtr");
  expect_refused(aclrtFreeHost(&something), 107000, "hostPtr");
  ASSERT_EQ(aclrtMalloc(&memory, 4, ACL_MEM_MALLOC_HUGE_FIRST), 0);
  expect_refused(aclrtFreeHost(memory), 107000, "hostPtr");
  EXPECT_EQ(aclrtFree(memory), 0);
  expect_refused(aclrtFree(memory), 107000, "free already");
  size_t free = 0, total = 0;
  for (const aclrtMemAttr attr : {ACL_DDR_MEM, ACL_HBM_MEM}) {
    EXPECT_EQ(aclrtGetMemInfo(attr, &free, &total), 0);
    EXPECT_GT(free, 0u);
    EXPECT_GE(total, free);
  }
  expect_refused(aclrtGetMemInfo(ACL_HBM_MEM, nullptr, &total), 100000, "free");
  expect_refused(aclrtGetMemInfo(ACL_HBM_MEM, &free, nullptr), 100000, "total");
}

using Bytes = std::array<char, 8>;
constexpr Bytes kFrom = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}, kTo = {};

// The copy in its two spellings.
class AclMemcpy : public testing::TestWithParam<bool> {
 protected:
  aclError copy(void* dst, size_t room, const void* src, size_t count, aclrtMemcpyKind kind) const {
    return GetParam() ? aclrtMemcpyAsync(dst, room, src, count, kind, nullptr)
                      : aclrtMemcpy(dst, room, src, count, kind);
  }
};

TEST_P(AclMemcpy, CopiesOrRefuses) {
  for (int kind = 0; kind <= 7; ++kind) {
    Bytes to = kTo;
    EXPECT_EQ(copy(to.data(), 8, kFrom.data(), 3, static_cast<aclrtMemcpyKind>(kind)), 0);
    EXPECT_EQ(to, (Bytes{'a', 'b', 'c'})) << kind;
    EXPECT_EQ(copy(to.data(), 8, kFrom.data(), 8, static_cast<aclrtMemcpyKind>(kind)), 0);
    EXPECT_EQ(to, kFrom);
  }
  Bytes to = kFrom;
  EXPECT_EQ(copy(to.data() + 1, 7, to.data(), 7, ACL_MEMCPY_DEVICE_TO_DEVICE), 0);  // overlapping
  EXPECT_EQ(to, (Bytes{'a', 'a', 'b', 'c', 'd', 'e', 'f', 'g'}));
  to = kTo;
  EXPECT_EQ(copy(nullptr, 0, nullptr, 0, static_cast<aclrtMemcpyKind>(99)), 0);  // nothing to copy
  expect_refused(copy(nullptr, 8, kFrom.data(), 8, ACL_MEMCPY_HOST_TO_DEVICE), 100000, "dst");
  expect_refused(copy(to.data(), 8, nullptr, 8, ACL_MEMCPY_HOST_TO_DEVICE), 100000, "src");
  expect_refused(copy(to.data(), 7, kFrom.data(), 8, ACL_MEMCPY_HOST_TO_DEVICE), 107000, "destMax");
  expect_refused(copy(to.data(), 8, kFrom.data(), 8, static_cast<aclrtMemcpyKind>(8)), 100000,
                 "kind is 8");
  expect_refused(copy(to.data(), 8, kFrom.data(), 8, static_cast<aclrtMemcpyKind>(-1)), 100000,
                 "kind is -1");
  EXPECT_EQ(to, kTo);
}
INSTANTIATE_TEST_SUITE_P(Both, AclMemcpy, testing::Bool());

TEST(AclMemory, AsyncLooksAtTheStream) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  Bytes to = kTo;
  EXPECT_EQ(aclrtMemcpyAsync(to.data(), 8, kFrom.data(), 8, ACL_MEMCPY_DEFAULT, stream), 0);
  EXPECT_EQ(aclrtMemsetAsync(to.data(), 8, 'z', 2, stream), 0);
  EXPECT_EQ(to[1], 'z');
  EXPECT_EQ(to[2], 'c');
  EXPECT_EQ(aclrtDestroyStream(stream), 0);
  expect_refused(aclrtMemcpyAsync(to.data(), 8, kFrom.data(), 8, ACL_MEMCPY_DEFAULT, stream),
                 107017, "stream");
  expect_refused(aclrtMemsetAsync(to.data(), 8, 0, 8, stream), 107017, "stream");
  EXPECT_EQ(to[1], 'z');
}

TEST(AclMemory, Fills) {
  Bytes to = kFrom;
  EXPECT_EQ(aclrtMemset(to.data(), 8, 'x', 2), 0);
  EXPECT_EQ(to, (Bytes{'x', 'x', 'c', 'd', 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(aclrtMemset(nullptr, 0, 1, 0), 0);
  expect_refused(aclrtMemset(nullptr, 8, 1, 8), 100000, "devPtr");
  expect_refused(aclrtMemset(to.data(), 7, 1, 8), 107000, "maxCount");
  EXPECT_EQ(to[2], 'c');
}

TEST(AclOptions, EveryLevelOfDeterminismIsMet) {
  int64_t value = 77;
  EXPECT_EQ(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), 107021);  // never set
  EXPECT_EQ(value, 77);
  for (int64_t level = 0; level <= 3; ++level) {
    EXPECT_EQ(aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, level), 0);
    EXPECT_EQ(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), 0);
    EXPECT_EQ(value, level);
  }
  expect_refused(aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 4), 107000, "value is 4");
  expect_refused(aclrtSetSysParamOpt(static_cast<aclSysParamOpt>(9), 1), 107000, "opt is 9");
  expect_refused(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, nullptr), 100000, "value");
  EXPECT_EQ(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), 0);
  EXPECT_EQ(value, 3);
  expect_refused(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1), 107002, "context");
  ASSERT_EQ(aclrtSetDevice(0), 0);
  EXPECT_EQ(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), 107021);
  EXPECT_EQ(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 2), 0);
  EXPECT_EQ(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), 0);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(aclrtResetDevice(0), 0);
}

TEST(AclError, MessageIsHandedOutOncePerThread) {
  (void)last_message();
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
  EXPECT_EQ(aclrtFree(nullptr), 100000);
  std::thread([] { EXPECT_EQ(aclGetRecentErrMsg(), nullptr); }).join();
  EXPECT_EQ(last_message().find("EE1001"), 0u);
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
}

TEST(AclHalf, SaturatesAsDocumented) {
  EXPECT_EQ(aclFloat16ToFloat(0x3C00), 1.0f);
  EXPECT_EQ(aclFloat16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(aclFloat16ToFloat(0x7C00), 65536.0f);  // Inf
  EXPECT_EQ(aclFloat16ToFloat(0xFC00), -65536.0f);
  EXPECT_EQ(aclFloat16ToFloat(0x7E00), 98304.0f);  // NaN
  EXPECT_EQ(aclFloatToFloat16(INFINITY), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(NAN), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(-INFINITY), 0xFBFF);
  EXPECT_EQ(aclFloatToFloat16(70000.0f), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(0x1p-25f), 0);  // a tie goes to even
  EXPECT_EQ(aclFloatToFloat16(0x1.8p-24f), 2);
  EXPECT_EQ(aclFloatToFloat16(1 + 0x1p-11f), 0x3C00);
  EXPECT_EQ(aclFloatToFloat16(1 + 0x3p-11f), 0x3C02);
  // Every finite half comes back; what lies in the middle of two goes to the even one.
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const auto half = static_cast<aclFloat16>(bits), next = static_cast<aclFloat16>(bits + 1);
    const float low = aclFloat16ToFloat(half), high = aclFloat16ToFloat(next);
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(aclFloatToFloat16(low), half);
    ASSERT_EQ(aclFloatToFloat16(-low), half | 0x8000);
    ASSERT_EQ(aclFloatToFloat16(middle), bits % 2 == 0 ? half : next);
    ASSERT_EQ(aclFloatToFloat16(std::nextafter(middle, low)), half);
    ASSERT_EQ(aclFloatToFloat16(std::nextafter(middle, high)), next);
  }
}

TEST(AclTypes, Sizes) {
  EXPECT_EQ(aclDataTypeSize(ACL_FLOAT), 4u);
  EXPECT_EQ(aclDataTypeSize(ACL_FLOAT16), 2u);
  EXPECT_EQ(aclDataTypeSize(ACL_BF16), 2u);
  EXPECT_EQ(aclDataTypeSize(ACL_BOOL), 1u);
  EXPECT_EQ(aclDataTypeSize(ACL_INT64), 8u);
  EXPECT_EQ(aclDataTypeSize(ACL_COMPLEX128), 16u);
  EXPECT_EQ(aclDataTypeSize(ACL_DT_UNDEFINED), 0u);
  EXPECT_EQ(aclDataTypeSize(static_cast<aclDataType>(1000)), 0u);
  int32_t version[3] = {};
  EXPECT_EQ(aclrtGetVersion(&version[0], &version[1], &version[2]), 0);
  EXPECT_EQ(version[0], 1);
  EXPECT_EQ(version[1], 17);
  EXPECT_EQ(version[2], 0);
  expect_refused(aclrtGetVersion(nullptr, &version[1], &version[2]), 100000, "majorVersion");
}

// Streams, events and memory from many threads at once.
TEST(AclThreads, ShareNothingByAccident) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 300; ++i) {
        aclrtStream stream = nullptr;
        aclrtEvent event = nullptr;
        void* memory = nullptr;
        ASSERT_EQ(aclrtSetDevice(0), 0);
        ASSERT_EQ(aclrtCreateStream(&stream), 0);
        ASSERT_EQ(aclrtCreateEvent(&event), 0);
        ASSERT_EQ(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), 0);
        ASSERT_EQ(aclrtMemcpyAsync(memory, 64, kFrom.data(), 8, ACL_MEMCPY_DEFAULT, stream), 0);
        ASSERT_EQ(aclrtRecordEvent(event, stream), 0);
        ASSERT_EQ(std::memcmp(memory, kFrom.data(), 8), 0);
        ASSERT_EQ(aclrtFree(memory), 0);
        ASSERT_EQ(aclrtDestroyEvent(event), 0);
        ASSERT_EQ(aclrtDestroyStream(stream), 0);
      }
      for (int i = 0; i < 300; ++i) ASSERT_EQ(aclrtResetDevice(0), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int32_t device = 0;
  EXPECT_EQ(aclrtGetDevice(&device), 107002);
}

}  // namespace
