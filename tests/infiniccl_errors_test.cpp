// Wrong calls of infiniccl, in one process: the code, the sentence, and nothing written.
#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "infiniccl/normgrad.h"

namespace {

constexpr infiniDtype_t kF32 = INFINI_DTYPE_F32;

void expect_refused(infiniStatus_t got, infiniStatus_t expected, const char* word) {
  EXPECT_EQ(got, expected) << normgradGetLastError();
  EXPECT_NE(std::string(normgradGetLastError()).find(word), std::string::npos)
      << "expected '" << word << "' in: " << normgradGetLastError();
}

TEST(InfinicclCreation, Arguments) {
  infinicclComm_t comms[3] = {};
  infinicclUniqueId_t id = {};
  expect_refused(infinicclCommInitAll(INFINI_DEVICE_CPU, nullptr, 1, nullptr),
                 INFINI_STATUS_NULL_POINTER, "comms is null");
  expect_refused(infinicclCommInitAll(INFINI_DEVICE_CPU, comms, 0, nullptr),
                 INFINI_STATUS_BAD_PARAM, "ndevice");
  expect_refused(infinicclCommInitAll(INFINI_DEVICE_CPU, comms, -1, nullptr),
                 INFINI_STATUS_BAD_PARAM, "ndevice");
  expect_refused(infinicclCommInitAll(INFINI_DEVICE_CPU, comms, 2, nullptr),
                 INFINI_STATUS_BAD_PARAM, "mpirun");
  expect_refused(infinicclCommInitAll(INFINI_DEVICE_ASCEND, comms, 1, nullptr),
                 INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device type 3");
  expect_refused(infinicclGetUniqueId(nullptr), INFINI_STATUS_NULL_POINTER, "unique_id is null");
  expect_refused(infinicclCommInitRank(nullptr, 1, id, 0), INFINI_STATUS_NULL_POINTER,
                 "comm is null");
  expect_refused(infinicclCommInitRank(comms, 0, id, 0), INFINI_STATUS_BAD_PARAM, "nranks");
  expect_refused(infinicclCommInitRank(comms, 2, id, 2), INFINI_STATUS_BAD_PARAM, "rank");
  expect_refused(infinicclCommInitRank(comms, 2, id, -1), INFINI_STATUS_BAD_PARAM, "rank");
  for (const infinicclComm_t comm : comms) EXPECT_EQ(comm, nullptr);
}

// Without a GPU; tests/nccl_test.cpp has the others.
TEST(InfinicclCreation, Nvidia) {
  int count = 0;
  ASSERT_EQ(infinirtGetDeviceCount(INFINI_DEVICE_NVIDIA, &count), INFINI_STATUS_SUCCESS);
  if (count > 0) GTEST_SKIP() << "there is a GPU";
  infinicclComm_t comm = nullptr;
  infinicclUniqueId_t id = {};
  expect_refused(infinicclCommInitAll(INFINI_DEVICE_NVIDIA, &comm, 1, nullptr),
                 INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "device type 1");
  EXPECT_NE(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), INFINI_STATUS_SUCCESS);
  expect_refused(infinicclGetUniqueId(&id), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                 "device type 1");
  expect_refused(infinicclCommInitRank(&comm, 1, id, 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                 "device type 1");
  ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(comm, nullptr);
}

TEST(InfinicclCreation, Deadline) {
  infinicclComm_t comm = nullptr;
  for (const char* text : {"0", "-1", "soon", "3 s", "inf", "nan", "1e999"}) {
    setenv("NORMGRAD_COMM_DEADLINE", text, 1);
    expect_refused(infinicclCommInitAll(INFINI_DEVICE_CPU, &comm, 1, nullptr),
                   INFINI_STATUS_BAD_PARAM, text);
    EXPECT_EQ(comm, nullptr);
  }
  for (const char* text : {"", "0.5", "1e3"}) {
    setenv("NORMGRAD_COMM_DEADLINE", text, 1);
    EXPECT_EQ(infinicclCommInitAll(INFINI_DEVICE_CPU, &comm, 1, nullptr), INFINI_STATUS_SUCCESS)
        << normgradGetLastError();
    EXPECT_EQ(infinicclCommDestroy(comm), INFINI_STATUS_SUCCESS);
  }
  unsetenv("NORMGRAD_COMM_DEADLINE");
}

class Infiniccl : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(infinicclCommInitAll(INFINI_DEVICE_CPU, &comm, 1, nullptr), INFINI_STATUS_SUCCESS)
        << normgradGetLastError();
  }
  void TearDown() override { EXPECT_EQ(infinicclCommDestroy(comm), INFINI_STATUS_SUCCESS); }

