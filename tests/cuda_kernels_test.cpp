// The kernels of the GPU: each on shapes outside its home, and the same bits in any surroundings.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device_test.hpp"
#include "normgrad/cuda.hpp"
#include "normgrad/info.hpp"
#include "reference/cases.hpp"

namespace normgrad {
namespace {

using reference::Case;
using reference::Instance;
using reference::Op;

class CudaKernels : public device_test::DeviceTest {};

// Runs a case, checks its outputs and returns their hash.
uint64_t run(const Case& each) {
  Instance instance(each);
  const Status status = reference::run_on(instance, Device::kCuda);
  EXPECT_TRUE(status.ok()) << each.name << ": " << status.message();
  const Instance::Report report = instance.check();
  EXPECT_TRUE(report.ok) << each.name << ": " << report.why;
  return instance.hash();
}

Case make_case(Op op, std::vector<int64_t> shape, DType dtype) {
  Case each;
  each.op = op;
  each.shape = std::move(shape);
  each.data = each.gamma = each.params = dtype;
  each.statistics = op == Op::kLayerNorm ? Statistics::kMeanRstd : Statistics::kMeanVariance;
  each.name = std::string(name_of(op)) + " " + name_of(dtype);
  return each;
}

// One of each kernel: tiny, short, medium and long rows, rows of odd length, channels of each kind.
std::vector<Case> some_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3000, 24},
                                                {100, 64},
                                                {700, 256},
                                                {300, 1000},
                                                {70, 4095},
                                                {60, 20000},
                                                {5, 131080}}) {
        cases.push_back(make_case(op, shape, dtype));
      }
    }
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{8, 70, 49}, {16, 3, 3136}, {2, 4, 30000}, {700, 96, 1}}) {
      cases.push_back(make_case(Op::kBatchNorm, shape, dtype));
    }
  }
  return cases;
}

TEST_F(CudaKernels, SameBitsOnEveryRun) {
  for (const Case& each : some_cases()) {
    const uint64_t hash = run(each);
    Instance instance(each);
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(reference::run_on(instance, Device::kCuda).ok()) << each.name;
      ASSERT_EQ(instance.hash(), hash) << each.name << ", run " << i;
    }
  }
}

// Another thread's stream keeps the memory and some of the multiprocessors busy meanwhile.
TEST_F(CudaKernels, SameBitsBesideOtherWork) {
  std::atomic<bool> done = false, failed = false;
  std::thread other([&] {
    constexpr size_t kBytes = size_t{256} << 20;
    void *stream = nullptr, *from = nullptr, *to = nullptr;
    failed = !cuda::create_stream(stream).ok() || !cuda::allocate(kBytes, from).ok() ||
             !cuda::allocate(kBytes, to).ok() || !cuda::fill(from, 0x3C, kBytes).ok();
    while (!done && !failed) {
      for (int i = 0; i < 8 && !failed; ++i) failed = !cuda::copy(to, from, kBytes, stream).ok();
      failed = failed || !cuda::synchronize_stream(stream).ok();
    }
    failed = !cuda::release(from).ok() || !cuda::release(to).ok() ||
             !cuda::destroy_stream(stream).ok() || failed;
  });
  for (const Case& each : some_cases()) {
    const uint64_t hash = run(each);
    Instance instance(each);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(reference::run_in_graph(instance).ok()) << each.name;
      EXPECT_EQ(instance.hash(), hash) << each.name;
    }
  }
  done = true;
  other.join();
  EXPECT_FALSE(failed);
}

TEST_F(CudaKernels, SameBitsAtEveryAlignment) {
  for (Case each : some_cases()) {
    const uint64_t hash = run(each);
    for (const int offset : {1, 2, 3, 4, 7, 8, 31}) {
      each.offset = offset;
      ASSERT_EQ(run(each), hash) << each.name << " offset " << offset;
    }
  }
}

