// One engine, many dialects: the same information through the native API, InfiniOP, aclnn and graph
// mode gives the same bits. Statistics that one dialect cannot say are chosen so that it need not:
// with mean 0 and rstd 1 x is x_hat, and variances that are powers of 4 have an exact rstd.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "acl_call.hpp"
#include "ge_table_call.hpp"
#include "infini_call.hpp"

namespace {

using normgrad::BatchNormBackward;
using normgrad::Buffers;
using normgrad::DType;
using normgrad::LayerNormBackward;
using normgrad::RmsNormBackward;
using normgrad::Statistics;
using normgrad::Status;
using normgrad::Tensor;
using normgrad::reference::Case;
using normgrad::reference::Instance;
using normgrad::reference::Op;
using normgrad::reference::run_native;

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
using Bytes = std::vector<std::byte>;
using Shape = std::vector<int64_t>;

class Engine : public testing::Environment {
  void SetUp() override {
    ASSERT_EQ(ge::GEInitialize(ge_test::Options()), ge::SUCCESS);
    ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
    EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS);
  }
};
const testing::Environment* const kEngine = testing::AddGlobalTestEnvironment(new Engine);

// A way to run a call that is given in the words of the native API.
template <class C>
struct Door {
  const char* name;
  std::function<Status(const C& call, const Buffers& buffers)> run;
};

// The bytes of dx, dgamma and dbeta, as far as the call has them.
template <class C>
std::vector<Bytes> outputs(const C& c, const Buffers& b) {
  std::vector<Bytes> all;
  const auto add = [&](const std::optional<Tensor>& tensor, const void* data) {
    if (!tensor) return;
    const size_t size =
        static_cast<size_t>(normgrad::reference::count(*tensor)) * size_of(tensor->dtype);
    const std::byte* first = static_cast<const std::byte*>(data);
    all.emplace_back(first, first + size);
  };
  add(c.dx, b.dx);
  add(c.dgamma, b.dgamma);
  if constexpr (requires { c.dbeta; }) add(c.dbeta, b.dbeta);
  return all;
}

// Runs the case through every door, on the same data, which `prepare` may change before.
template <class C>
void expect_same_bits(
    const Case& c, const std::vector<Door<C>>& doors,
    const std::function<void(const C&, const Buffers&)>& prepare = [](const C&, const Buffers&) {
    }) {
  std::vector<Bytes> expected;
  for (const Door<C>& door : doors) {
    SCOPED_TRACE(door.name);
    const Instance instance(c);
    const C& call = std::get<C>(instance.call());
    prepare(call, instance.buffers());
    const Status status = door.run(call, instance.buffers());
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<Bytes> result = outputs(call, instance.buffers());
    for (const Bytes& bytes : result) EXPECT_FALSE(normgrad::reference::poisoned(bytes));
    if (expected.empty()) expected = result;
    EXPECT_TRUE(result == expected);
  }
}

template <class C>
Door<C> native() {
  return {"native", [](const C& c, const Buffers& b) { return run_native(c, b); }};
}
template <class C>
Door<C> aclnn() {
  return {"aclnn", [](const C& c, const Buffers& b) { return acl_test::run_aclnn(c, b); }};
}
template <class C>
Door<C> graph() {
  return {"graph", [](const C& c, const Buffers& b) { return ge_test::run_graph(c, b); }};
}

