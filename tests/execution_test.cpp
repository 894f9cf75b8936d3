// What execute promises beyond values: no allocation, shareable plans, the caller's floating-point
// environment untouched, right answers after fork() and inside the caller's own parallel regions.
#include <dlfcn.h>
#include <fenv.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "reference/cases.hpp"

#if defined(NORMGRAD_SANITIZE_ADDRESS) || defined(NORMGRAD_SANITIZE_THREAD)
#define NORMGRAD_COUNT_ALLOCATIONS 0  // the sanitizer owns malloc
#else
#define NORMGRAD_COUNT_ALLOCATIONS 1
#endif

#if NORMGRAD_COUNT_ALLOCATIONS
namespace {
std::atomic<int64_t> g_allocations{0};
std::atomic<int64_t> g_threads{0};
}  // namespace

extern "C" void* __libc_malloc(size_t size);
extern "C" void* malloc(size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  g_threads.fetch_add(1, std::memory_order_relaxed);
  return create(thread, attributes, start, argument);
}
#endif

namespace normgrad::reference {
namespace {

// The rows make 10 tasks, then 3 that finish the columns.
Case probe(Op op) {
  Case description{.name = "probe", .op = op, .shape = {600, 1300}, .data = DType::kBF16};
  if (op == Op::kBatchNorm) {
    description.shape = {40, 6, 777};
    description.statistics = Statistics::kMeanVariance;
  }
  return description;
}

constexpr Op kOps[] = {Op::kLayerNorm, Op::kRmsNorm, Op::kBatchNorm};

uint64_t expected_hash(Op op) {
  Instance instance(probe(op));
  EXPECT_TRUE(run_native(instance.call(), instance.buffers()).ok());
  EXPECT_TRUE(instance.check().ok);
  return instance.hash();
}

Plan make_plan(const Call& call) {
  return std::visit([](const auto& c) { return Plan(c); }, call);
}

#if NORMGRAD_COUNT_ALLOCATIONS
TEST(Execute, AllocatesNothingAndStartsNoThread) {
  omp_set_num_threads(16);  // more than there are tasks
  for (const Op op : kOps) {
    Instance instance(probe(op));
    const Plan plan = make_plan(instance.call());
    std::vector<char> workspace(plan.workspace_size());
    // The first parallel region of a thread makes OpenMP's pool; that is not ours.
    ASSERT_TRUE(plan.execute(instance.buffers(), workspace.data(), workspace.size()).ok());
    const int64_t before = g_allocations.load(), threads = g_threads.load();
    const bool ok = plan.execute(instance.buffers(), workspace.data(), workspace.size()).ok();
    const int64_t after = g_allocations.load();
    EXPECT_TRUE(ok);
    EXPECT_EQ(after - before, 0) << name_of(op);
    EXPECT_EQ(g_threads.load() - threads, 0) << name_of(op);
  }
  omp_set_num_threads(omp_get_num_procs());
}
#endif

TEST(Execute, APlanIsShareableBetweenThreads) {
  for (const Op op : kOps) {
    const uint64_t expected = expected_hash(op);
    Instance first(probe(op));
    const Plan plan = make_plan(first.call());
    std::vector<uint64_t> hashes(8);
    std::vector<std::thread> threads;
    for (uint64_t& hash : hashes) {
      threads.emplace_back([&hash, &plan, op] {
        Instance own(probe(op));
        std::vector<char> workspace(plan.workspace_size());
        for (int repeat = 0; repeat < 5; ++repeat) {
          plan.run(own.buffers(), workspace.data(), workspace.size());
        }
        hash = own.hash();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const uint64_t hash : hashes) EXPECT_EQ(hash, expected) << name_of(op);
  }
}

TEST(Execute, WorksInsideTheCallersParallelRegion) {
  for (const Op op : kOps) {
    const uint64_t expected = expected_hash(op);
    std::vector<uint64_t> hashes(4);
    std::vector<std::thread> threads;
    // Nested regions, with more threads than cores on both levels.
    omp_set_max_active_levels(2);
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 4; ++i) {
      Instance own(probe(op));
      if (run_native(own.call(), own.buffers()).ok()) hashes[i] = own.hash();
    }
    omp_set_max_active_levels(1);
    for (const uint64_t hash : hashes) EXPECT_EQ(hash, expected) << name_of(op);
  }
}

TEST(Execute, IgnoresAndKeepsTheCallersFloatEnvironment) {
  for (const Op op : kOps) {
    const uint64_t expected = expected_hash(op);
    Instance instance(probe(op));
    const Plan plan = make_plan(instance.call());
    std::vector<char> workspace(plan.workspace_size());
    const unsigned saved = _mm_getcsr();
    constexpr unsigned kFlushSubnormals = 0x8040;
    fesetround(FE_UPWARD);
    _mm_setcsr(_mm_getcsr() | kFlushSubnormals);
    const unsigned before = _mm_getcsr();
    const bool ok = plan.execute(instance.buffers(), workspace.data(), workspace.size()).ok();
    const unsigned after = _mm_getcsr();
    fesetround(FE_TONEAREST);
    _mm_setcsr(saved);
    EXPECT_TRUE(ok);
    EXPECT_EQ(after, before);
    EXPECT_EQ(instance.hash(), expected) << name_of(op);
  }
}

#if !defined(NORMGRAD_SANITIZE_THREAD)  // which does not follow a fork of a threaded process
TEST(Execute, WorksInAForkedChild) {
  omp_set_num_threads(4);
  const uint64_t expected = expected_hash(Op::kLayerNorm);  // the parent's pool exists now
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a child that waits for threads it does not have is killed, and the test fails
    _exit(expected_hash(Op::kLayerNorm) == expected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the child was killed";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(expected_hash(Op::kLayerNorm), expected);
}
#endif

}  // namespace
}  // namespace normgrad::reference
