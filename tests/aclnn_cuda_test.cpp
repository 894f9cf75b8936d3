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

class AclnnCuda : public device_test::DeviceTest,
                  public testing::WithParamInterface<normgrad::reference::Op> {
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

// The words of a case of this operator, on the device.
struct Problem {
  explicit Problem(const Case& c)
      : instance(c), mirror(instance), call(translate(instance.call(), mirror.buffers())) {}

  void expect_right() {
    mirror.download();
    const Instance::Report report = instance.check();
    EXPECT_TRUE(report.ok) << report.why;
  }

  Instance instance;
  DeviceMirror mirror;
  std::optional<Call> call;
};

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
    const Objects objects(*problem.call);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const auto made = answer("phase 1", phase_1(*problem.call, objects, &size, &executor));
    EXPECT_TRUE(made.ok()) << made.message();
    if (!made.ok()) continue;
    const DeviceWorkspace workspace(size);
    const auto run =
        answer("phase 2", phase_2(problem.call->op, workspace.data(), size, executor, stream_));
    EXPECT_TRUE(run.ok()) << run.message();
    EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
    problem.expect_right();
    EXPECT_TRUE(workspace.intact());
    Instance native(c);
    device_test::expect_ok(normgrad::reference::run_on(native, normgrad::Device::kCuda));
    EXPECT_EQ(problem.instance.hash(), native.hash());
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
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