// Elements of an operand, all the same or taken in turns.
void fill(const Tensor& tensor, const void* data, const std::vector<double>& turns) {
  std::vector<double> values(static_cast<size_t>(normgrad::reference::count(tensor)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = turns[i % turns.size()];
  normgrad::reference::scatter(tensor, const_cast<void*>(data), values);
}

// A small tensor of its own, to stand in for one of the call.
struct Stand {
  Stand(DType dtype, const Shape& shape, const std::vector<double>& turns)
      : tensor{dtype, shape},
        memory(static_cast<size_t>(normgrad::reference::count(tensor)) * size_of(dtype)) {
    fill(tensor, memory.data(), turns);
  }
  Tensor tensor;
  Bytes memory;
};

using Argument = std::pair<const Tensor*, const void*>;

Status run_infini(infini_test::Op op, const std::vector<Argument>& arguments,
                  const std::optional<infini_test::Extension>& extension = {}) {
  infini_test::Tensors tensors;
  infini_test::Pointers pointers;
  for (const auto& [tensor, data] : arguments) {
    const infiniDtype_t dtype = infini_test::kDtypes[static_cast<size_t>(tensor->dtype)];
    tensors.push_back(infini_test::make({dtype, {tensor->shape.begin(), tensor->shape.end()}}));
    pointers.push_back(const_cast<void*>(data));
  }
  infiniopHandle_t handle = nullptr;
  infini_test::Descriptor descriptor = nullptr;
  size_t size = 0;
  infiniStatus_t status = infiniopCreateHandle(&handle);
  if (status == 0) status = create(op, handle, &descriptor, tensors, extension);
  if (status == 0) status = workspace_size(op, descriptor, &size);
  Bytes workspace(size + 1);
  if (status == 0) status = compute(op, descriptor, workspace.data(), size, pointers);
  Status answer;
  if (status != 0) answer = Status(normgrad::Code::kInternal, normgradGetLastError());
  for (auto tensor : tensors) (void)infiniopDestroyTensorDescriptor(tensor);
  (void)destroy(op, descriptor);
  (void)infiniopDestroyHandle(handle);
  return answer;
}

// The same call with other statistics.
template <class C>
C with(C call, Statistics statistics) {
  call.statistics = statistics;
  return call;
}

Case base_case(Op op, const Shape& shape, DType dtype, Statistics statistics) {
  Case c;
  c.op = op;
  c.shape = shape;
  c.statistics = statistics;
  c.data = c.gamma = c.params = dtype;
  c.statistics_dtype = DType::kF32;
  return c;
}

struct Form {
  Shape shape;
  int axis = 1;  // how many are normalized, or which is that of the channels
};
const Form kRowForms[] = {{{5, 33}},        {{2, 3, 64}},   {{1, 1000}},  {{70, 257}},
                          {{37}},           {{300, 1}},     {{2, 20000}}, {{2, 3, 4, 5}, 2},
                          {{130, 7, 9}, 2}, {{3, 4, 10}, 3}};

// x_hat and the standard deviation, mean and rstd, mean and variance: all the same, with mean 0 and
// rstd 1.
TEST(FrontDoors, LayerNormOfStandardizedRows) {
  const Door<LayerNormBackward> x_hat = {"native, x_hat",
                                         [](LayerNormBackward c, const Buffers& b) {
                                           c.mean.reset();
                                           return run_native(with(c, Statistics::kXHatStd), b);
                                         }};
  const Door<LayerNormBackward> variance = {
      "native, variance", [](const LayerNormBackward& c, const Buffers& b) {
        return run_native(with(c, Statistics::kMeanVariance), b);
      }};
  const Door<LayerNormBackward> graph_variance = {
      "LayerNormGrad", [](const LayerNormBackward& c, const Buffers& b) {
        return ge_test::run_graph(with(c, Statistics::kMeanVariance), b);
      }};
  const Door<LayerNormBackward> infini = {
      "InfiniOP", [](const LayerNormBackward& c, const Buffers& b) {
        const Stand std_deviation(c.x.dtype, c.spread.shape, {1});
        return run_infini(infini_test::Op::kLayerNorm,
                          {{&*c.dx, b.dx},
                           {&*c.dgamma, b.dgamma},
                           {&*c.dbeta, b.dbeta},
                           {&c.dy, b.dy},
                           {&*c.gamma, b.gamma},
                           {&c.x, b.x},
                           {&std_deviation.tensor, std_deviation.memory.data()}});
      }};
  for (DType dtype : kDTypes) {
    for (const Form& form : kRowForms) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(form.shape[0]));
      std::vector<Door<LayerNormBackward>> doors = {
          native<LayerNormBackward>(), x_hat,         variance, aclnn<LayerNormBackward>(),
          graph<LayerNormBackward>(),  graph_variance};
      if (form.axis == 1 && form.shape.size() > 1) doors.push_back(infini);
      Case c = base_case(Op::kLayerNorm, form.shape, dtype, Statistics::kMeanRstd);
      c.normalized_axes = form.axis;
      expect_same_bits<LayerNormBackward>(c, doors,
                                          [](const LayerNormBackward& call, const Buffers& b) {
                                            fill(*call.mean, b.mean, {0});
                                            fill(call.spread, b.spread, {1});
                                          });
    }
  }
}

