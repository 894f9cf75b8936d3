// aclnnLayerNormBackward computes what the document says: the case table, every mask with every
// combination of dtypes and layouts, all ranks, empty tensors. Layouts and front ends change no
// bit.
#include <gtest/gtest.h>

#include <string>

#include "aclnn_layer_norm.hpp"
#include "infini_call.hpp"

namespace acl_test {
namespace {

class AclnnTable : public testing::TestWithParam<normgrad::reference::Op> {};

// The cases that aclnn has words for: within the bounds, and the bits of the native API.
TEST_P(AclnnTable, IsWithinTheBoundsAndEqualsTheNativeApi) {
  int expressible = 0;
  for (normgrad::reference::Case& c : normgrad::reference::cases(GetParam(), false)) {
    SCOPED_TRACE(c.name);
    // RmsNormGrad has these in FLOAT, whatever x is.
    if (c.op == normgrad::reference::Op::kRmsNorm) c.statistics_dtype = c.params = DType::kF32;
    normgrad::reference::Instance aclnn(c);
    if (!translate(aclnn.call(), aclnn.buffers())) continue;
    ++expressible;
    const Status status = run_aclnn(aclnn.call(), aclnn.buffers());
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) continue;
    const normgrad::reference::Instance::Report report = aclnn.check();
    EXPECT_TRUE(report.ok) << report.why;

    normgrad::reference::Instance native(c);
    const Status expected = normgrad::reference::run_native(native.call(), native.buffers());
    ASSERT_TRUE(expected.ok()) << expected.message();
    EXPECT_EQ(aclnn.hash(), native.hash());
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

INSTANTIATE_TEST_SUITE_P(Cases, AclnnTable,
                         testing::Values(normgrad::reference::Op::kLayerNorm,
                                         normgrad::reference::Op::kRmsNorm,
                                         normgrad::reference::Op::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase(name, '_');
                           return name;
                         });

// Small enough to check by hand, with memory and a stream of the runtime as programs have them.
TEST(AclnnLayerNorm, GivesTheNumbersOfTheExample) {
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  const std::vector<std::vector<float>> host = {{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3}, {4, 5}, {1, 1},
                                                {0, 0},       {0, 0, 0, 0}, {0, 0}, {0, 0}};
  Call call = {.op = Op::kLayerNorm, .tensors = {}, .normalized_shape = Shape{2}};
  for (size_t i = 0; i < host.size(); ++i) {
    const size_t bytes = host[i].size() * sizeof(float);
    View view = {ACL_FLOAT, host[i].size() == 4 ? Shape{2, 2} : Shape{2}};
    if (i == kMean || i == kRstd) view.shape = {2, 1};
    ASSERT_EQ(aclrtMalloc(&view.base, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpy(view.base, bytes, host[i].data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE), 0);
    call.tensors.push_back(view);
  }
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  {
    const Objects objects(call);
    ASSERT_EQ(phase_1(call, objects, &size, &executor), ACL_SUCCESS) << last_message();
    void* workspace = nullptr;
    ASSERT_EQ(aclrtMalloc(&workspace, size + 1, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(phase_2(call.op, workspace, size, executor, stream), ACL_SUCCESS) << last_message();
    ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(workspace), ACL_SUCCESS);
  }
  const std::vector<float> expected[] = {{-2, -94, -877.5, -1747.5}, {20, 62}, {6, 8}};
  for (size_t i = 0; i < 3; ++i) {
    std::vector<float> result(expected[i].size());
    const size_t bytes = result.size() * sizeof(float);
    ASSERT_EQ(aclrtMemcpy(result.data(), bytes, call.tensors[kGradInput + i].base, bytes,
                          ACL_MEMCPY_DEVICE_TO_HOST),
              ACL_SUCCESS);
    EXPECT_EQ(result, expected[i]);
  }
  for (const View& view : call.tensors) EXPECT_EQ(aclrtFree(view.base), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
}

// 8 masks x 3 input x 3 statistics x 3 weight x 27 output dtypes, each in six layouts.
class AclnnProduct : public testing::TestWithParam<DType> {};

TEST_P(AclnnProduct, EveryMaskDTypeAndLayout) {
  Problem problem;
  problem.data = GetParam();
  unsigned turn = 0;
  const auto check_all_outputs = [&] {
    const Gradients ref = LayerNorm(problem, kDense).oracle();
    for (unsigned i = 0; i < 8 * 27; ++i) {
      problem.mask = i / 27;
      problem.outputs = {kDTypes[i % 3], kDTypes[i / 3 % 3], kDTypes[i / 9 % 3]};
      const bool null_outputs = turn & 1, bias = turn & 2;
      ++turn;
      const LayerNorm dense(problem, kDense);
      const Status status = dense.run(null_outputs, bias);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(dense.wrong(ref), "") << "mask " << problem.mask << ", output dtypes " << i % 27;
      for (const Layout& layout : kLayouts) {
        const LayerNorm other(problem, layout);
        const Status again = other.run(null_outputs, bias);
        ASSERT_TRUE(again.ok()) << layout.name << ": " << again.message();
        ASSERT_EQ(other.wrong(ref, &dense), "")
            << layout.name << ", mask " << problem.mask << ", output dtypes " << i % 27;
      }
    }
  };
  for (DType statistics : kDTypes) {
    problem.mean = problem.rstd = statistics;
    for (std::optional<DType> weight : {std::optional<DType>(), {problem.data}, {DType::kF32}}) {
      problem.weight = weight;
      SCOPED_TRACE(std::string("statistics ") + name_of(statistics) + ", weight " +
                   (weight ? name_of(*weight) : "absent"));
      check_all_outputs();
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Input, AclnnProduct, testing::ValuesIn(kDTypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(AclnnLayerNorm, MeanAndRstdMayHaveDifferentDTypes) {
  for (DType data : kDTypes) {
    for (DType mean : kDTypes) {
      for (DType rstd : kDTypes) {
        const Problem problem = {.data = data, .mean = mean, .rstd = rstd};
        const LayerNorm dense(problem, kDense), mixed(problem, kLayouts[4]);
        const Gradients ref = dense.oracle();
        for (const LayerNorm* run : {&dense, &mixed}) {
          const Status status = run->run();
          ASSERT_TRUE(status.ok()) << name_of(mean) << " " << name_of(rstd) << status.message();
          EXPECT_EQ(run->wrong(ref, &dense), "") << name_of(mean) << " " << name_of(rstd);
        }
      }
    }
  }
}

// Ranks 1 to 8, any number of normalized axes, the statistics as [A], [A, 1...] and [M], and the
// parameter gradients as [R] and [N]: the same bits.
TEST(AclnnLayerNorm, EveryRankAndShapeOfStatistics) {
  const Shape full = {2, 1, 3, 2, 1, 2, 2, 5};
  for (size_t rank = 1; rank <= 8; ++rank) {
    for (size_t normalized = 1; normalized <= rank; ++normalized) {
      SCOPED_TRACE(std::to_string(rank) + " axes, " + std::to_string(normalized) + " normalized");
      Problem problem = {.shape = {full.end() - static_cast<std::ptrdiff_t>(rank), full.end()},
                         .normalized = normalized};
      Shape leading(problem.shape.begin(), problem.shape.end() - problem.row().size());
      problem.statistics = leading;  // of rank 0 when everything is normalized
      problem.parameters = problem.row();
      const LayerNorm dense(problem, kDense);
      const Gradients ref = dense.oracle();
      ASSERT_TRUE(dense.run().ok());
      ASSERT_EQ(dense.wrong(ref), "");
      Shape ones = leading;
      ones.resize(rank, 1);
      for (const Shape& statistics : {leading, ones, {problem.rows()}}) {
        problem.statistics = statistics;
        for (const Shape& parameters : {problem.row(), {product(problem.row())}}) {
          problem.parameters = parameters;
          for (const Layout& layout : kLayouts) {
            const LayerNorm other(problem, layout);
            const Status status = other.run();
            ASSERT_TRUE(status.ok()) << layout.name << ": " << status.message();
            ASSERT_EQ(other.wrong(ref, &dense), "") << layout.name;
          }
        }
      }
    }
  }
}

// The gradient of a sum arrives as one number, expanded.
TEST(AclnnLayerNorm, InputsMayBeBroadcast) {
  const Problem problem;
  for (int which : {kGradOut, kInput, kMean, kRstd, kWeight}) {
    LayerNorm run(problem, kDense);
    Tensor expanded = run[which].tensor();
    expanded.strides.assign(expanded.shape.size(), 0);
    run[which] = Array(expanded, run[which].values());
    const Status status = run.run();
    ASSERT_TRUE(status.ok()) << which << ": " << status.message();
    EXPECT_EQ(run.wrong(run.oracle()), "") << which;
  }
}

TEST(AclnnLayerNorm, GradInputMayBeGradOutOrInput) {
  for (const Layout& layout : kLayouts) {
    if (layout.input != layout.grad_input) continue;
    for (int place : {kGradOut, kInput}) {
      const LayerNorm apart({}, layout), in_place({}, layout);
      ASSERT_TRUE(apart.run().ok());
      Call call = in_place.call(true, false);
      call.tensors[kGradInput] = call.tensors[static_cast<size_t>(place)];
      const Status status = run(call);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(in_place[place].values(), apart[kGradInput].values()) << layout.name;
      EXPECT_TRUE(in_place[place].intact() && in_place[kGradInput].unwritten());
      EXPECT_EQ(in_place[kGradWeight].values(), apart[kGradWeight].values());
    }
  }
}

TEST(AclnnLayerNorm, AnAbsentWeightIsOnes) {
  for (DType data : kDTypes) {
    for (DType weight : {data, DType::kF32}) {
      Problem problem = {.data = data, .weight = weight, .outputs = {data, data, data}};
      LayerNorm ones(problem, kDense);
      ones[kWeight] = Array(ones[kWeight].tensor(), std::vector<double>(20, 1));
      problem.weight.reset();
      const LayerNorm absent(problem, kDense);
      ASSERT_TRUE(ones.run().ok() && absent.run().ok());
      EXPECT_EQ(absent.wrong(ones.oracle(), &ones), "");
    }
  }
}

// No rows: the sums over them are 0. No columns: there is nothing to write.
TEST(AclnnLayerNorm, EmptyTensors) {
  const struct {
    Shape shape, statistics;
    size_t normalized;
  } cases[] = {{{0, 3, 4, 5}, {0, 3, 1, 1}, 2},
               {{2, 0, 5}, {2, 0}, 1},
               {{0, 4}, {0}, 1},
               {{2, 3, 0}, {2, 3, 1}, 1},
               {{2, 0, 4}, {2}, 2},
               {{0}, {1}, 1},
               {{0, 0}, {0}, 1}};
  for (const auto& c : cases) {
    for (unsigned i = 0; i < 3 * 8 * 2; ++i) {
      const DType dtype = kDTypes[i % 3];
      Problem problem = {.shape = c.shape,
                         .normalized = c.normalized,
                         .data = dtype,
                         .outputs = {dtype, dtype, dtype},
                         .mask = i / 3 % 8,
                         .statistics = c.statistics};
      problem.parameters = problem.row();
      const LayerNorm empty(problem, i % 2 ? kDense : kLayouts[0]);
      Call call = empty.call(i % 2, true);
      for (View& view : call.tensors) {  // pointers of empty tensors may be null
        if (i >= 24 && product(view.shape) == 0) view.base = nullptr;
      }
      uint64_t size = 0;
      const Status status = run(call, &size);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(empty.wrong(empty.oracle()), "");
      for (int output : {kGradWeight, kGradBias}) {
        if (!empty.wanted(output)) continue;
        EXPECT_EQ(empty[output].values(),
                  std::vector<double>(static_cast<size_t>(product(problem.row())), 0));
      }
    }
  }
}

TEST(AclnnLayerNorm, AMaskOfNothingNeedsNoWorkspace) {
  const LayerNorm nothing({.mask = 0}, kLayouts[2]);
  for (bool null_outputs : {false, true}) {
    uint64_t size = 1;
    const Status status = run(nothing.call(null_outputs, true), &size);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(size, 0u);
    EXPECT_EQ(nothing.wrong({}), "");
  }
}

// InfiniOP is given x_hat and the standard deviation: with mean 0 and rstd 1 those are the input
// and 1, and both front ends have the same information.
TEST(AclnnLayerNorm, EqualsInfiniOpWhereItSaysTheSame) {
  namespace infini = infini_test;
  for (size_t d = 0; d < 3; ++d) {
    const DType dtype = kDTypes[d];
    const Problem problem = {.shape = {3, 4, 37},
                             .normalized = 1,
                             .data = dtype,
                             .mean = dtype,
                             .rstd = dtype,
                             .weight = dtype,
                             .outputs = {dtype, dtype, dtype},
                             .statistics = {3, 4},
                             .parameters = {37}};
    LayerNorm aclnn(problem, kDense), other(problem, kDense);
    for (LayerNorm* run : {&aclnn, &other}) {
      (*run)[kMean] = Array((*run)[kMean].tensor(), std::vector<double>(12, 0));
      (*run)[kRstd] = Array((*run)[kRstd].tensor(), std::vector<double>(12, 1));
    }
    ASSERT_TRUE(aclnn.run().ok());

    infini::Tensors tensors;
    infini::Pointers pointers;
    for (int i : {kGradInput, kGradWeight, kGradBias, kGradOut, kWeight, kInput, kRstd}) {
      const Shape& shape = other[i].tensor().shape;
      tensors.push_back(infini::make({infini::kDtypes[d], {shape.begin(), shape.end()}}));
      pointers.push_back(other[i].data());
    }
    infiniopHandle_t handle = nullptr;
    infini::Descriptor desc = nullptr;
    size_t size = 0;
    ASSERT_EQ(infiniopCreateHandle(&handle), 0);
    ASSERT_EQ(infini::create(infini::Op::kLayerNorm, handle, &desc, tensors), 0);
    ASSERT_EQ(infini::workspace_size(infini::Op::kLayerNorm, desc, &size), 0);
    std::vector<char> workspace(size + 1);
    ASSERT_EQ(infini::compute(infini::Op::kLayerNorm, desc, workspace.data(), size, pointers), 0);
    for (auto tensor : tensors) EXPECT_EQ(infiniopDestroyTensorDescriptor(tensor), 0);
    EXPECT_EQ(infini::destroy(infini::Op::kLayerNorm, desc), 0);
    EXPECT_EQ(infiniopDestroyHandle(handle), 0);
    EXPECT_EQ(aclnn.wrong(aclnn.oracle(), &other), "") << name_of(dtype);
  }
}

}  // namespace
}  // namespace acl_test
