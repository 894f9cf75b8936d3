// The MPI engine: values of every operation, refusals, and ranks that do different things. Runs
// under mpirun with any number of ranks.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "mpi_test.hpp"
#include "ops/float16.hpp"

namespace normgrad {
namespace {

const int64_t kCounts[] = {0, 1, 2, 5, 1000, 100001};
constexpr Element kElements[] = {Element::kF32, Element::kF16, Element::kBF16, Element::kF64,
                                 Element::kI32, Element::kI64, Element::kU32,  Element::kU64};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProduct, Reduction::kMax,
                                     Reduction::kMin, Reduction::kAverage};

void store(Element element, void* data, int64_t index, double value) {
  const auto put = [&](auto v) {
    std::memcpy(static_cast<char*>(data) + static_cast<size_t>(index) * sizeof v, &v, sizeof v);
  };
  switch (element) {
    case Element::kF32:
      return put(static_cast<float>(value));
    case Element::kF16:
      return put(f16_from_f32(static_cast<float>(value)));
    case Element::kBF16:
      return put(bf16_from_f32(static_cast<float>(value)));
    case Element::kF64:
      return put(value);
    case Element::kI32:
      return put(static_cast<int32_t>(value));
    case Element::kI64:
      return put(static_cast<int64_t>(value));
    case Element::kU32:
      return put(static_cast<uint32_t>(value));
    case Element::kU64:
      return put(static_cast<uint64_t>(value));
  }
}

// Small integers, of both signs where there are any, which every type holds exactly.
double value_of(Element element, int rank, int64_t index) {
  const double value = static_cast<double>((index * 7 + rank * 3) % 5);
  return element == Element::kU32 || element == Element::kU64 ? value : value - 2;
}

double reduced(Element element, Reduction reduction, int ranks, int64_t index) {
  double total = value_of(element, 0, index);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = value_of(element, rank, index);
    total = reduction == Reduction::kMax       ? std::max(total, value)
            : reduction == Reduction::kMin     ? std::min(total, value)
            : reduction == Reduction::kProduct ? total * value
                                               : total + value;
  }
  if (reduction != Reduction::kAverage) return total;
  return element >= Element::kI32 ? std::trunc(total / ranks) : total / ranks;
}

std::vector<char> values(Element element, int64_t count, const auto& value) {
  std::vector<char> data(static_cast<size_t>(count) * size_of(element));
  for (int64_t i = 0; i < count; ++i) store(element, data.data(), i, value(i));
  return data;
}

TEST(MpiCommunicator, AllGather) {
  const auto comm = world();
  for (const int64_t count : kCounts) {
    const size_t bytes = static_cast<size_t>(count);
    std::vector<char> mine(bytes), all(bytes * static_cast<size_t>(comm->size()), 99);
    for (size_t i = 0; i < bytes; ++i)
      mine[i] = static_cast<char>(i + 31 * static_cast<size_t>(comm->rank()));
    std::vector<char> expected = all;
    for (size_t i = 0; i < all.size(); ++i)
      expected[i] = static_cast<char>(i % bytes + 31 * (i / bytes));
    ASSERT_EQ(comm->all_gather(mine.data(), all.data(), bytes, nullptr).message(), "");
    EXPECT_EQ(all, expected) << bytes;
    // In place.
    std::fill(all.begin(), all.end(), 99);
    char* own = all.data() + bytes * static_cast<size_t>(comm->rank());
    std::copy(mine.begin(), mine.end(), own);
    ASSERT_EQ(comm->all_gather(own, all.data(), bytes, nullptr).message(), "");
    EXPECT_EQ(all, expected) << bytes;
  }
}

