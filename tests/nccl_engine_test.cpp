// The NCCL engine's protocol, on a fake NCCL and a fake CUDA: what is asked of NCCL, in what order,
// and what becomes of ranks that stall and of errors. No GPU, no data: tests/nccl_test.cpp has
// those.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "fake_nccl.hpp"
#include "normgrad/cuda.hpp"
#include "normgrad/nccl.hpp"

namespace normgrad {
namespace cuda {
namespace {

thread_local int current = 0;
int queries = 0;  // how often a stream is not complete yet; -1: always
Status answer;    // of query_stream

}  // namespace

int device_count() { return 4; }
Status set_device(int id) {
  current = id;
  return {};
}
Status get_device(int& id) {
  id = current;
  return {};
}
Status query_stream(void*, bool& complete) {
  complete = queries == 0;
  if (queries > 0) --queries;
  return answer;
}

}  // namespace cuda

namespace {

using fake_nccl::script;
using Calls = std::vector<std::string>;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kDeadline(0.05);
char memory[64];

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

void expect_broken(const Status& status, const char* words) {
  EXPECT_EQ(status.code(), Code::kCommunication);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

Status sum(Communicator& comm) {
  return comm.all_reduce(memory, memory, 4, Element::kF32, Reduction::kSum, nullptr);
}

class NcclEngine : public testing::Test {
 protected:
  void SetUp() override {
    script = {};
    cuda::current = 0;
    cuda::queries = 0;
    cuda::answer = {};
    expect_ok(nccl_communicator(3, id, 2, kDeadline, comm));
    ASSERT_TRUE(comm);
    script.calls.clear();
  }

  NcclUniqueId id = {};
  std::unique_ptr<Communicator> comm;
};

TEST_F(NcclEngine, CreationWaitsForTheOthers) {
  script.polls = 20;
  std::unique_ptr<Communicator> made;
  expect_ok(nccl_communicator(2, id, 1, Seconds(30), made));
  EXPECT_EQ(script.calls, Calls({"init 1"}));
  EXPECT_EQ(made->rank(), 1);
  EXPECT_EQ(made->size(), 2);
}

TEST_F(NcclEngine, CreationGivesUpAtTheDeadline) {
  script.polls = -1;
  std::unique_ptr<Communicator> made;
  const auto start = Clock::now();
  expect_broken(nccl_communicator(2, id, 1, Seconds(0.2), made), "0.2 s");
  EXPECT_GE(Clock::now() - start, Seconds(0.2));
  EXPECT_LT(Clock::now() - start, Seconds(2));
  EXPECT_EQ(script.calls, Calls({"init 1", "abort 1"}));
  EXPECT_FALSE(made);
}

TEST_F(NcclEngine, CreationFails) {
  std::unique_ptr<Communicator> made;
  script.at_once = 5;
  expect_broken(nccl_communicator(2, id, 1, kDeadline, made), "'an error', its details");
  script.at_once = 0;
  script.polls = 3;
  script.later = 6;
  expect_broken(nccl_communicator(2, id, 1, kDeadline, made), "'an error', its details");
  EXPECT_EQ(script.calls, Calls({"init 1", "abort 1", "init 1", "abort 1"}));
  EXPECT_FALSE(made);
}

TEST_F(NcclEngine, UniqueIdFails) {
  script.at_once = 2;
  expect_broken(nccl_unique_id(id), "an error");
}

TEST_F(NcclEngine, EndsByItsDestruction) {
  script.polls = 5;
  comm.reset();
  EXPECT_EQ(script.calls, Calls({"finalize 2", "destroy 2"}));
}

TEST_F(NcclEngine, IsAbortedIfItsDestructionStalls) {
  script.polls = -1;
  comm.reset();
  EXPECT_EQ(script.calls, Calls({"finalize 2", "abort 2"}));
}

TEST_F(NcclEngine, OperationsWaitUntilTheyAreQueued) {
  script.polls = 7;
  expect_ok(sum(*comm));
  expect_ok(comm->broadcast(memory, memory, 8, 1, nullptr));
  EXPECT_EQ(script.calls, Calls({"all_reduce 2", "broadcast 2"}));
}

TEST_F(NcclEngine, AnOperationThatStallsBreaksIt) {
  script.polls = -1;
  expect_broken(sum(*comm), "all_reduce: not done within the deadline of 0.05 s");
  const Calls calls = script.calls;
  EXPECT_EQ(calls, Calls({"all_reduce 2", "abort 2"}));
  script.polls = 0;
  for (int again = 0; again < 2; ++again) {
    expect_broken(sum(*comm), "broken: all_reduce");
    expect_broken(comm->send(memory, 8, 0, nullptr), "broken: all_reduce");
    expect_broken(comm->group_start(), "broken: all_reduce");
    expect_broken(comm->wait(nullptr), "broken: all_reduce");
  }
  EXPECT_FALSE(comm->group_end().ok());
  comm.reset();
  EXPECT_EQ(script.calls, calls) << "NCCL was asked again";
}

TEST_F(NcclEngine, AnAbortThatStallsIsLeftToItself) {
  script.polls = -1;
  script.abort_for = std::chrono::seconds(3);
  const auto start = Clock::now();
  expect_broken(sum(*comm), "not done within the deadline");
  EXPECT_LT(Clock::now() - start, Seconds(2));
  script.polls = 0;
  expect_broken(sum(*comm), "broken: all_reduce");
  std::this_thread::sleep_until(start + Seconds(4));  // it still uses the script
}

TEST_F(NcclEngine, AnErrorBreaksIt) {
  script.at_once = 1;
  expect_broken(comm->all_gather(memory, memory, 8, nullptr), "all_gather: NCCL says 'an error'");
  script.at_once = 0;
  expect_broken(sum(*comm), "broken: all_gather");
  EXPECT_EQ(script.calls, Calls({"all_gather 2", "abort 2"}));
}

TEST_F(NcclEngine, RefusedArgumentsReachNobody) {
  EXPECT_EQ(comm->all_gather(nullptr, memory, 8, nullptr).code(), Code::kNullPointer);
  EXPECT_EQ(comm->broadcast(memory, memory, 8, 3, nullptr).code(), Code::kBadArgument);
  EXPECT_EQ(comm->recv(memory, 8, -1, nullptr).code(), Code::kBadArgument);
  EXPECT_EQ(comm->group_end().code(), Code::kBadArgument);
  EXPECT_EQ(script.calls, Calls());
  expect_ok(comm->broadcast(nullptr, memory, 8, 0, nullptr));  // only root reads `from`
}

TEST_F(NcclEngine, PartsAreReducedToTheirRanks) {
  const int64_t counts[] = {2, 0, 5};
  script.polls = 3;
  expect_ok(
      comm->reduce_scatter_v(memory, memory, counts, Element::kF32, Reduction::kMax, nullptr));
  EXPECT_EQ(script.calls,
            Calls({"group_start", "2 to 0", "reduce 2", "5 to 2", "reduce 2", "group_end"}));
}

TEST_F(NcclEngine, PartsAreGatheredByMessages) {
  const size_t bytes[] = {2, 0, 5};
  expect_ok(comm->all_gather_v(memory + 32, memory, bytes, nullptr));
  EXPECT_EQ(script.calls,
            Calls({"group_start", "send 2", "recv 2", "send 2", "send 2", "recv 2", "group_end"}));
}

TEST_F(NcclEngine, GroupsNestAndEndOnce) {
  script.polls = 4;
  expect_ok(comm->group_start());
  expect_ok(comm->group_start());
  expect_ok(comm->send(memory, 8, 0, nullptr));
  expect_ok(comm->group_end());
  EXPECT_EQ(comm->wait(nullptr).code(), Code::kBadArgument);
  expect_ok(comm->recv(memory, 8, 0, nullptr));
  expect_ok(comm->group_end());
  EXPECT_EQ(script.calls,
            Calls({"group_start", "group_start", "send 2", "group_end", "recv 2", "group_end"}));
}

// One thread, two communicators: the end of the group is the end for both.
TEST_F(NcclEngine, AGroupOfSeveral) {
  std::unique_ptr<Communicator> other;
  expect_ok(nccl_communicator(2, id, 0, kDeadline, other));
  script.calls.clear();
  expect_ok(comm->group_start());
  expect_ok(sum(*comm));
  expect_ok(sum(*other));
  script.polls = -1;  // from now on; both began before
  expect_ok(comm->group_end());
  script.polls = 0;

  expect_ok(comm->group_start());
  script.polls = -1;
  expect_ok(sum(*comm));
  expect_ok(sum(*other));
  expect_broken(comm->group_end(), "group_end: not done within the deadline");
  expect_broken(sum(*comm), "broken: group_end");
  expect_broken(sum(*other), "broken: group_end");
  EXPECT_EQ(std::count(script.calls.begin(), script.calls.end(), "abort 0"), 1);
  EXPECT_EQ(std::count(script.calls.begin(), script.calls.end(), "abort 2"), 1);
}

// NCCL holds the communicator until the group's end, which comes all the same.
TEST_F(NcclEngine, AnErrorInAGroup) {
  expect_ok(comm->group_start());
  script.at_once = 5;
  script.where = "send";
  expect_broken(comm->send(memory, 8, 0, nullptr), "send: NCCL says");
  expect_broken(comm->recv(memory, 8, 0, nullptr), "broken: send");
  expect_broken(comm->group_end(), "send: NCCL says");
  EXPECT_EQ(script.calls, Calls({"group_start", "send 2", "group_end", "abort 2"}));
  EXPECT_EQ(comm->group_end().code(), Code::kBadArgument);
}

TEST_F(NcclEngine, WaitReturnsWhenTheStreamIsDone) {
  cuda::queries = 50;
  expect_ok(comm->wait(nullptr));
  EXPECT_EQ(cuda::queries, 0);
}

TEST_F(NcclEngine, WaitGivesUpAtTheDeadline) {
  cuda::queries = -1;
  const auto start = Clock::now();
  expect_broken(comm->wait(nullptr), "wait: not done within the deadline of 0.05 s");
  EXPECT_GE(Clock::now() - start, kDeadline);
  EXPECT_LT(Clock::now() - start, Seconds(2));
  EXPECT_EQ(script.calls, Calls({"abort 2"}));
}

// Long before the deadline: the network tells that a rank is gone.
TEST_F(NcclEngine, WaitHearsOfALostRank) {
  comm.reset();
  expect_ok(nccl_communicator(3, id, 2, Seconds(1000), comm));
  cuda::queries = -1;
  script.later = 6;
  expect_broken(comm->wait(nullptr), "wait: NCCL says 'an error'");
  expect_broken(sum(*comm), "broken: wait");
}

TEST_F(NcclEngine, WaitHearsOfALostDevice) {
  cuda::answer = Status(Code::kInternal, "cudaStreamQuery: an illegal address");
  expect_broken(comm->wait(nullptr), "wait: cudaStreamQuery: an illegal address");
}

TEST_F(NcclEngine, AListOfDevices) {
  std::vector<std::unique_ptr<Communicator>> all;
  const int devices[] = {3, 1};
  script.polls = 5;
  cuda::current = 2;
  expect_ok(nccl_communicators(devices, kDeadline, all));
  EXPECT_EQ(script.calls, Calls({"unique_id", "group_start", "init 0", "init 1", "group_end"}));
  EXPECT_EQ(cuda::current, 2) << "the thread's device was left changed";
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]->rank(), 1);
  EXPECT_EQ(all[1]->size(), 2);
}

TEST_F(NcclEngine, AListOfDevicesThatFails) {
  std::vector<std::unique_ptr<Communicator>> all;
  const int devices[] = {0, 1};
  script.polls = -1;
  expect_broken(nccl_communicators(devices, kDeadline, all), "not done within the deadline");
  EXPECT_EQ(std::count(script.calls.begin(), script.calls.end(), "abort 0"), 1);
  EXPECT_EQ(std::count(script.calls.begin(), script.calls.end(), "abort 1"), 1);
  script = {};
  script.at_once = 3;
  script.where = "unique_id";
  expect_broken(nccl_communicators(devices, kDeadline, all), "an error");
  EXPECT_TRUE(all.empty());
}

}  // namespace
}  // namespace normgrad