TEST_F(CudaKernels, SameBitsInPlace) {
  for (Case each : some_cases()) {
    const uint64_t hash = run(each);
    for (const auto in_place : {reference::InPlace::kDy, reference::InPlace::kX}) {
      each.in_place = in_place;
      ASSERT_EQ(run(each), hash) << each.name;
    }
  }
}

// A row of dx must not know how many others there are.
TEST_F(CudaKernels, RowsKnowNothingOfEachOther) {
  for (const int64_t cols : {24, 256, 1000, 4096, 20000, 32768}) {
    Case many = make_case(Op::kLayerNorm, {300, cols}, DType::kBF16);
    many.want_dgamma = many.want_dbeta = false;
    Instance all(many);
    ASSERT_TRUE(reference::run_on(all, Device::kCuda).ok());
    Case one = many;
    one.shape = {1, cols};
    Instance first(one);  // its data differ: take those of the other's first row
    const auto bytes = static_cast<size_t>(cols) * size_of(one.data);
    const auto take = [](const void* to, const void* from, size_t count) {
      std::memcpy(const_cast<void*>(to), from, count);
    };
    take(first.buffers().x, all.buffers().x, bytes);
    take(first.buffers().dy, all.buffers().dy, bytes);
    take(first.buffers().gamma, all.buffers().gamma, bytes);
    take(first.buffers().mean, all.buffers().mean, sizeof(float));
    take(first.buffers().spread, all.buffers().spread, sizeof(float));
    ASSERT_TRUE(reference::run_on(first, Device::kCuda).ok());
    EXPECT_EQ(std::memcmp(first.buffers().dx, all.buffers().dx, bytes), 0) << cols;
  }
}

// BatchNorm, more rows than the chip keeps: the others are read again when dx may lie on them.
TEST_F(CudaKernels, RowsReadAgain) {
  Case each = make_case(Op::kBatchNorm, {9000, 400, 1}, DType::kF32);
  const uint64_t hash = run(each);
  each.in_place = reference::InPlace::kX;
  each.offset = 1;
  EXPECT_EQ(run(each), hash);
}

// Teams of several blocks, as a cluster and not, whose channels have no room all at a time.
TEST_F(CudaKernels, ManyChannelsOfATeam) {
  setenv("NORMGRAD_IMPL", "cuda:channels_team", 1);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{17, 200, 500}, {33, 168, 500}}) {
    Case each = make_case(Op::kBatchNorm, shape, DType::kF32);
    const uint64_t hash = run(each);
    each.offset = 1;
    EXPECT_EQ(run(each), hash);
  }
  unsetenv("NORMGRAD_IMPL");
}

// Channels in the registers of all blocks: one part of a channel or many, few units of a thread or
// twice as many, samples that end in the middle of a part, whole and odd lengths.
TEST_F(CudaKernels, FewChannels) {
  setenv("NORMGRAD_IMPL", "cuda:channels_small", 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 70, 4500},
                                              {5, 65, 1001},
                                              {7, 3, 4104},
                                              {2, 1, 40000},
                                              {90, 9, 24}}) {
      Case each = make_case(Op::kBatchNorm, shape, dtype);
      const uint64_t hash = run(each);
      each.offset = 1;
      EXPECT_EQ(run(each), hash) << each.name;
      each.in_place = reference::InPlace::kX;
      EXPECT_EQ(run(each), hash) << each.name;
    }
  }
  for (const double scale : {1e-30, 1e30}) {
    Case each = make_case(Op::kBatchNorm, {3, 5, 4000}, DType::kF32);
    each.dy_scale = each.gamma_scale = scale;
    each.random = false;
    run(each);
    each.in_place = reference::InPlace::kDy;
    run(each);
  }
  unsetenv("NORMGRAD_IMPL");
}

