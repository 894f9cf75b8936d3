// infiniccl on CPUs, under mpirun with any number of ranks. The program itself knows nothing of
// MPI: it is infiniccl that loads and starts it, and ends it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "ccl_values.hpp"
#include "infiniccl/normgrad.h"

namespace {

using ccl::Bytes;

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
const int kRank = number("OMPI_COMM_WORLD_RANK", 0);
const int kRanks = number("OMPI_COMM_WORLD_SIZE", 1);

#define EXPECT_SUCCESS(call) EXPECT_EQ(call, INFINI_STATUS_SUCCESS) << normgradGetLastError()
#define ASSERT_SUCCESS(call) ASSERT_EQ(call, INFINI_STATUS_SUCCESS) << normgradGetLastError()

class Ranks : public testing::Test {
 protected:
  void SetUp() override {
    infinicclUniqueId_t id;
    ASSERT_SUCCESS(infinicclGetUniqueId(&id));
    ASSERT_SUCCESS(infinicclCommInitRank(&comm, kRanks, id, kRank));
  }
  void TearDown() override { EXPECT_SUCCESS(infinicclCommDestroy(comm)); }

  infinicclComm_t comm = nullptr;
};

std::string name_of(infiniDtype_t type, infinicclReduceOp_t op, size_t count) {
  return "type " + std::to_string(type) + ", op " + std::to_string(op) + ", count " +
         std::to_string(count);
}

TEST_F(Ranks, AllReduce) {
  for (const infiniDtype_t type : ccl::kTypes) {
    for (const infinicclReduceOp_t op : ccl::kOps) {
      for (const size_t count : {1, 3, 1000}) {
        const Bytes from = ccl::data_of(kRank, count, type);
        const Bytes expected = ccl::reduced(kRanks, count, type, op);
        Bytes to(from.size(), 0xEE);
        ASSERT_SUCCESS(infinicclAllReduce(from.data(), to.data(), count, type, op, comm, nullptr));
        EXPECT_EQ(to, expected) << name_of(type, op, count);
        to = from;
        ASSERT_SUCCESS(infinicclAllReduce(to.data(), to.data(), count, type, op, comm, nullptr));
        EXPECT_EQ(to, expected) << name_of(type, op, count) << ", in place";
      }
    }
  }
}

// The sum of these is 1 + 2^-11 + 2^-24: in float32 a tie, in float64 above it.
TEST_F(Ranks, HalvesAreRoundedOnce) {
  if (kRanks < 3) GTEST_SKIP() << "three ranks have something to round";
  const double terms[] = {1, std::ldexp(1, -11), std::ldexp(1, -24)};
  Bytes from(2, 0), to(2, 0), expected(2, 0);
  if (kRank < 3) ccl::put(from, 0, INFINI_DTYPE_F16, terms[kRank]);
  ccl::put(expected, 0, INFINI_DTYPE_F16, 1 + std::ldexp(1, -10));
  ASSERT_SUCCESS(infinicclAllReduce(from.data(), to.data(), 1, INFINI_DTYPE_F16, INFINICCL_SUM,
                                    comm, nullptr));
  EXPECT_EQ(to, expected);
}

TEST_F(Ranks, ReduceScatter) {
  const size_t each = 5, count = each * static_cast<size_t>(kRanks);
  for (const infiniDtype_t type : ccl::kTypes) {
    for (const infinicclReduceOp_t op : ccl::kOps) {
      const Bytes from = ccl::data_of(kRank, count, type);
      const Bytes all = ccl::reduced(kRanks, count, type, op);
      const size_t bytes = each * ccl::size_of(type), first = bytes * static_cast<size_t>(kRank);
      Bytes to(bytes, 0xEE);
      ASSERT_SUCCESS(infinicclReduceScatter(from.data(), to.data(), each, type, op, comm, nullptr));
      EXPECT_EQ(to, Bytes(all.begin() + first, all.begin() + first + bytes))
          << name_of(type, op, each);
    }
  }
}

// Rank i has 3 i elements: rank 0 has none.
std::vector<size_t> growing_counts() {
  std::vector<size_t> counts(static_cast<size_t>(kRanks));
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = 3 * i;
  return counts;
}

TEST_F(Ranks, ReduceScatterV) {
  const std::vector<size_t> counts = growing_counts();
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const size_t before = std::accumulate(counts.begin(), counts.begin() + kRank, size_t{0});
  for (const infiniDtype_t type : ccl::kTypes) {
    for (const infinicclReduceOp_t op : ccl::kOps) {
      const size_t width = ccl::size_of(type);
      const Bytes from = ccl::data_of(kRank, total, type);
      const Bytes all = ccl::reduced(kRanks, total, type, op);
      Bytes to(counts[kRank] * width, 0xEE);
      ASSERT_SUCCESS(infinicclReduceScatterV(total ? from.data() : nullptr,
                                             to.empty() ? nullptr : to.data(), counts.data(),
                                             kRanks, type, op, comm, nullptr));
      EXPECT_EQ(to, Bytes(all.begin() + before * width, all.begin() + before * width + to.size()))
          << name_of(type, op, counts[kRank]);
    }
  }
}

TEST_F(Ranks, AllGather) {
  for (const infiniDtype_t type : ccl::kTypes) {
    for (const size_t count : {1, 77}) {
      Bytes expected;
      for (int rank = 0; rank < kRanks; ++rank) {
        const Bytes part = ccl::data_of(rank, count, type);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const Bytes from = ccl::data_of(kRank, count, type);
      Bytes to(expected.size(), 0xEE);
      ASSERT_SUCCESS(infinicclAllGather(from.data(), to.data(), count, type, comm, nullptr));
      EXPECT_EQ(to, expected) << type;
    }
  }
}

TEST_F(Ranks, AllGatherV) {
  const std::vector<size_t> counts = growing_counts();
  for (const infiniDtype_t type : ccl::kTypes) {
    Bytes expected;
    size_t before = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const Bytes part = ccl::data_of(rank, counts[rank], type);
      if (rank == kRank) before = expected.size();
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const Bytes from = ccl::data_of(kRank, counts[kRank], type);
    Bytes to(expected.size(), 0xEE);
    ASSERT_SUCCESS(infinicclAllGatherV(from.empty() ? nullptr : from.data(),
                                       to.empty() ? nullptr : to.data(), counts.data(), kRanks,
                                       type, comm, nullptr));
    EXPECT_EQ(to, expected) << type;
    // In place.
    std::fill(to.begin(), to.end(), 0xEE);
    std::copy(from.begin(), from.end(), to.begin() + before);
    ASSERT_SUCCESS(infinicclAllGatherV(to.data() + before, to.data(), counts.data(), kRanks, type,
                                       comm, nullptr));
    EXPECT_EQ(to, expected) << type << ", in place";
  }
}

TEST_F(Ranks, Broadcast) {
  for (const infiniDtype_t type : ccl::kTypes) {
    for (int root = 0; root < kRanks; ++root) {
      const Bytes expected = ccl::data_of(root, 9, type);
      Bytes to(expected.size(), 0xEE);
      ASSERT_SUCCESS(infinicclBroadcast(kRank == root ? expected.data() : nullptr, to.data(), 9,
                                        type, root, comm, nullptr));
      EXPECT_EQ(to, expected) << type << " from " << root;
    }
  }
}

// Each rank passes its data on to the next one; a rank alone to itself.
TEST_F(Ranks, SendAndReceiveInAGroup) {
  const int next = (kRank + 1) % kRanks, previous = (kRank + kRanks - 1) % kRanks;
  for (const infiniDtype_t type : ccl::kTypes) {
    const Bytes from = ccl::data_of(kRank, 100, type);
    Bytes to(from.size(), 0xEE);
    ASSERT_SUCCESS(infinicclGroupStart(comm));
    ASSERT_SUCCESS(infinicclGroupStart(comm));
    EXPECT_SUCCESS(infinicclSend(from.data(), 100, type, next, comm, nullptr));
    ASSERT_SUCCESS(infinicclGroupEnd(comm));
    EXPECT_SUCCESS(infinicclRecv(to.data(), 100, type, previous, comm, nullptr));
    EXPECT_EQ(to, Bytes(to.size(), 0xEE)) << "before the group's end";
    ASSERT_SUCCESS(infinicclGroupEnd(comm));
    EXPECT_EQ(to, ccl::data_of(previous, 100, type)) << type;
  }
}

TEST_F(Ranks, SendAndReceiveAlone) {
  if (kRanks < 2) GTEST_SKIP() << "a rank alone needs a group";
  const Bytes data = ccl::data_of(0, 10, INFINI_DTYPE_F32);
  Bytes to(data.size(), 0xEE);
  if (kRank == 0) {
    ASSERT_SUCCESS(infinicclSend(data.data(), 10, INFINI_DTYPE_F32, kRanks - 1, comm, nullptr));
  } else if (kRank == kRanks - 1) {
    ASSERT_SUCCESS(infinicclRecv(to.data(), 10, INFINI_DTYPE_F32, 0, comm, nullptr));
    EXPECT_EQ(to, data);
  }
}

TEST_F(Ranks, NothingToMove) {
  EXPECT_SUCCESS(
      infinicclAllReduce(nullptr, nullptr, 0, INFINI_DTYPE_F32, INFINICCL_SUM, comm, nullptr));
  EXPECT_SUCCESS(infinicclAllGather(nullptr, nullptr, 0, INFINI_DTYPE_F32, comm, nullptr));
  EXPECT_SUCCESS(
      infinicclReduceScatter(nullptr, nullptr, 0, INFINI_DTYPE_F32, INFINICCL_SUM, comm, nullptr));
  EXPECT_SUCCESS(infinicclBroadcast(nullptr, nullptr, 0, INFINI_DTYPE_F32, 0, comm, nullptr));
  EXPECT_SUCCESS(infinicclSend(nullptr, 0, INFINI_DTYPE_F32, 0, comm, nullptr));
  EXPECT_SUCCESS(infinicclRecv(nullptr, 0, INFINI_DTYPE_F32, 0, comm, nullptr));
  EXPECT_SUCCESS(normgradCommWait(comm, nullptr));
}

TEST_F(Ranks, CollectivesAreRefusedInAGroup) {
  float value = 1;
  ASSERT_SUCCESS(infinicclGroupStart(comm));
  EXPECT_EQ(infinicclAllReduce(&value, &value, 1, INFINI_DTYPE_F32, INFINICCL_SUM, comm, nullptr),
            INFINI_STATUS_BAD_PARAM);
  ASSERT_SUCCESS(infinicclGroupEnd(comm));
  EXPECT_SUCCESS(
      infinicclAllReduce(&value, &value, 1, INFINI_DTYPE_F32, INFINICCL_SUM, comm, nullptr));
  EXPECT_EQ(value, static_cast<float>(kRanks));
}

TEST(Creation, RanksMustBeThoseOfMpirun) {
  infinicclUniqueId_t id;
  infinicclComm_t comm = nullptr;
  ASSERT_SUCCESS(infinicclGetUniqueId(&id));
  EXPECT_EQ(infinicclCommInitRank(&comm, kRanks + 1, id, kRank), INFINI_STATUS_BAD_PARAM);
  EXPECT_NE(std::string(normgradGetLastError()).find("expected " + std::to_string(kRanks)),
            std::string::npos)
      << normgradGetLastError();
  if (kRanks > 1) {
    EXPECT_EQ(infinicclCommInitRank(&comm, kRanks, id, (kRank + 1) % kRanks),
              INFINI_STATUS_BAD_PARAM);
  }
  EXPECT_EQ(comm, nullptr);
}

// A process alone: no other is asked, whatever rank of the job it is.
TEST(Creation, OneRank) {
  infinicclUniqueId_t id;
  infinicclComm_t by_rank = nullptr, by_list = nullptr;
  ASSERT_SUCCESS(infinicclGetUniqueId(&id));
  ASSERT_SUCCESS(infinicclCommInitRank(&by_rank, 1, id, 0));
  ASSERT_SUCCESS(infinicclCommInitAll(INFINI_DEVICE_CPU, &by_list, 1, nullptr));
  for (const infinicclComm_t comm : {by_rank, by_list}) {
    float from = 3, to = 0;
    EXPECT_SUCCESS(
        infinicclAllReduce(&from, &to, 1, INFINI_DTYPE_F32, INFINICCL_SUM, comm, nullptr));
    EXPECT_EQ(to, 3);
    EXPECT_SUCCESS(infinicclCommDestroy(comm));
  }
}

// Two communicators of the same ranks do not mix.
TEST_F(Ranks, Several) {
  infinicclUniqueId_t id;
  infinicclComm_t other = nullptr;
  ASSERT_SUCCESS(infinicclGetUniqueId(&id));
  ASSERT_SUCCESS(infinicclCommInitRank(&other, kRanks, id, kRank));
  int32_t one = 1, two = 2;
  EXPECT_SUCCESS(infinicclAllReduce(&one, &one, 1, INFINI_DTYPE_I32, INFINICCL_SUM, comm, nullptr));
  EXPECT_SUCCESS(
      infinicclAllReduce(&two, &two, 1, INFINI_DTYPE_I32, INFINICCL_SUM, other, nullptr));
  EXPECT_EQ(one, kRanks);
  EXPECT_EQ(two, 2 * kRanks);
  EXPECT_SUCCESS(infinicclCommDestroy(other));
}

}  // namespace

// Rank 0 speaks; the others say what fails.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (kRank != 0) testing::GTEST_FLAG(brief) = true;
  return RUN_ALL_TESTS();
}