TEST(MpiCommunicator, AllReduce) {
  const auto comm = world();
  for (const Element element : kElements) {
    for (const Reduction reduction : kReductions) {
      for (const int64_t count : kCounts) {
        const auto from =
            values(element, count, [&](int64_t i) { return value_of(element, comm->rank(), i); });
        const auto expected = values(element, count, [&](int64_t i) {
          return reduced(element, reduction, comm->size(), i);
        });
        std::vector<char> to(from.size(), 99);
        ASSERT_EQ(
            comm->all_reduce(from.data(), to.data(), count, element, reduction, nullptr).message(),
            "");
        EXPECT_EQ(to, expected) << name_of(element) << " " << name_of(reduction) << " " << count;
        to = from;
        ASSERT_EQ(
            comm->all_reduce(to.data(), to.data(), count, element, reduction, nullptr).message(),
            "");
        EXPECT_EQ(to, expected) << name_of(element) << " " << name_of(reduction) << " " << count;
      }
    }
  }
}

TEST(MpiCommunicator, ReduceScatter) {
  const auto comm = world();
  for (const Element element : kElements) {
    for (const Reduction reduction : kReductions) {
      for (const int64_t each : {int64_t{0}, int64_t{1}, int64_t{77}}) {
        const int64_t first = each * comm->rank();
        const auto from = values(element, each * comm->size(),
                                 [&](int64_t i) { return value_of(element, comm->rank(), i); });
        const auto expected = values(element, each, [&](int64_t i) {
          return reduced(element, reduction, comm->size(), first + i);
        });
        std::vector<char> to(expected.size(), 99);
        ASSERT_EQ(comm->reduce_scatter(from.data(), to.data(), each, element, reduction, nullptr)
                      .message(),
                  "");
        EXPECT_EQ(to, expected) << name_of(element) << " " << name_of(reduction) << " " << each;
      }
    }
  }
}

// Sums that float32 and other orders than the ranks' get wrong: 2^60 - 2^60 + 1 in the order of the
// ranks, and Inf and NaN.
TEST(MpiCommunicator, SumsInTheOrderOfTheRanksInFloat64) {
  const auto comm = world();
  const int ranks = comm->size();
  const float big = std::ldexp(1.0f, 60), nan = std::numeric_limits<float>::quiet_NaN();
  const auto value = [&](int rank) { return rank == 0 ? big : rank == 1 ? -big : 1.0f; };
  const float mine[] = {value(comm->rank()), 1 + std::ldexp(1.0f, -23),
                        comm->rank() == ranks - 1 ? nan : 1.0f};
  double total = 0;
  for (int rank = 0; rank < ranks; ++rank) total += value(rank);
  float sum[3], most[3];
  ASSERT_EQ(comm->all_reduce(mine, sum, 3, Element::kF32, Reduction::kSum, nullptr).message(), "");
  EXPECT_EQ(sum[0], static_cast<float>(total));
  EXPECT_EQ(sum[1], static_cast<float>(ranks * (1 + std::ldexp(1.0, -23))));
  EXPECT_TRUE(std::isnan(sum[2]));
  ASSERT_EQ(comm->all_reduce(mine, most, 3, Element::kF32, Reduction::kMax, nullptr).message(), "");
  EXPECT_TRUE(std::isnan(most[2]));
}

TEST(MpiCommunicator, Broadcast) {
  const auto comm = world();
  for (int root = 0; root < comm->size(); ++root) {
    for (const int64_t count : kCounts) {
      std::vector<char> from(static_cast<size_t>(count)), to(from.size(), 99);
      std::iota(from.begin(), from.end(), static_cast<char>(root));
      const std::vector<char> expected = from;
      const bool sends = comm->rank() == root;
      ASSERT_EQ(comm->broadcast(sends ? from.data() : nullptr, to.data(), to.size(), root, nullptr)
                    .message(),
                "");
      EXPECT_EQ(to, expected);
    }
  }
}