// Any statistics, in the words of aclnn and LayerNormGradV3, and of LayerNormGrad.
TEST(FrontDoors, LayerNorm) {
  for (DType dtype : kDTypes) {
    for (DType params : {dtype, DType::kF32}) {
      for (const Form& form : kRowForms) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(form.shape[0]));
        Case c = base_case(Op::kLayerNorm, form.shape, dtype, Statistics::kMeanRstd);
        c.normalized_axes = form.axis;
        c.params = params;
        expect_same_bits<LayerNormBackward>(
            c,
            {native<LayerNormBackward>(), aclnn<LayerNormBackward>(), graph<LayerNormBackward>()});
        c.statistics = Statistics::kMeanVariance;
        c.eps = 1e-5F;
        expect_same_bits<LayerNormBackward>(
            c, {native<LayerNormBackward>(), graph<LayerNormBackward>()});
      }
    }
  }
}

// Variances that are powers of 4 have an exact rstd.
TEST(FrontDoors, LayerNormFromVarianceOrRstd) {
  const Door<LayerNormBackward> variance = {
      "LayerNormGrad", [](const LayerNormBackward& c, Buffers b) {
        const Stand stand(DType::kF32, c.spread.shape, {1, 4, 0.25, 16});
        b.spread = stand.memory.data();
        return ge_test::run_graph(with(c, Statistics::kMeanVariance), b);
      }};
  for (DType dtype : kDTypes) {
    for (const Form& form : kRowForms) {
      Case c = base_case(Op::kLayerNorm, form.shape, dtype, Statistics::kMeanRstd);
      c.normalized_axes = form.axis;
      expect_same_bits<LayerNormBackward>(c,
                                          {native<LayerNormBackward>(), aclnn<LayerNormBackward>(),
                                           graph<LayerNormBackward>(), variance},
                                          [](const LayerNormBackward& call, const Buffers& b) {
                                            fill(call.spread, b.spread, {1, 0.5, 2, 0.25});
                                          });
    }
  }
}

TEST(FrontDoors, RmsNormWithGivenRstd) {
  for (DType dtype : kDTypes) {
    for (const Form& form : kRowForms) {
      Case c = base_case(Op::kRmsNorm, form.shape, dtype, Statistics::kMeanRstd);
      c.normalized_axes = form.axis;
      c.params = DType::kF32;
      expect_same_bits<RmsNormBackward>(
          c, {native<RmsNormBackward>(), aclnn<RmsNormBackward>(), graph<RmsNormBackward>()});
    }
  }
}

// With x = +-1 the mean of x^2 is 1, and so is rstd, given or not.
TEST(FrontDoors, RmsNormOfStandardizedRows) {
  const Door<RmsNormBackward> computed = {"native, rstd from x",
                                          [](RmsNormBackward c, const Buffers& b) {
                                            c.spread.reset();
                                            return run_native(c, b);
                                          }};
  const Door<RmsNormBackward> infini = {"InfiniOP", [](const RmsNormBackward& c, const Buffers& b) {
                                          return run_infini(infini_test::Op::kRmsNorm,
                                                            {{&*c.dx, b.dx},
                                                             {&*c.dgamma, b.dgamma},
                                                             {&c.dy, b.dy},
                                                             {&c.x, b.x},
                                                             {&*c.gamma, b.gamma}},
                                                            infini_test::Extension{});
                                        }};
  for (DType dtype : kDTypes) {
    for (const Form& form : kRowForms) {
      std::vector<Door<RmsNormBackward>> doors = {
          native<RmsNormBackward>(), computed, aclnn<RmsNormBackward>(), graph<RmsNormBackward>()};
      if (form.axis == 1 && form.shape.size() > 1) doors.push_back(infini);
      Case c = base_case(Op::kRmsNorm, form.shape, dtype, Statistics::kMeanRstd);
      c.normalized_axes = form.axis;
      c.params = DType::kF32;
      expect_same_bits<RmsNormBackward>(c, doors,
                                        [](const RmsNormBackward& call, const Buffers& b) {
                                          fill(call.x, b.x, {1, 1, -1, 1, -1});
                                          fill(*call.spread, b.spread, {1});
                                        });
    }
  }
}