  // The functions with data, so that each wrong argument is tried with all that have it.
  struct Arguments {
    void* send;
    void* recv;
    size_t count = 4;
    infiniDtype_t type = kF32;
    int op = INFINICCL_SUM;
    int peer = 0;
    int nranks = 1;
    infinicclComm_t comm;
  };
  struct Function {
    const char* name;
    bool sends, receives, reduces, peer, parts;
    std::function<infiniStatus_t(const Arguments&)> call;
  };
  static std::vector<Function> functions() {
    const auto op = [](const Arguments& a) { return static_cast<infinicclReduceOp_t>(a.op); };
    return {
        {"AllReduce", true, true, true, false, false,
         [=](const Arguments& a) {
           return infinicclAllReduce(a.send, a.recv, a.count, a.type, op(a), a.comm, nullptr);
         }},
        {"Broadcast", true, true, false, true, false,
         [](const Arguments& a) {
           return infinicclBroadcast(a.send, a.recv, a.count, a.type, a.peer, a.comm, nullptr);
         }},
        {"Send", true, false, false, true, false,
         [](const Arguments& a) {
           return infinicclSend(a.send, a.count, a.type, a.peer, a.comm, nullptr);
         }},
        {"Recv", false, true, false, true, false,
         [](const Arguments& a) {
           return infinicclRecv(a.recv, a.count, a.type, a.peer, a.comm, nullptr);
         }},
        {"AllGather", true, true, false, false, false,
         [](const Arguments& a) {
           return infinicclAllGather(a.send, a.recv, a.count, a.type, a.comm, nullptr);
         }},
        {"AllGatherV", true, true, false, false, true,
         [](const Arguments& a) {
           return infinicclAllGatherV(a.send, a.recv, &a.count, a.nranks, a.type, a.comm, nullptr);
         }},
        {"ReduceScatter", true, true, true, false, false,
         [=](const Arguments& a) {
           return infinicclReduceScatter(a.send, a.recv, a.count, a.type, op(a), a.comm, nullptr);
         }},
        {"ReduceScatterV", true, true, true, false, true,
         [=](const Arguments& a) {
           return infinicclReduceScatterV(a.send, a.recv, &a.count, a.nranks, a.type, op(a), a.comm,
                                          nullptr);
         }},
    };
  }

  infinicclComm_t comm = nullptr;
};