// Each rank sends two messages to the next and gets two from the one before; a rank alone writes to
// itself.
TEST(MpiCommunicator, MessagesInAGroup) {
  const auto comm = world();
  const int next = (comm->rank() + 1) % comm->size();
  const int before = (comm->rank() + comm->size() - 1) % comm->size();
  for (const int64_t count : kCounts) {
    const std::vector<int64_t> first(static_cast<size_t>(count), comm->rank()),
        second(3, comm->rank() + 100);
    std::vector<int64_t> a(first.size(), -1), b(3, -1);
    ASSERT_TRUE(comm->group_start().ok());
    ASSERT_EQ(comm->send(first.data(), first.size() * 8, next, nullptr).message(), "");
    ASSERT_TRUE(comm->group_start().ok());
    ASSERT_EQ(comm->recv(a.data(), a.size() * 8, before, nullptr).message(), "");
    ASSERT_EQ(comm->send(second.data(), 24, next, nullptr).message(), "");
    ASSERT_TRUE(comm->group_end().ok());
    ASSERT_EQ(comm->recv(b.data(), 24, before, nullptr).message(), "");
    EXPECT_EQ(comm->all_gather(nullptr, nullptr, 0, nullptr).code(), Code::kBadArgument);
    ASSERT_EQ(comm->group_end().message(), "");
    EXPECT_EQ(a, std::vector<int64_t>(a.size(), before));
    EXPECT_EQ(b, std::vector<int64_t>(3, before + 100));
  }
}

TEST(MpiCommunicator, SendAndReceive) {
  const auto comm = world();
  if (comm->size() < 2) GTEST_SKIP() << "one rank";
  std::vector<int> data(100000, comm->rank());
  if (comm->rank() == 0) {
    ASSERT_EQ(comm->send(data.data(), data.size() * 4, 1, nullptr).message(), "");
  } else if (comm->rank() == 1) {
    ASSERT_EQ(comm->recv(data.data(), data.size() * 4, 0, nullptr).message(), "");
    EXPECT_EQ(data, std::vector<int>(100000, 0));
  }
}

// Beyond what MPI counts in int: about 5 GB in both ranks. mpi_communicator_long runs it.
TEST(MpiCommunicator, DISABLED_MoreThanAGibibyte) {
  const auto comm = world(60);
  const size_t words = (size_t{1} << 28) + 12345;
  std::vector<uint32_t> data(words);
  const auto value = [](size_t i) { return static_cast<uint32_t>(i * 2654435761u); };
  if (comm->rank() == 0) {
    for (size_t i = 0; i < words; ++i) data[i] = value(i);
  }
  ASSERT_EQ(comm->broadcast(data.data(), data.data(), words * 4, 0, nullptr).message(), "");
  size_t wrong = 0;
  for (size_t i = 0; i < words; ++i) wrong += data[i] != value(i);
  EXPECT_EQ(wrong, 0u);
}

// Refused by the rank itself; the communicator stays as it was.
TEST(MpiCommunicator, Refusals) {
  const auto comm = world();
  char byte = 7;
  EXPECT_EQ(comm->all_gather(nullptr, &byte, 1, nullptr).message(), "all_gather: mine is null");
  EXPECT_EQ(comm->all_gather(&byte, nullptr, 1, nullptr).message(), "all_gather: all is null");
  EXPECT_EQ(comm->all_gather(&byte, &byte, size_t{1} << 60, nullptr).code(), Code::kBadShape);
  EXPECT_EQ(comm->all_reduce(&byte, nullptr, 1, Element::kF32, Reduction::kSum, nullptr).code(),
            Code::kNullPointer);
  EXPECT_EQ(comm->all_reduce(&byte, &byte, -1, Element::kF32, Reduction::kSum, nullptr).code(),
            Code::kBadShape);
  EXPECT_EQ(
      comm->all_reduce(&byte, &byte, 1, static_cast<Element>(99), Reduction::kSum, nullptr).code(),
      Code::kBadArgument);
  EXPECT_EQ(comm->reduce_scatter(&byte, &byte, 1, Element::kF32, static_cast<Reduction>(9), nullptr)
                .code(),
            Code::kBadArgument);
  EXPECT_EQ(comm->broadcast(&byte, &byte, 1, comm->size(), nullptr).message(),
            "broadcast: root: expected a rank below " + std::to_string(comm->size()) + ", got " +
                std::to_string(comm->size()));
  EXPECT_EQ(comm->send(&byte, 1, -1, nullptr).code(), Code::kBadArgument);
  EXPECT_EQ(comm->recv(nullptr, 1, 0, nullptr).code(), Code::kNullPointer);
  EXPECT_EQ(comm->group_end().code(), Code::kBadArgument);
  EXPECT_EQ(byte, 7);

  std::unique_ptr<Communicator> other;
  EXPECT_EQ(mpi_communicator(MPI_COMM_NULL, std::chrono::seconds(1), other).code(),
            Code::kBadArgument);
  EXPECT_EQ(mpi_communicator(MPI_COMM_WORLD, std::chrono::seconds(0), other).code(),
            Code::kBadArgument);
  EXPECT_EQ(other, nullptr);

  int64_t rank = comm->rank(), total = 0;
  ASSERT_EQ(comm->all_reduce(&rank, &total, 1, Element::kI64, Reduction::kSum, nullptr).message(),
            "");
  EXPECT_EQ(total, comm->size() * (comm->size() - 1) / 2);
}

