// Same bits: for any number of threads, any pointer alignment, in place or not, in any batch. And
// the properties that hold exactly, so that no tolerance can hide a fault.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "normgrad/info.hpp"
#include "reference/cases.hpp"

namespace normgrad::reference {
namespace {

// The bits of a run; `checked`: of one that is within the bound.
uint64_t hash_of(const Case& description, bool checked = false) {
  const auto instance = make_instance(description);
  const Status status = run_on(*instance, Device::kCpu);
  EXPECT_TRUE(status.ok()) << status.message();
  const Report report = checked ? instance->check() : Report{};
  EXPECT_TRUE(report.ok) << report.why;
  return instance->hash();
}

// Enough rows for several blocks of the tree and an odd end; columns that are no multiple of a
// vector.
std::vector<Case> probes() {
  std::vector<Case> list;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Case rows{.name = "rows", .op = Op::kLayerNorm, .shape = {2999, 83}, .data = dtype};
    list.push_back(rows);
    rows.op = Op::kRmsNorm;
    list.push_back(rows);
    rows.shape = {11, 16411};  // their columns are shared by the threads
    list.push_back(rows);
    Case channels{.name = "channels", .op = Op::kBatchNorm, .shape = {37, 5, 1023}, .data = dtype};
    channels.statistics = Statistics::kMeanVariance;
    channels.eps = 1e-5;
    list.push_back(channels);
    channels.shape = {41, 67, 97};
    list.push_back(channels);
    channels.layout = Layout::kChannelsLast;
    list.push_back(channels);
    channels.shape = {41, 5, 97};  // several positions in a vector
    list.push_back(channels);
    channels.layout = Layout::kContiguous;
    channels.shape = {41, 97, 5};
    channels.channel_axis = 2;
    list.push_back(channels);
  }
  for (Case layer : std::vector<Case>(list)) {
    layer.forward = true;
    layer.eps = 1e-5;
    list.push_back(layer);
  }
  for (Case step : std::vector<Case>(list)) {
    if (step.op != Op::kBatchNorm || step.data != DType::kF32) continue;
    step.statistics = Statistics::kMeanRstd;
    step.counts = {30000, 0, 7};
    for (const Step which : {Step::kReduce, Step::kElementwise}) {
      step.step = which;
      list.push_back(step);
    }
  }
  return list;
}

TEST(Determinism, SameBitsForAnyNumberOfThreads) {
  for (const Case& probe : probes()) {
    omp_set_num_threads(1);
    const uint64_t expected = hash_of(probe, /*checked=*/true);
    for (const int threads : {2, 3, 7, 16}) {
      omp_set_num_threads(threads);
      EXPECT_EQ(hash_of(probe), expected) << name_of(probe.op) << ", " << threads << " threads";
    }
  }
}

TEST(Determinism, SameBitsForEveryPointerOffset) {
  for (Case probe : probes()) {
    probe.shape[0] = 33;
    probe.shape.back() = 37;
    const uint64_t expected = hash_of(probe, /*checked=*/true);
    for (int offset = 1; offset < 64; ++offset) {
      probe.offset = offset;
      EXPECT_EQ(hash_of(probe), expected) << name_of(probe.op) << ", offset " << offset;
    }
  }
}

TEST(Determinism, SameBitsInPlace) {
  for (Case probe : probes()) {
    const uint64_t expected = hash_of(probe, /*checked=*/true);
    for (const InPlace place : {InPlace::kDy, InPlace::kX}) {
      if (probe.forward && place == InPlace::kDy) continue;
      probe.in_place = place;
      EXPECT_EQ(hash_of(probe), expected) << name_of(probe.op);
    }
  }
}

TEST(Determinism, SameBitsForAnyLayout) {
  for (Case probe : probes()) {
    const uint64_t expected = hash_of(probe, /*checked=*/true);
    if (probe.layout == Layout::kChannelsLast) {
      probe.layout = Layout::kChannelsLastGaps;
      EXPECT_EQ(hash_of(probe), expected);
      continue;
    }
    for (const Layout layout : {Layout::kPadded, Layout::kMixed, Layout::kNegative}) {
      probe.layout = layout;
      EXPECT_EQ(hash_of(probe), expected) << name_of(probe.op);
    }
  }
}

// A small LayerNorm or RMSNorm problem in vectors, for the properties below.
struct Rows {
  int64_t rows, cols;
  bool rms;
  std::vector<float> x, dy, gamma, mean, rstd, dx, dgamma, dbeta;

  Rows(int64_t rows_, int64_t cols_, bool rms_) : rows(rows_), cols(cols_), rms(rms_) {
    auto fill = [state = uint64_t{88172645463325252}](std::vector<float>& v, int64_t n,
                                                      float shift) mutable {
      for (int64_t i = 0; i < n; ++i) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        v.push_back(static_cast<float>(static_cast<double>(state >> 11) * 0x1p-52 - 1) + shift);
      }
    };
    fill(x, rows * cols, 0.25f);
    fill(dy, rows * cols, 0.125f);
    fill(gamma, cols, 1);
    fill(mean, rows, 0);
    fill(rstd, rows, 2);
  }