const Form kChannelForms[] = {
    {{3, 5, 17}}, {{33, 8, 1}},   {{2, 3, 3136}},    {{70, 33, 4}},        {{1, 5, 1}},
    {{9, 5}},     {{4, 3, 5, 7}}, {{2, 3, 5, 4}, 3}, {{2, 3, 2, 3, 5}, 1}, {{2, 3, 2, 3, 5}, 4}};

// InfiniOP's entry point, or the extension if there is one; mean and variance of the call or of a
// stand-in.
Status run_infini(const BatchNormBackward& c, const Buffers& b, Argument variance,
                  const std::optional<infini_test::Extension>& extension) {
  return run_infini(infini_test::Op::kBatchNorm,
                    {{&*c.dx, b.dx},
                     {&*c.dgamma, b.dgamma},
                     {&*c.dbeta, b.dbeta},
                     {&c.x, b.x},
                     {&c.dy, b.dy},
                     {&*c.gamma, b.gamma},
                     {&c.mean, b.mean},
                     variance},
                    extension);
}

TEST(FrontDoors, BatchNormInTraining) {
  const Door<BatchNormBackward> infini = {
      "InfiniOP", [](const BatchNormBackward& c, const Buffers& b) {
        const Stand variance(DType::kF32, c.spread.shape, {1, 4, 0.25, 16});
        return run_infini(c, b, {&variance.tensor, variance.memory.data()},
                          infini_test::Extension{});
      }};
  for (DType dtype : kDTypes) {
    for (const Form& form : kChannelForms) {
      std::vector<Door<BatchNormBackward>> doors = {
          native<BatchNormBackward>(), aclnn<BatchNormBackward>(), graph<BatchNormBackward>()};
      Case c = base_case(Op::kBatchNorm, form.shape, dtype, Statistics::kMeanRstd);
      c.channel_axis = form.axis;
      expect_same_bits<BatchNormBackward>(c, doors);
      if (form.shape.size() == 3) doors.push_back(infini);
      expect_same_bits<BatchNormBackward>(c, doors,
                                          [](const BatchNormBackward& call, const Buffers& b) {
                                            fill(call.spread, b.spread, {1, 0.5, 2, 0.25});
                                          });
    }
  }
}

TEST(FrontDoors, BatchNormWithFrozenStatistics) {
  const Door<BatchNormBackward> infini = {
      "InfiniOP", [](const BatchNormBackward& c, const Buffers& b) {
        return run_infini(c, b, {&c.spread, b.spread}, infini_test::Extension{c.eps, true});
      }};
  for (DType dtype : kDTypes) {
    for (const Form& form : kChannelForms) {
      std::vector<Door<BatchNormBackward>> doors = {
          native<BatchNormBackward>(), aclnn<BatchNormBackward>(), graph<BatchNormBackward>()};
      if (form.shape.size() == 3) doors.push_back(infini);
      Case c = base_case(Op::kBatchNorm, form.shape, dtype, Statistics::kMeanVariance);
      c.channel_axis = form.axis;
      c.frozen = true;
      c.eps = 1e-5F;
      expect_same_bits<BatchNormBackward>(c, doors);
    }
  }
}

// InfiniOP's ordinary entry points have one dtype for everything and no epsilon.
TEST(FrontDoors, BatchNormFromTheVariance) {
  const Door<BatchNormBackward> infini = {"InfiniOP",
                                          [](const BatchNormBackward& c, const Buffers& b) {
                                            return run_infini(c, b, {&c.spread, b.spread}, {});
                                          }};
  for (DType dtype : kDTypes) {
    for (const Form& form : kChannelForms) {
      if (form.shape.size() != 3) continue;
      Case c = base_case(Op::kBatchNorm, form.shape, dtype, Statistics::kMeanVariance);
      c.statistics_dtype = dtype;
      expect_same_bits<BatchNormBackward>(c, {native<BatchNormBackward>(), infini});
    }
  }
}

}  // namespace
