// aclnn's operators with NORMGRAD_ACL_DEVICE=cuda: the case table within the bounds, streams, and
// executors that run again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "acl_call.hpp"
#include "device_test.hpp"

namespace acl_test {
namespace {

using device_test::DeviceMirror;
using device_test::DeviceWorkspace;
using normgrad::reference::Case;
using normgrad::reference::Instance;

// Before anybody asks for the device, which is once.
[[maybe_unused]] const int kChosen = setenv("NORMGRAD_ACL_DEVICE", "cuda", 1);

class OnCuda : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&stream_), ACL_SUCCESS);
  }
  void TearDown() override {
    if (!stream_) return;
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);  // ends the stream
  }
  aclrtStream stream_ = nullptr;
};

class AclnnCuda : public OnCuda, public testing::WithParamInterface<normgrad::reference::Op> {};

// The words of a case of this operator, or of its layer, on the device.
template <class AnInstance>
struct ProblemOf {
  explicit ProblemOf(const Case& c)
      : description(c),
        instance(c),
        mirror(instance),
        call(translate(instance.call(), mirror.buffers())) {}

  void expect_right() {
    mirror.download();
    const normgrad::reference::Report report = instance.check();
    EXPECT_TRUE(report.ok) << report.why;
  }

  // Both phases, and the same bits from the native API.
  void expect_native_bits(aclrtStream stream) {
    const Objects objects(*call);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const auto made = answer("phase 1", phase_1(*call, objects, &size, &executor));
    ASSERT_TRUE(made.ok()) << made.message();
    const DeviceWorkspace workspace(size);
    const auto run = answer("phase 2", phase_2(call->op, workspace.data(), size, executor, stream));
    EXPECT_TRUE(run.ok()) << run.message();
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    expect_right();
    EXPECT_TRUE(workspace.intact());
    AnInstance native(description);
    device_test::expect_ok(normgrad::reference::run_on(native, normgrad::Device::kCuda));
    // The bits of a NaN do not survive the sum that aclnnAddLayerNormGrad makes first.
    if (description.values == normgrad::reference::Values::kNonFinite && description.has_dh) return;
    EXPECT_EQ(instance.hash(), native.hash());
  }

  Case description;
  AnInstance instance;
  DeviceMirror mirror;
  std::optional<Call> call;
};
using Problem = ProblemOf<Instance>;

Case small_case(normgrad::reference::Op op) {
  const bool batch = op == normgrad::reference::Op::kBatchNorm;
  return {.name = "small",
          .op = op,
          .shape = batch ? std::vector<int64_t>{16, 24, 49} : std::vector<int64_t>{5, 60, 768},
          .data = DType::kBF16};
}

TEST_P(AclnnCuda, IsWithinTheBoundsAndEqualsTheNativeApi) {
  int expressible = 0;
  for (Case& c : normgrad::reference::cases(GetParam(), false)) {
    SCOPED_TRACE(c.name);
    if (c.op == normgrad::reference::Op::kRmsNorm) c.statistics_dtype = c.params = DType::kF32;
    Problem problem(c);
    if (!problem.call) continue;
    ++expressible;
    problem.expect_native_bits(stream_);
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

TEST_P(AclnnCuda, LayersAreWithinTheBoundsAndEqualTheNativeApi) {
  int expressible = 0;
  for (const Case& c : normgrad::reference::forward_cases(GetParam())) {
    SCOPED_TRACE(c.name);
    ProblemOf<normgrad::reference::ForwardInstance> problem(spoken(c));
    if (!problem.call) continue;
    ++expressible;
    problem.expect_native_bits(stream_);
  }
  RecordProperty("expressible", expressible);
  if (GetParam() != normgrad::reference::Op::kBatchNorm) {  // which aclnn does not have here
    EXPECT_GT(expressible, 100);
  }
}

// The sum and what is made of it, one after the other on the stream.
TEST_F(OnCuda, GradientsOfASumAreWithinTheBoundsAndEqualTheNativeApi) {
  for (const Case& c : normgrad::reference::extended_cases(normgrad::reference::Op::kLayerNorm)) {
    if (!c.has_dh) continue;
    SCOPED_TRACE(c.name);
    Problem problem(spoken_sum(c));
    const Array zero({c.data, {1}}, {-0.0});
    const device_test::DeviceMemory on_device(4);
    ASSERT_EQ(
        aclrtMemcpy(on_device.data(), 4, zero.data(), size_of(c.data), ACL_MEMCPY_HOST_TO_DEVICE),
        ACL_SUCCESS);
    problem.call =
        translate_sum(problem.instance.call(), problem.mirror.buffers(), on_device.data());
    if (problem.call) problem.expect_native_bits(stream_);
  }
}

TEST_P(AclnnCuda, ARepeatableExecutorGivesTheSameBits) {
  Problem problem(small_case(GetParam()));
  ASSERT_TRUE(problem.call);
  const Objects objects(*problem.call);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto made = answer("phase 1", phase_1(*problem.call, objects, &size, &executor));
  ASSERT_TRUE(made.ok()) << made.message();
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(executor), 0);
  const DeviceWorkspace workspace(size);
  uint64_t first = 0;
  for (int run = 0; run < 3; ++run) {
    problem.mirror.upload();
    const aclrtStream stream = run == 1 ? nullptr : stream_;
    ASSERT_EQ(phase_2(problem.call->op, workspace.data(), size, executor, stream), 0);
    problem.expect_right();
    if (run == 0) first = problem.instance.hash();
    EXPECT_EQ(problem.instance.hash(), first);
  }
  aclrtStream gone = nullptr;
  ASSERT_EQ(aclrtCreateStream(&gone), ACL_SUCCESS);
  ASSERT_EQ(aclrtDestroyStream(gone), ACL_SUCCESS);
  EXPECT_EQ(phase_2(problem.call->op, workspace.data(), size, executor, gone), 361001);
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), 0);
}

INSTANTIATE_TEST_SUITE_P(Operators, AclnnCuda,
                         testing::Values(normgrad::reference::Op::kLayerNorm,
                                         normgrad::reference::Op::kRmsNorm,
                                         normgrad::reference::Op::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase(name, '_');
                           return name;
                         });

}  // namespace
}  // namespace acl_test