TEST_F(Infiniccl, WrongArguments) {
  float send[4] = {1, 2, 3, 4}, recv[4] = {5, 6, 7, 8};
  for (const Function& function : functions()) {
    const Arguments right{.send = send, .recv = recv, .comm = comm};
    const auto refuse = [&](infiniStatus_t expected, const char* word, const auto& spoil) {
      SCOPED_TRACE(function.name);
      Arguments wrong = right;
      spoil(wrong);
      expect_refused(function.call(wrong), expected, word);
      expect_refused(function.call(wrong), expected, function.name);
    };
    refuse(INFINI_STATUS_NULL_POINTER, "comm is null", [](Arguments& a) { a.comm = nullptr; });
    refuse(INFINI_STATUS_BAD_PARAM, "comm",
           [&](Arguments& a) { a.comm = reinterpret_cast<infinicclComm_t>(send); });
    if (function.sends) {
      refuse(INFINI_STATUS_NULL_POINTER, "sendbuf is null", [](Arguments& a) { a.send = nullptr; });
    }
    if (function.receives) {
      refuse(INFINI_STATUS_NULL_POINTER, "recvbuf is null", [](Arguments& a) { a.recv = nullptr; });
    }
    for (const int type : {0, 1, 2, 3, 4, 7, 8, 11, 14, 15, 16, 17, 18, 20, 31}) {
      refuse(INFINI_STATUS_BAD_TENSOR_DTYPE, "datatype",
             [&](Arguments& a) { a.type = static_cast<infiniDtype_t>(type); });
    }
    for (const size_t count : {SIZE_MAX, SIZE_MAX / 4, size_t{1} << 60}) {
      refuse(INFINI_STATUS_BAD_PARAM, "count", [&](Arguments& a) { a.count = count; });
    }
    for (const int op : {5, 7}) {
      if (!function.reduces) continue;
      refuse(INFINI_STATUS_BAD_PARAM, "op", [&](Arguments& a) { a.op = op; });
    }
    for (const int other : {-1, 5, INT_MAX}) {
      if (function.peer) {
        refuse(INFINI_STATUS_BAD_PARAM, "expected 0 to 0", [&](Arguments& a) { a.peer = other; });
      }
      if (function.parts) {
        refuse(INFINI_STATUS_BAD_PARAM, "nranks", [&](Arguments& a) { a.nranks = other; });
      }
    }
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(recv[i], 5 + i);
}

TEST_F(Infiniccl, NullCounts) {
  float send = 1, recv = 2;
  expect_refused(infinicclAllGatherV(&send, &recv, nullptr, 1, kF32, comm, nullptr),
                 INFINI_STATUS_NULL_POINTER, "recv_counts is null");
  expect_refused(
      infinicclReduceScatterV(&send, &recv, nullptr, 1, kF32, INFINICCL_SUM, comm, nullptr),
      INFINI_STATUS_NULL_POINTER, "send_counts is null");
  EXPECT_EQ(recv, 2);
}

TEST_F(Infiniccl, Groups) {
  expect_refused(infinicclGroupStart(nullptr), INFINI_STATUS_NULL_POINTER, "comm is null");
  expect_refused(infinicclGroupEnd(nullptr), INFINI_STATUS_NULL_POINTER, "comm is null");
  expect_refused(infinicclGroupEnd(comm), INFINI_STATUS_BAD_PARAM, "group_start");
  expect_refused(normgradCommWait(nullptr, nullptr), INFINI_STATUS_NULL_POINTER, "comm is null");
}

TEST_F(Infiniccl, DestroyedCommunicators) {
  infinicclComm_t gone = nullptr;
  ASSERT_EQ(infinicclCommInitAll(INFINI_DEVICE_CPU, &gone, 1, nullptr), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infinicclCommDestroy(gone), INFINI_STATUS_SUCCESS);
  expect_refused(infinicclCommDestroy(gone), INFINI_STATUS_BAD_PARAM, "destroyed");
  expect_refused(infinicclGroupStart(gone), INFINI_STATUS_BAD_PARAM, "destroyed");
  EXPECT_EQ(infinicclCommDestroy(nullptr), INFINI_STATUS_SUCCESS);
}

// As InfiniCore lays it out: programs may read it.
TEST_F(Infiniccl, Layout) {
  struct {
    int32_t device_type, device_id;
    void* backend;
    int32_t rank, world_size;
  } prefix;
  std::memcpy(&prefix, comm, sizeof(prefix));
  EXPECT_EQ(prefix.device_type, INFINI_DEVICE_CPU);
  EXPECT_EQ(prefix.device_id, 0);
  EXPECT_NE(prefix.backend, nullptr);
  EXPECT_EQ(prefix.rank, 0);
  EXPECT_EQ(prefix.world_size, 1);
}

}  // namespace