  void run() {
    const Tensor matrix{DType::kF32, {rows, cols}}, row{DType::kF32, {cols}};
    const Tensor scalars{DType::kF32, {rows}};
    Call call;
    if (rms) {
      call = RmsNormBackward{.x = matrix, .dy = matrix, .gamma = row, .dx = matrix, .dgamma = row};
    } else {
      call = LayerNormBackward{.x = matrix,
                               .dy = matrix,
                               .gamma = row,
                               .mean = scalars,
                               .spread = scalars,
                               .dx = matrix,
                               .dgamma = row,
                               .dbeta = row};
    }
    dx.assign(x.size(), NAN);
    dgamma.assign(gamma.size(), NAN);
    dbeta.assign(gamma.size(), NAN);
    const Status status = run_native(call, {x.data(), dy.data(), gamma.data(), mean.data(),
                                            rstd.data(), dx.data(), dgamma.data(), dbeta.data()});
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

class RowProperties : public testing::TestWithParam<bool> {};

TEST_P(RowProperties, ARowsDxDoesNotDependOnItsBatch) {
  Rows all(300, 77, GetParam());
  all.run();
  for (const int64_t row : {0, 1, 31, 32, 150, 299}) {
    Rows one(1, 77, GetParam());
    std::copy_n(all.x.begin() + row * 77, 77, one.x.begin());
    std::copy_n(all.dy.begin() + row * 77, 77, one.dy.begin());
    one.gamma = all.gamma;
    one.mean[0] = all.mean[row];
    one.rstd[0] = all.rstd[row];
    one.run();
    EXPECT_EQ(std::memcmp(one.dx.data(), all.dx.data() + row * 77, 77 * sizeof(float)), 0) << row;
  }
}

TEST_P(RowProperties, AppendedRowsOfZeroDyChangeNothing) {
  for (const int64_t rows : {1, 3, 31, 33, 100, 1025, 3000}) {
    Rows base(rows, 19, GetParam());
    base.run();
    for (const int64_t extra : {1, 5, 64, 5000}) {
      Rows longer = base;
      longer.rows += extra;
      longer.x.resize(longer.rows * 19, 0.5f);
      longer.dy.resize(longer.rows * 19, 0.0f);
      longer.mean.resize(longer.rows, 0.25f);
      longer.rstd.resize(longer.rows, 1.5f);
      longer.run();
      EXPECT_TRUE(same_bits(base.dgamma, longer.dgamma, 19)) << rows << " + " << extra;
      if (GetParam()) continue;
      EXPECT_TRUE(same_bits(base.dbeta, longer.dbeta, 19)) << rows << " + " << extra;
    }
  }
}

TEST_P(RowProperties, PowersOfTwoScaleExactly) {
  Rows base(70, 45, GetParam());
  base.run();
  Rows scaled = base;
  for (float& v : scaled.dy) v *= -0x1p20f;
  scaled.run();
  for (size_t i = 0; i < base.dx.size(); ++i) ASSERT_EQ(scaled.dx[i], base.dx[i] * -0x1p20f) << i;
  for (size_t i = 0; i < base.dgamma.size(); ++i) {
    ASSERT_EQ(scaled.dgamma[i], base.dgamma[i] * -0x1p20f) << i;
  }
  // x and its statistics in other units: x_hat, and so dgamma, is the same.
  scaled = base;
  for (float& v : scaled.x) v *= 0x1p9f;
  for (float& v : scaled.mean) v *= 0x1p9f;
  for (float& v : scaled.rstd) v *= 0x1p-9f;
  scaled.run();
  for (size_t i = 0; i < base.dx.size(); ++i) ASSERT_EQ(scaled.dx[i], base.dx[i] * 0x1p-9f) << i;
  EXPECT_TRUE(same_bits(base.dgamma, scaled.dgamma, base.dgamma.size()));
}

TEST_P(RowProperties, ZeroDyGivesZeros) {
  Rows base(40, 45, GetParam());
  std::fill(base.dy.begin(), base.dy.end(), 0.0f);
  base.run();
  for (const float v : base.dx) ASSERT_EQ(v, 0);
  for (const float v : base.dgamma) ASSERT_EQ(v, 0);
}

void expect_poison_stays(bool rms) {
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t row : {0, 2, 33, 69}) {
      const int64_t column = 17;
      Rows clean(70, 45, rms);
      clean.run();
      Rows dirty = clean;
      dirty.dy[row * 45 + column] = poison;
      dirty.run();
      for (int64_t r = 0; r < 70; ++r) {
        for (int64_t c = 0; c < 45; ++c) {
          const int64_t i = r * 45 + c;
          if (r == row) {
            EXPECT_FALSE(std::isfinite(dirty.dx[i])) << r << ", " << c;
          } else {
            EXPECT_EQ(dirty.dx[i], clean.dx[i]) << r << ", " << c;
          }
        }
      }
      for (int64_t c = 0; c < 45; ++c) {
        EXPECT_EQ(std::isfinite(dirty.dgamma[c]), c != column) << c;
        if (c == column) continue;
        EXPECT_EQ(dirty.dgamma[c], clean.dgamma[c]) << c;
        EXPECT_TRUE(rms || dirty.dbeta[c] == clean.dbeta[c]) << c;
      }
    }
  }
}

// On every instruction set: each has a way of its own to round sums.
TEST_P(RowProperties, ANonFiniteValueStaysInItsRowAndColumn) {
  for (const Implementation& each : implementations()) {
    if (each.device != Device::kCpu) continue;
    SCOPED_TRACE(each.name);
    setenv("NORMGRAD_IMPL", each.name.c_str(), 1);
    expect_poison_stays(GetParam());
    unsetenv("NORMGRAD_IMPL");
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, RowProperties, testing::Bool(), [](const auto& instance) {
  return instance.param ? "rms_norm" : "layer_norm";
});

}  // namespace
}  // namespace normgrad::reference
