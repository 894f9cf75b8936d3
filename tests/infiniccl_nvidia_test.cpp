// infiniccl on one NVIDIA GPU: every function and type, and a graph of them. Needs libnccl.so.2, by
// LD_LIBRARY_PATH if it must be.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "ccl_values.hpp"
#include "device_test.hpp"
#include "infiniccl/normgrad.h"

namespace {

using ccl::Bytes;
using normgrad::reference::DeviceMemory;

#define EXPECT_SUCCESS(call) EXPECT_EQ(call, INFINI_STATUS_SUCCESS) << normgradGetLastError()
#define ASSERT_SUCCESS(call) ASSERT_EQ(call, INFINI_STATUS_SUCCESS) << normgradGetLastError()

constexpr size_t kCount = 1000;

class InfinicclNvidia : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_SUCCESS(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0));
    infinicclUniqueId_t id;
    if (infinicclGetUniqueId(&id) == INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED) {
      GTEST_SKIP() << normgradGetLastError();
    }
    ASSERT_SUCCESS(infinicclCommInitRank(&comm, 1, id, 0));
    ASSERT_SUCCESS(infinirtStreamCreate(&stream));
  }
  void TearDown() override {
    EXPECT_SUCCESS(infinicclCommDestroy(comm));
    if (stream) {
      EXPECT_SUCCESS(infinirtStreamDestroy(stream));
    }
    EXPECT_SUCCESS(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  }

  // Every function as it moves `from` to `to` with one rank.
  struct Function {
    std::string name;
    infiniDtype_t type;
    std::function<infiniStatus_t(const void* from, void* to)> call;
  };
  std::vector<Function> functions() const {
    std::vector<Function> all;
    for (const infiniDtype_t type : ccl::kTypes) {
      const auto add = [&](const char* name, const auto& call) {
        all.push_back({name, type, call});
      };
      for (const infinicclReduceOp_t op : ccl::kOps) {
        add("AllReduce", [=, this](const void* from, void* to) {
          return infinicclAllReduce(from, to, kCount, type, op, comm, stream);
        });
        add("ReduceScatter", [=, this](const void* from, void* to) {
          return infinicclReduceScatter(from, to, kCount, type, op, comm, stream);
        });
        add("ReduceScatterV", [=, this](const void* from, void* to) {
          const size_t counts[] = {kCount};
          return infinicclReduceScatterV(from, to, counts, 1, type, op, comm, stream);
        });
      }
      add("Broadcast", [=, this](const void* from, void* to) {
        return infinicclBroadcast(from, to, kCount, type, 0, comm, stream);
      });
      add("AllGather", [=, this](const void* from, void* to) {
        return infinicclAllGather(from, to, kCount, type, comm, stream);
      });
      add("AllGatherV", [=, this](const void* from, void* to) {
        const size_t counts[] = {kCount};
        return infinicclAllGatherV(from, to, counts, 1, type, comm, stream);
      });
      add("Send and Recv", [=, this](const void* from, void* to) {
        EXPECT_SUCCESS(infinicclGroupStart(comm));
        EXPECT_SUCCESS(infinicclSend(from, kCount, type, 0, comm, stream));
        EXPECT_SUCCESS(infinicclRecv(to, kCount, type, 0, comm, stream));
        return infinicclGroupEnd(comm);
      });
    }
    return all;
  }

  static void set(const DeviceMemory& memory, const Bytes& bytes) {
    EXPECT_SUCCESS(infinirtMemcpy(memory.data(), bytes.data(), bytes.size(), INFINIRT_MEMCPY_H2D));
  }
  static Bytes get(const DeviceMemory& memory, size_t size) {
    Bytes bytes(size);
    EXPECT_SUCCESS(infinirtMemcpy(bytes.data(), memory.data(), size, INFINIRT_MEMCPY_D2H));
    return bytes;
  }

  infinicclComm_t comm = nullptr;
  infinirtStream_t stream = nullptr;
};

TEST_F(InfinicclNvidia, EveryFunctionAndType) {
  const DeviceMemory from(8 * kCount), to(8 * kCount);
  for (const Function& function : functions()) {
    const Bytes data = ccl::data_of(0, kCount, function.type);
    set(from, data);
    set(to, Bytes(data.size(), 0xEE));
    EXPECT_SUCCESS(function.call(from.data(), to.data())) << function.name;
    EXPECT_SUCCESS(normgradCommWait(comm, stream));
    EXPECT_EQ(get(to, data.size()), data) << function.name << ", type " << function.type;
  }
}

