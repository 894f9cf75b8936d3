// InfiniOP's operators on an NVIDIA GPU: the case table within the bounds, on streams, in graphs,
// and what belongs to which device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <thread>

#include "device_test.hpp"
#include "infini_table_call.hpp"

namespace infini_test {
namespace {

using device_test::DeviceMirror;
using device_test::DeviceWorkspace;
using normgrad::reference::Case;
using normgrad::reference::ForwardInstance;
using normgrad::reference::Instance;

class OnNvidia : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), INFINI_STATUS_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  }
};

// A case on the device, with its descriptor.
class Problem {
 public:
  explicit Problem(const Case& description, uint64_t seed = 1)
      : instance_(description, seed),
        mirror_(instance_),
        translated_(translate(instance_.call(), mirror_.buffers())) {
    if (!translated_.expressible) return;
    status_ = prepare(translated_, desc_, size_);
    workspace_.emplace(size_);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
  ~Problem() { EXPECT_EQ(destroy(translated_.op, desc_), INFINI_STATUS_SUCCESS); }

  bool expressible() const { return translated_.expressible; }
  const Status& status() const { return status_; }
  Descriptor desc() const { return desc_; }
  DeviceMirror& mirror() { return mirror_; }
  infiniStatus_t compute(infinirtStream_t stream = nullptr) const {
    return infini_test::compute(translated_.op, desc_, workspace_->data(), size_,
                                translated_.pointers, stream);
  }
  infiniStatus_t compute_with_less() const {
    return infini_test::compute(translated_.op, desc_, workspace_->data(), size_ - 1,
                                translated_.pointers);
  }
  size_t workspace_size() const { return size_; }
  // Once it has run.
  void expect_right() {
    mirror_.download();
    const Instance::Report report = instance_.check();
    EXPECT_TRUE(report.ok) << report.why;
    EXPECT_TRUE(workspace_->intact());
  }
  uint64_t hash() {
    mirror_.download();
    return instance_.hash();
  }

 private:
  Instance instance_;
  DeviceMirror mirror_;
  Translated translated_;
  Status status_;
  Descriptor desc_ = nullptr;
  size_t size_ = 0;
  std::optional<DeviceWorkspace> workspace_;
};

Case small_case(normgrad::reference::Op op, normgrad::DType dtype) {
  const bool batch = op == normgrad::reference::Op::kBatchNorm;
  return {.name = "small",
          .op = op,
          .shape = batch ? std::vector<int64_t>{16, 24, 49} : std::vector<int64_t>{5, 60, 768},
          .data = dtype,
          .gamma = dtype,
          .statistics_dtype = dtype,
          .params = dtype,
          .statistics = op == normgrad::reference::Op::kLayerNorm ? Statistics::kXHatStd
                                                                  : Statistics::kMeanVariance};
}

class OnNvidiaTable : public OnNvidia,
                      public testing::WithParamInterface<normgrad::reference::Op> {};

TEST_P(OnNvidiaTable, IsWithinTheBoundsAndEqualsTheNativeApi) {
  int expressible = 0;
  for (const Case& c : normgrad::reference::cases(GetParam(), false)) {
    SCOPED_TRACE(c.name);
    Problem problem(c);
    if (!problem.expressible()) continue;
    ++expressible;
    EXPECT_TRUE(problem.status().ok()) << problem.status().message();
    if (!problem.status().ok()) continue;
    EXPECT_EQ(problem.compute(), INFINI_STATUS_SUCCESS) << normgradGetLastError();
    problem.expect_right();
    Instance native(c);
    device_test::expect_ok(normgrad::reference::run_on(native, normgrad::Device::kCuda));
    EXPECT_EQ(problem.hash(), native.hash());
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 20);
}

// A layer on the device.
void expect_layer(const Case& c, int& expressible) {
  SCOPED_TRACE(c.name);
  ForwardInstance instance(c), native(c);
  DeviceMirror mirror(instance);
  const Translated translated = translate(instance.call(), mirror.buffers());
  if (!translated.expressible) return;
  ++expressible;
  Descriptor desc = nullptr;
  size_t size = 0;
  const Status status = prepare(translated, desc, size);
  ASSERT_TRUE(status.ok()) << status.message();
  const DeviceWorkspace workspace(size);
  EXPECT_EQ(compute(translated.op, desc, workspace.data(), size, translated.pointers),
            INFINI_STATUS_SUCCESS)
      << normgradGetLastError();
  EXPECT_EQ(destroy(translated.op, desc), INFINI_STATUS_SUCCESS);
  mirror.download();
  const normgrad::reference::Report report = instance.check();
  EXPECT_TRUE(report.ok) << report.why;
  EXPECT_TRUE(workspace.intact());
  device_test::expect_ok(normgrad::reference::run_on(native, normgrad::Device::kCuda));
  EXPECT_EQ(instance.hash(), native.hash());
}

TEST_P(OnNvidiaTable, LayersAreWithinTheBoundsAndEqualTheNativeApi) {
  int expressible = 0;
  for (const Case& c : normgrad::reference::forward_cases(GetParam())) {
    expect_layer(spoken(c), expressible);
    if (c.op == normgrad::reference::Op::kBatchNorm) expect_layer(spoken_extended(c), expressible);
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

TEST_P(OnNvidiaTable, RunsOnAStreamInItsOrder) {
  for (const normgrad::DType dtype :
       {normgrad::DType::kF32, normgrad::DType::kF16, normgrad::DType::kBF16}) {
    Problem problem(small_case(GetParam(), dtype)), expected(small_case(GetParam(), dtype));
    ASSERT_TRUE(problem.status().ok()) << problem.status().message();
    ASSERT_EQ(expected.compute(), INFINI_STATUS_SUCCESS) << normgradGetLastError();
    expected.expect_right();
    // dy arrives on the stream, late: whoever does not wait for it reads NaN.
    infinirtStream_t stream = nullptr;
    ASSERT_EQ(infinirtStreamCreate(&stream), INFINI_STATUS_SUCCESS);
    const Case c = small_case(GetParam(), dtype);
    size_t bytes = normgrad::size_of(dtype);
    for (const int64_t extent : c.shape) bytes *= static_cast<size_t>(extent);
    void* dy = const_cast<void*>(problem.mirror().buffers().dy);
    const device_test::DeviceMemory kept(bytes), busy(size_t{256} << 20);
    ASSERT_EQ(infinirtMemcpy(kept.data(), dy, bytes, INFINIRT_MEMCPY_D2D), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtMemset(dy, 0xFF, bytes), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtDeviceSynchronize(), INFINI_STATUS_SUCCESS);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(infinirtMemsetAsync(busy.data(), i, size_t{256} << 20, stream),
                INFINI_STATUS_SUCCESS);
    }
    ASSERT_EQ(infinirtMemcpyAsync(dy, kept.data(), bytes, INFINIRT_MEMCPY_D2D, stream),
              INFINI_STATUS_SUCCESS);
    ASSERT_EQ(problem.compute(stream), INFINI_STATUS_SUCCESS) << normgradGetLastError();
    ASSERT_EQ(infinirtStreamSynchronize(stream), INFINI_STATUS_SUCCESS);
    problem.expect_right();
    EXPECT_EQ(problem.hash(), expected.hash());
    EXPECT_EQ(infinirtStreamDestroy(stream), INFINI_STATUS_SUCCESS);
  }
}

TEST_P(OnNvidiaTable, IsCapturedAndReplayed) {
  for (const infinirtStreamCaptureMode_t mode :
       {INFINIRT_STREAM_CAPTURE_MODE_GLOBAL, INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        INFINIRT_STREAM_CAPTURE_MODE_RELAXED}) {
    Problem problem(small_case(GetParam(), normgrad::DType::kBF16));
    ASSERT_TRUE(problem.status().ok()) << problem.status().message();
    infinirtStream_t stream = nullptr;
    infinirtGraph_t graph = nullptr;
    infinirtGraphExec_t executable = nullptr;
    ASSERT_EQ(infinirtStreamCreate(&stream), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtStreamBeginCapture(stream, mode), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(problem.compute(stream), INFINI_STATUS_SUCCESS) << normgradGetLastError();
    ASSERT_EQ(infinirtStreamEndCapture(stream, &graph), INFINI_STATUS_SUCCESS)
        << normgradGetLastError();
    ASSERT_EQ(infinirtGraphInstantiate(&executable, graph, nullptr, nullptr, 0),
              INFINI_STATUS_SUCCESS);
    uint64_t first = 0;
    for (int replay = 0; replay < 3; ++replay) {
      problem.mirror().upload();  // the host's outputs are NaN at first, then what they should be
      ASSERT_EQ(infinirtGraphLuanch(executable, stream), INFINI_STATUS_SUCCESS);
      ASSERT_EQ(infinirtStreamSynchronize(stream), INFINI_STATUS_SUCCESS);
      problem.expect_right();
      if (replay == 0) first = problem.hash();
      EXPECT_EQ(problem.hash(), first);
    }
    // Other data in the same places.
    const normgrad::Buffers& device = problem.mirror().buffers();
    const Case c = small_case(GetParam(), normgrad::DType::kBF16);
    size_t bytes = 2;
    for (const int64_t extent : c.shape) bytes *= static_cast<size_t>(extent);
    ASSERT_EQ(infinirtMemset(const_cast<void*>(device.dy), 0, bytes), INFINI_STATUS_SUCCESS);
    ASSERT_EQ(infinirtGraphLuanch(executable, nullptr), INFINI_STATUS_SUCCESS);
    std::vector<uint16_t> dx(bytes / 2, 1);
    ASSERT_EQ(infinirtMemcpy(dx.data(), device.dx, bytes, INFINIRT_MEMCPY_D2H),
              INFINI_STATUS_SUCCESS);
    EXPECT_TRUE(
        std::all_of(dx.begin(), dx.end(), [](uint16_t value) { return (value & 0x7FFF) == 0; }));
    EXPECT_EQ(infinirtGraphExecDestroy(executable), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtGraphDestroy(graph), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infinirtStreamDestroy(stream), INFINI_STATUS_SUCCESS);
  }
}

TEST_P(OnNvidiaTable, RefusedCallsWriteNothing) {
  Problem problem(small_case(GetParam(), normgrad::DType::kF32));
  ASSERT_TRUE(problem.status().ok()) << problem.status().message();
  const uint64_t before = problem.hash();
  if (problem.workspace_size() > 0) {
    EXPECT_EQ(problem.compute_with_less(), INFINI_STATUS_INSUFFICIENT_WORKSPACE);
  }
  EXPECT_EQ(problem.hash(), before);
  ASSERT_EQ(problem.compute(), INFINI_STATUS_SUCCESS) << normgradGetLastError();
  problem.expect_right();
}

INSTANTIATE_TEST_SUITE_P(Operators, OnNvidiaTable,
                         testing::Values(normgrad::reference::Op::kLayerNorm,
                                         normgrad::reference::Op::kRmsNorm,
                                         normgrad::reference::Op::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST_F(OnNvidia, HandlesAndDescriptorsKnowTheirDevice) {
  Problem problem(small_case(normgrad::reference::Op::kLayerNorm, normgrad::DType::kF32));
  ASSERT_TRUE(problem.status().ok()) << problem.status().message();
  infiniDevice_t device = INFINI_DEVICE_CPU;
  int id = -1;
  EXPECT_EQ(infiniopGetDescriptorDeviceType(problem.desc(), &device), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(infiniopGetDescriptorDeviceId(problem.desc(), &id), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(device, INFINI_DEVICE_NVIDIA);
  EXPECT_EQ(id, 0);
  // The descriptor says where it runs, not infinirt's current device.
  ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(problem.compute(), INFINI_STATUS_SUCCESS) << normgradGetLastError();
  problem.expect_right();
  // On the CPU everything is as ever.
  Instance host(small_case(normgrad::reference::Op::kLayerNorm, normgrad::DType::kF32));
  const Translated t = translate(host.call(), host.buffers());
  Descriptor desc = nullptr;
  size_t size = 0;
  const Status status = prepare(t, desc, size);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<char> workspace(size);
  EXPECT_EQ(compute(t.op, desc, workspace.data(), size, t.pointers), INFINI_STATUS_SUCCESS);
  EXPECT_TRUE(host.check().ok);
  EXPECT_EQ(infiniopGetDescriptorDeviceType(desc, &device), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(device, INFINI_DEVICE_CPU);
  EXPECT_EQ(destroy(t.op, desc), INFINI_STATUS_SUCCESS);
}

TEST_F(OnNvidia, AThreadThatSelectedNothingRunsOnGpu0) {
  Problem problem(small_case(normgrad::reference::Op::kRmsNorm, normgrad::DType::kF16));
  ASSERT_TRUE(problem.status().ok()) << problem.status().message();
  std::thread([&] {
    EXPECT_EQ(problem.compute(), INFINI_STATUS_SUCCESS) << normgradGetLastError();
  }).join();
  problem.expect_right();
}

TEST_F(OnNvidia, AWrongNumberHasNoHandle) {
  (void)infinirtSetDevice(INFINI_DEVICE_NVIDIA, 1000);
  infiniopHandle_t handle = reinterpret_cast<infiniopHandle_t>(this);
  EXPECT_EQ(infiniopCreateHandle(&handle), INFINI_STATUS_DEVICE_NOT_FOUND);
  EXPECT_EQ(handle, nullptr);
  EXPECT_NE(std::string(normgradGetLastError()).find("handle"), std::string::npos);
}

TEST_F(OnNvidia, AnotherGpuIsRefused) {
  if (normgrad::cuda::device_count() < 2) GTEST_SKIP() << "one device only";
  Problem problem(small_case(normgrad::reference::Op::kLayerNorm, normgrad::DType::kF32));
  ASSERT_TRUE(problem.status().ok()) << problem.status().message();
  ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 1), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(problem.compute(), INFINI_STATUS_BAD_PARAM);
  EXPECT_NE(std::string(normgradGetLastError()).find("NVIDIA device 0"), std::string::npos);
  ASSERT_EQ(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0), INFINI_STATUS_SUCCESS);
}

}  // namespace
}  // namespace infini_test