// Every rank hears of it within the deadline and 2 s, nothing is written, and nothing works after.
template <class Call>
void expect_failure(const Call& call) {
  constexpr double kDeadline = 0.5;
  const auto comm = world(kDeadline);
  if (comm->size() < 2) GTEST_SKIP() << "one rank";
  std::vector<char> from(4096, 1), to(from.size() * static_cast<size_t>(comm->size()), 99);
  const double start = seconds();
  const Status status = call(*comm, from.data(), to.data());
  EXPECT_LT(seconds() - start, kDeadline + 2);
  EXPECT_EQ(status.code(), Code::kCommunication) << status.message();
  EXPECT_EQ(to, std::vector<char>(to.size(), 99));
  const double again = seconds();
  const Status refused = comm->all_gather(from.data(), to.data(), 8, nullptr);
  EXPECT_LT(seconds() - again, 0.5);
  EXPECT_EQ(refused.message(), "all_gather: the communicator is broken: " + status.message());
  EXPECT_EQ(comm->wait(nullptr).message(), status.message());
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(MpiCommunicator, RanksWithOtherSizes) {
  for (const size_t bytes : {8, 24, 4000}) {
    expect_failure([&](Communicator& comm, const char* from, char* to) {
      return comm.all_gather(from, to, comm.rank() == 1 ? bytes : 16, nullptr);
    });
  }
}

TEST(MpiCommunicator, RanksWithOtherReductions) {
  expect_failure([](Communicator& comm, const char* from, char* to) {
    const Reduction reduction = comm.rank() == 1 ? Reduction::kMax : Reduction::kSum;
    return comm.all_reduce(from, to, 16, Element::kF32, reduction, nullptr);
  });
  expect_failure([](Communicator& comm, const char* from, char* to) {
    const Element element = comm.rank() == 1 ? Element::kF16 : Element::kF32;
    return comm.reduce_scatter(from, to, 16, element, Reduction::kSum, nullptr);
  });
}

TEST(MpiCommunicator, RanksWithOtherOperations) {
  expect_failure([](Communicator& comm, const char* from, char* to) {
    if (comm.rank() == 1)
      return comm.reduce_scatter(from, to, 16, Element::kF32, Reduction::kSum, nullptr);
    return comm.all_gather(from, to, 64, nullptr);
  });
}

TEST(MpiCommunicator, ARankThatDoesNotCome) {
  expect_failure([](Communicator& comm, const char* from, char* to) {
    if (comm.rank() != 1) return comm.all_gather(from, to, 64, nullptr);
    return comm.recv(to, 64, 0, nullptr);  // nobody sends
  });
  expect_failure([](Communicator& comm, const char* from, char* to) {
    if (comm.rank() != 1) return comm.broadcast(from, to, 64, 0, nullptr);
    return comm.send(from, 64, 0, nullptr);  // nobody receives
  });
}

}  // namespace
}  // namespace normgrad
