// main of tests that run under mpirun: every rank runs every test, in the same order. Rank 0
// speaks; the others say what fails.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "normgrad/mpi.hpp"

namespace {

class Failures : public testing::EmptyTestEventListener {
 public:
  explicit Failures(int rank) : rank_(rank) {}

 private:
  void OnTestStart(const testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s: %s:%d: %s\n", rank_, test_.c_str(),
                 result.file_name() ? result.file_name() : "", result.line_number(),
                 result.message());
  }

  int rank_;
  std::string test_;
};

}  // namespace

// Ends without MPI_Finalize, in which a rank could wait forever for one that failed.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures(rank));
  }
  const int failed = RUN_ALL_TESTS();
  std::fflush(nullptr);
  if (failed) MPI_Abort(MPI_COMM_WORLD, failed);
  MPI_Finalize();
  return 0;
}
