// Any legal call is within its bound and writes nothing else: shapes, layouts, types, masks, values
// and alignments combined at random. A failure prints the seed and the smallest case it found.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reference/cases.hpp"

namespace normgrad::reference {
namespace {

template <class T>
T any_of(std::initializer_list<T> choices) {
  return *rc::gen::elementOf(std::vector<T>(choices));
}

DType any_dtype() { return any_of({DType::kF32, DType::kF16, DType::kBF16}); }

Case any_case(Op op) {
  Case c{.name = "random", .op = op, .shape = {}};
  const int rank = op == Op::kBatchNorm ? *rc::gen::inRange(2, 6) : *rc::gen::inRange(1, 6);
  for (int axis = 0; axis + 1 < rank; ++axis) c.shape.push_back(*rc::gen::inRange(0, 9));
  c.shape.push_back(*rc::gen::inRange(0, 80));
  c.normalized_axes = op == Op::kBatchNorm ? 1 : *rc::gen::inRange(1, rank + 1);
  c.channel_axis = op == Op::kBatchNorm ? *rc::gen::inRange(0, rank) : 1;
  c.data = any_dtype();
  c.gamma = any_dtype();
  c.statistics_dtype = any_dtype();
  c.params = any_dtype();
  c.statistics = any_of({Statistics::kMeanRstd, Statistics::kMeanVariance});
  if (op == Op::kLayerNorm && *rc::gen::arbitrary<bool>()) c.statistics = Statistics::kXHatStd;
  c.keep_axis = op == Op::kLayerNorm && *rc::gen::arbitrary<bool>();
  c.has_gamma = *rc::gen::arbitrary<bool>();
  c.want_dx = *rc::gen::arbitrary<bool>();
  c.want_dgamma = *rc::gen::arbitrary<bool>();
  c.want_dbeta = *rc::gen::arbitrary<bool>();
  c.eps = any_of({0.0, 1e-12, 1e-5, 1.0});
  c.frozen = op == Op::kBatchNorm && *rc::gen::arbitrary<bool>();
  c.mean_over_std = any_of({0.0, 3.0, 1000.0});
  c.values = any_of({Values::kRandom, Values::kSameSign, Values::kCancelling, Values::kWide,
                     Values::kZeroDy, Values::kZeroDenominators});
  c.layout = any_of({Layout::kContiguous, Layout::kPadded, Layout::kMixed, Layout::kNegative,
                     Layout::kBroadcastDy, Layout::kStridedParameters, Layout::kStrided,
                     Layout::kTransposed, Layout::kScattered});
  if (op == Op::kBatchNorm && rank == 3 && *rc::gen::arbitrary<bool>()) {
    c.layout = Layout::kChannelsLast;
  }
  if (c.layout != Layout::kBroadcastDy) {
    c.in_place = any_of({InPlace::kNone, InPlace::kDy, InPlace::kX});
  }
  if (c.in_place == InPlace::kNone && *rc::gen::arbitrary<bool>()) c.dx_dtype = any_dtype();
  c.offset = *rc::gen::inRange(0, 64);
  c.random = false;
  return c;
}

void expect_any_call_is_right(Op op) {
  Instance instance(any_case(op), *rc::gen::arbitrary<uint64_t>());
  const Status status = run_native(instance.call(), instance.buffers());
  RC_ASSERT(status.message() == "");
  const Instance::Report report = instance.check();
  RC_ASSERT(report.why == "");
}

RC_GTEST_PROP(Property, AnyLayerNormIsRight, ()) { expect_any_call_is_right(Op::kLayerNorm); }
RC_GTEST_PROP(Property, AnyRmsNormIsRight, ()) { expect_any_call_is_right(Op::kRmsNorm); }
RC_GTEST_PROP(Property, AnyBatchNormIsRight, ()) { expect_any_call_is_right(Op::kBatchNorm); }

}  // namespace
}  // namespace normgrad::reference