// Clusters whose runs are cut into pieces, the last of which is shorter; or that have two channels
// each, and the last of them one.
TEST_F(CudaKernels, ShortLastPieces) {
  setenv("NORMGRAD_IMPL", "cuda:channels_cluster", 1);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{9, 3, 4096}, {8, 5, 3600}, {32, 5, 196}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Case each = make_case(Op::kBatchNorm, shape, dtype);
      const uint64_t hash = run(each);
      each.in_place = reference::InPlace::kX;
      EXPECT_EQ(run(each), hash) << each.name;
      each.offset = 1;  // by elements: NaN in the sums would lead both of the others to float64
      EXPECT_EQ(run(each), hash) << each.name;
    }
  }
  unsetenv("NORMGRAD_IMPL");
}

// Nor which kernel has it: small calls and others have the same bits in dx.
TEST_F(CudaKernels, RowsOfEitherKernel) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
      for (const int64_t cols : {17, 40, 129, 256, 600, 1000, 2048, 3100, 5120, 8192}) {
        for (const int64_t rows : {1, 20}) {  // the only row has a kernel of its own
          Case each = make_case(op, {rows, cols}, dtype);
          each.want_dgamma = each.want_dbeta = false;
          setenv("NORMGRAD_IMPL", "cuda:rows_small", 1);
          const uint64_t hash = run(each);
          setenv("NORMGRAD_IMPL", "cuda:rows_ring", 1);
          EXPECT_EQ(run(each), hash) << each.name << " " << rows << "x" << cols;
          unsetenv("NORMGRAD_IMPL");
        }
      }
    }
  }
}

// Column sums of small calls: of so many rows that a block takes them in steps, by clusters that
// share the rows, beside rows that are cut in two, and of one row.
TEST_F(CudaKernels, SmallCalls) {
  setenv("NORMGRAD_IMPL", "cuda:rows_small", 1);
  const auto for_all = [](int64_t rows, int64_t cols, const auto& visit) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
        for (const auto form : {Statistics::kMeanRstd, Statistics::kMeanVariance}) {
          Case each = make_case(op, {rows, cols}, dtype);
          each.statistics = form;
          visit(each);
        }
      }
    }
  };
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1300, 40},
                                   {3000, 136},
                                   {300, 4104},
                                   {140, 2100},
                                   {1, 100},
                                   {1, 400},
                                   {1, 1400},
                                   {1, 5000}}) {
    for_all(rows, cols, [&](Case each) {
      const uint64_t hash = run(each);
      for (const auto in_place : {reference::InPlace::kX, reference::InPlace::kDy}) {
        each.in_place = in_place;
        EXPECT_EQ(run(each), hash) << each.name;
      }
    });
  }
  // dy * r is smaller than float32 can be, or has few bits left; dgamma is neither.
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 100}, {20, 100}, {1, 5000}}) {
    for (const auto& [scale, dy_scale] : {std::pair(1e30, 1e-30), {1e5, 1e-40}}) {
      for_all(rows, cols, [&](Case each) {
        each.scale = scale;
        each.dy_scale = dy_scale;
        each.random = false;
        run(each);
      });
    }
  }
  unsetenv("NORMGRAD_IMPL");
}

// Execute allocates nothing and waits for nothing: a graph of it, replayed on new data, is right.
TEST_F(CudaKernels, RunInGraphs) {
  std::vector<Case> cases = some_cases();
  for (const Case& step : reference::step_cases(Op::kBatchNorm)) cases.push_back(step);
  for (const Case& each : cases) {
    const auto instance = reference::make_instance(each);
    const Status status = reference::run_in_graph(*instance);
    ASSERT_TRUE(status.ok()) << each.name << ": " << status.message();
    const reference::Report report = instance->check();
    EXPECT_TRUE(report.ok) << each.name << ": " << report.why;
  }
}

// Blocks that each have some columns of all rows: so many rows that column sums go on to float64,
// and rows that float32 does not serve among others.
// Several for each crew, which begin anywhere: in some shapes the rows of a crew at the same place
// of 16 bytes, in others not.
TEST_F(CudaKernels, ManyRowsOfAnyPhase) {
  setenv("NORMGRAD_IMPL", "cuda:rows_ring", 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1100, 531}, {700, 1061}}) {
        Case each = make_case(op, shape, dtype);
        const uint64_t hash = run(each);
        each.offset = 3;
        EXPECT_EQ(run(each), hash) << each.name;
      }
    }
  }
  unsetenv("NORMGRAD_IMPL");
}