TEST_F(InfinicclNvidia, Graph) {
  const DeviceMemory from(8 * kCount), to(8 * kCount);
  for (const Function& function : functions()) {
    ASSERT_SUCCESS(function.call(from.data(), to.data()));
    ASSERT_SUCCESS(normgradCommWait(comm, stream));
    infinirtGraph_t graph = nullptr;
    infinirtGraphExec_t executable = nullptr;
    ASSERT_SUCCESS(infinirtStreamBeginCapture(stream, INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT_SUCCESS(function.call(from.data(), to.data()));
    ASSERT_SUCCESS(infinirtStreamEndCapture(stream, &graph));
    ASSERT_SUCCESS(infinirtGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
    for (int rank = 0; rank < 2; ++rank) {
      const Bytes data = ccl::data_of(rank, kCount, function.type);
      set(from, data);
      ASSERT_SUCCESS(infinirtGraphLuanch(executable, stream));
      EXPECT_SUCCESS(normgradCommWait(comm, stream));
      EXPECT_EQ(get(to, data.size()), data) << function.name << ", type " << function.type;
    }
    EXPECT_SUCCESS(infinirtGraphExecDestroy(executable));
    EXPECT_SUCCESS(infinirtGraphDestroy(graph));
  }
}

TEST_F(InfinicclNvidia, ListOfDevices) {
  infinicclComm_t all[2] = {};
  const int first[] = {0}, twice[] = {0, 0}, beyond[] = {normgrad::cuda::device_count()};
  EXPECT_EQ(infinicclCommInitAll(INFINI_DEVICE_NVIDIA, all, 2, twice), INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinicclCommInitAll(INFINI_DEVICE_NVIDIA, all, 1, beyond),
            INFINI_STATUS_DEVICE_NOT_FOUND);
  EXPECT_EQ(all[0], nullptr);
  for (const int* ids : {first, static_cast<const int*>(nullptr)}) {
    ASSERT_SUCCESS(infinicclCommInitAll(INFINI_DEVICE_NVIDIA, all, 1, ids));
    const DeviceMemory memory(4);
    const Bytes data = ccl::data_of(0, 1, INFINI_DTYPE_F32);
    set(memory, data);
    EXPECT_SUCCESS(infinicclAllReduce(memory.data(), memory.data(), 1, INFINI_DTYPE_F32,
                                      INFINICCL_AVG, all[0], nullptr));
    EXPECT_SUCCESS(normgradCommWait(all[0], nullptr));
    EXPECT_EQ(get(memory, 4), data);
    EXPECT_SUCCESS(infinicclCommDestroy(all[0]));
  }
}

// The id may come from a thread that never left the CPU; the CPU takes any id.
TEST_F(InfinicclNvidia, IdOfAThreadOnTheCpu) {
  infinicclUniqueId_t id;
  infinicclComm_t other = nullptr;
  ASSERT_SUCCESS(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  EXPECT_SUCCESS(infinicclGetUniqueId(&id));
  ASSERT_SUCCESS(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0));
  EXPECT_SUCCESS(infinicclCommInitRank(&other, 1, id, 0));
  EXPECT_SUCCESS(infinicclCommDestroy(other));
}

TEST_F(InfinicclNvidia, WrongArguments) {
  const DeviceMemory memory(64);
  void* const data = memory.data();
  EXPECT_EQ(infinicclAllReduce(data, data, 4, INFINI_DTYPE_F64, INFINICCL_SUM, comm, stream),
            INFINI_STATUS_BAD_TENSOR_DTYPE);
  EXPECT_EQ(infinicclAllReduce(nullptr, data, 4, INFINI_DTYPE_F32, INFINICCL_SUM, comm, stream),
            INFINI_STATUS_NULL_POINTER);
  EXPECT_EQ(infinicclBroadcast(data, data, 4, INFINI_DTYPE_F32, 1, comm, stream),
            INFINI_STATUS_BAD_PARAM);
  EXPECT_EQ(infinicclGroupEnd(comm), INFINI_STATUS_BAD_PARAM);
  EXPECT_SUCCESS(normgradCommWait(comm, stream));
}

}  // namespace