TEST_F(CudaKernels, ManyRowsAcross) {
  setenv("NORMGRAD_IMPL", "cuda:rows_across", 1);
  run(make_case(Op::kLayerNorm, {9000, 60}, DType::kF32));
  run(make_case(Op::kRmsNorm, {9000, 60}, DType::kF32));
  for (const auto values : {reference::Values::kZeroDy, reference::Values::kNonFinite,
                            reference::Values::kZeroDenominators}) {
    Case each = make_case(Op::kLayerNorm, {50, 600}, DType::kBF16);
    each.values = values;
    each.random = false;
    run(each);
  }
  for (const double scale : {1e-30, 1e30}) {
    for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
      Case each = make_case(op, {20, 300}, DType::kF32);
      each.dy_scale = scale;
      each.gamma_scale = scale;
      each.random = false;
      run(each);
      each.in_place = reference::InPlace::kX;
      run(each);
    }
  }
  unsetenv("NORMGRAD_IMPL");
}

// Several in a warp, so many that a crew describes three batches of them, each of several stages.
TEST_F(CudaKernels, ManyShortRows) {
  for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
    Case each = make_case(op, {140000, 64}, DType::kBF16);
    const uint64_t hash = run(each);
    each.offset = 5;
    EXPECT_EQ(run(each), hash) << each.name;
  }
}

// A cluster of 16 blocks has more than 32 rows, whose column sums are made in chunks.
TEST_F(CudaKernels, ManyRowsOfACluster) {
  run(make_case(Op::kRmsNorm, {240, 65600}, DType::kF32));
  run(make_case(Op::kLayerNorm, {240, 65600}, DType::kF32));
  // Sums that travel while other rows are worked on: one crew with more rows than three batches of
  // scales have, and three crews to a block.
  for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) {
    Case each = make_case(op, {420, 33000}, DType::kBF16);
    const uint64_t hash = run(each);
    each.offset = 1;
    EXPECT_EQ(run(each), hash) << each.name;
    run(make_case(op, {1700, 9000}, DType::kBF16));
    each = make_case(op, {200, 9000}, DType::kF16);  // and rows that float32 does not serve
    each.random = false;
    for (const auto values : {reference::Values::kZeroDy, reference::Values::kNonFinite}) {
      each.values = values;
      run(each);
    }
  }
}

// What NORMGRAD_IMPL can force: everything it takes is right, on shapes that are not its own too.
TEST_F(CudaKernels, EachKernelOnEveryShape) {
  int taken = 0;
  std::vector<Case> cases = some_cases();
  for (Case each : some_cases()) {  // and where float32 does not serve
    if (each.op != Op::kBatchNorm || each.data != DType::kF32) continue;
    each.random = false;
    for (const auto& [dy, gamma] : {std::pair(1e-35, 1.0), {1e-43, 1e28}, {1e20, 1e20}}) {
      each.dy_scale = dy;
      each.gamma_scale = gamma;
      cases.push_back(each);
    }
  }
  for (const Implementation& each : implementations()) {
    if (each.device != Device::kCuda || each.name == "cuda:auto") continue;
    setenv("NORMGRAD_IMPL", each.name.c_str(), 1);
    for (const Case& one : cases) {
      Instance instance(one);
      const Status status = reference::run_on(instance, Device::kCuda);
      if (status.code() == Code::kUnsupportedDevice) continue;  // too large for it
      ASSERT_TRUE(status.ok()) << each.name << ", " << one.name << ": " << status.message();
      const Instance::Report report = instance.check();
      EXPECT_TRUE(report.ok) << each.name << ", " << one.name << ": " << report.why;
      ++taken;
    }
    unsetenv("NORMGRAD_IMPL");
  }
  EXPECT_GT(taken, 100);
}

}  // namespace
}  // namespace normgrad
