// Every wrong call of the other operators of aclnn, one thing wrong at a time: each argument in
// turn null, of a wrong dtype, shape, layout or address. Then the wrong uses of an executor.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>

#include "aclnn_spoiled_call.hpp"

namespace acl_test {
namespace {

struct Variant {
  const char* name;
  Op op;
  bool training = true;
};
constexpr Variant kVariants[] = {{"ForwardLayerNorm", Op::kForwardLayerNorm},
                                 {"ForwardRmsNorm", Op::kForwardRmsNorm},
                                 {"RmsNorm", Op::kRmsNorm},
                                 {"AddLayerNorm", Op::kAddLayerNorm},
                                 {"BatchNorm", Op::kBatchNorm},
                                 {"FrozenBatchNorm", Op::kBatchNorm, false},
                                 {"Reduce", Op::kReduce},
                                 {"Elemt", Op::kElemt}};

// The statistics of the other mode.
bool of_another_mode(const Variant& v, const std::string& name) {
  return v.op == Op::kBatchNorm && name.starts_with(v.training ? "running" : "save");
}

// Absent here means null is right.
bool optional(const Variant& v, const std::string& name) {
  return of_another_mode(v, name) || name == "weight" || name.ends_with("Optional");
}

// The arguments that take part, by name.
std::vector<std::string> used(const Variant& v) {
  std::vector<std::string> all;
  for (const std::string& name : names(v.op)) {
    const bool unread = v.op == Op::kReduce && name == "weight";
    if (!unread && !of_another_mode(v, name)) all.push_back(name);
  }
  return all;
}

bool writes(const Variant& v, const std::string& name) {
  return is_output(name) || (v.op == Op::kReduce && name.starts_with("sum"));
}

std::vector<int64_t> dense(const View& view) {
  return normgrad::reference::strides_of({DType::kF32, view.shape});
}

void add_normalized_shapes(List& list) {
  list.push_back({"normalizedShape_null", 0, kNullPointer, {"normalizedShape"}, [](Spoiled& s) {
                    s.call.normalized_shape.reset();
                  }});
  int i = 0;
  for (const Shape& bad : {Shape{}, {9, 5}, {4, 6}, {5}, {3, 2, 4, 5, 1}, Shape(9, 1)}) {
    list.push_back({"normalizedShape_" + std::to_string(i++),
                    0,
                    kInvalid,
                    {"normalizedShape", "weightOptional"},
                    [=](Spoiled& s) { s.call.normalized_shape = bad; }});
  }
}

void add_objects(const Variant& v, List& list) {
  list.push_back(
      {"size_null", 0, kNullPointer, {"workspaceSize"}, [](Spoiled& s) { s.null_size = true; }});
  list.push_back(
      {"executor_null", 0, kNullPointer, {"executor"}, [](Spoiled& s) { s.null_executor = true; }});
  for (const std::string& name : names(v.op)) {
    const bool right = optional(v, name);
    list.push_back({name + "_null",
                    0,
                    right ? ACL_SUCCESS : kNullPointer,
                    {name},
                    [=](Spoiled& s) {
                      s[name] = kAbsent;
                      // With a bias, mean and out of this call are what was there before.
                      if (name == "rstdOutOptional") s["biasOptional"] = kAbsent;
                    },
                    right ? Phase::kAccepted : Phase::kFirst});
  }
  const bool layer = v.op == Op::kForwardLayerNorm || v.op == Op::kForwardRmsNorm;
  const double bad[] = {-1e-9, std::nan(""), std::numeric_limits<double>::infinity()};
  for (int i = 0; i < 3 && (layer || (v.op == Op::kBatchNorm && !v.training)); ++i) {
    list.push_back({"eps_" + std::to_string(i), 0, kInvalid, {"eps"}, [eps = bad[i]](Spoiled& s) {
                      s.call.eps = eps;
                    }});
  }
  if (v.op == Op::kForwardLayerNorm) add_normalized_shapes(list);
  if (v.op != Op::kBatchNorm) return;
  list.push_back({"outputMask_null", 0, kNullPointer, {"outputMask"}, [](Spoiled& s) {
                    s.call.mask.reset();
                  }});
  for (size_t length : {0, 2, 4}) {
    list.push_back(
        {"outputMask_" + std::to_string(length), 0, kInvalid, {"outputMask"}, [=](Spoiled& s) {
           s.call.mask = std::vector<char>(length, 1);
         }});
  }
}

void add_dtypes(const Variant& v, aclDataType dtype, List& list) {
  const auto add = [&](const std::string& name, aclDataType bad, std::vector<std::string> says) {
    list.push_back({name + "_dtype_" + std::to_string(bad + 1), 0, kInvalid, std::move(says),
                    [=](Spoiled& s) { s[name].dtype = bad; }});
  };
  for (const std::string& name : used(v)) {
    for (aclDataType bad : {ACL_DOUBLE, ACL_BOOL, ACL_INT64, ACL_DT_UNDEFINED}) {
      add(name, bad, {name});
    }
    if (name != "counter") add(name, ACL_INT32, {name});
  }
  const std::vector<std::string> pair = {names(v.op)[0], names(v.op)[1]};
  for (const std::string& name : pair) add(name, other(dtype), pair);
  if (v.op == Op::kElemt) add("counter", ACL_BF16, {"counter"});
  if (is_batch_norm(v.op)) return;
  for (const std::string& name : used(v)) {
    const bool free = v.op == Op::kForwardLayerNorm && role_of(v.op, name) == Role::kStatistic;
    if (free || name == pair[0] || name == pair[1]) continue;
    add(name, other(dtype), {name});  // what must be FLOAT becomes FLOAT16 or BF16
  }
}

void add_shapes(const Variant& v, List& list) {
  const std::string dy = names(v.op)[0], x = names(v.op)[1];
  for (const std::string& name : used(v)) {
    if (name == "counter") continue;
    const Role role = role_of(v.op, name);
    std::vector<std::string> says = {name};
    if (role == Role::kData) says = {name, dy, x};
    if (name == "gamma") says.push_back(x);
    const auto add = [&](const char* what, std::function<void(Shape&)> spoil) {
      list.push_back(
          {name + "_shape_" + what, 0, kInvalid, says, [=](Spoiled& s) { spoil(s[name].shape); }});
    };
    add("longer", [](Shape& shape) { ++shape.back(); });
    add("shorter", [](Shape& shape) { --shape.back(); });
    add("rank_9", [](Shape& shape) { shape.insert(shape.begin(), 9 - shape.size(), 1); });
    add("scalar", [](Shape& shape) { shape.clear(); });
    if (role == Role::kData) add("swapped", [](Shape& shape) { std::swap(shape[0], shape[1]); });
  }
  const auto all = [&](const char* what, const Shape& shape, int64_t rows) {
    list.push_back({std::string("all_shapes_") + what, 0, kInvalid, {""}, [=](Spoiled& s) {
                      for (const std::string& name : used(v)) {
                        const Role role = role_of(v.op, name);
                        if (role == Role::kData) s[name].shape = shape;
                        if (role == Role::kStatistic) s[name].shape = {rows};
                      }
                    }});
  };
  const int64_t huge = int64_t{1} << 60;
  if (!is_batch_norm(v.op)) {
    all("rank_9", {1, 1, 1, 1, 1, 3, 2, 4, 5}, 6);
    all("overflow", {huge, 2, 4, 5}, 2 * huge);
    all("shorter_than_gamma", {5}, 1);
    return;
  }
  all("rank_9", {3, 5, 4, 1, 1, 1, 1, 1, 1}, 0);
  all("rank_1", {5}, 0);
  all("overflow", {huge, 5, 4}, 0);
  all("negative", {-3, 5, 4}, 0);
  list.push_back({"no_channels", 0, kInvalid, {""}, [=](Spoiled& s) {
                    for (const std::string& name : used(v)) {
                      if (name != "counter") s[name].shape = {0};
                      if (role_of(v.op, name) == Role::kData) s[name].shape = {3, 0, 4};
                    }
                  }});
}

// The format says where the channels are; blocked ones, and those with channels elsewhere, do not
// go.
void add_formats(const Variant& v, List& list) {
  if (!is_batch_norm(v.op)) return;
  const auto all = [&](const char* what, aclFormat format, Phase phase) {
    list.push_back({std::string("all_formats_") + what,
                    0,
                    phase == Phase::kAccepted ? ACL_SUCCESS : kInvalid,
                    {"gradOut", "input", "gradInput"},
                    [=](Spoiled& s) {
                      for (const std::string& name : used(v)) {
                        if (role_of(v.op, name) == Role::kData) s[name].format = format;
                      }
                    },
                    phase});
  };
  all("NCL", ACL_FORMAT_NCL, Phase::kAccepted);
  all("NCHW", ACL_FORMAT_NCHW, Phase::kAccepted);
  all("HWCN", ACL_FORMAT_HWCN, Phase::kFirst);
  all("NC1HWC0", ACL_FORMAT_NC1HWC0, Phase::kFirst);
  all("FRACTAL_NZ", ACL_FORMAT_FRACTAL_NZ, Phase::kFirst);
  if (v.op != Op::kBatchNorm) all("NHWC", ACL_FORMAT_NHWC, Phase::kFirst);
  list.push_back({"gradOut_format_NHWC", 0, kInvalid, {"gradOut"}, [](Spoiled& s) {
                    s["gradOut"].format = ACL_FORMAT_NHWC;
                  }});
}

void add_layouts(const Variant& v, List& list) {
  for (const std::string& name : used(v)) {
    if (name == "counter") continue;
    const auto add = [&](const char* what, std::function<int64_t(int64_t)> change) {
      list.push_back({name + "_strides_" + what, 0, kInvalid, {name}, [=](Spoiled& s) {
                        s[name].strides = dense(s[name]);
                        s[name].strides[0] = change(s[name].strides[0]);
                      }});
    };
    add("negative", [](int64_t stride) { return -stride; });
    add("overflow", [](int64_t) { return INT64_MAX / 2; });
    if (!writes(v, name)) continue;
    add("zero", [](int64_t) { return 0; });
    if (role_of(v.op, name) == Role::kData) {
      add("overlapping", [](int64_t stride) { return stride - 1; });
    }
  }
}

void add_addresses(const Variant& v, List& list) {
  const std::vector<std::string> all = used(v);
  for (const std::string& name : all) {
    add_bad_pointers(name, list);
    if (!writes(v, name)) continue;
    for (const std::string& input : all) {
      if (input == name) continue;
      const bool in_place = role_of(v.op, name) == Role::kData &&
                            role_of(v.op, input) == Role::kData && !writes(v, input);
      // Their sum is made before anything is written.
      const bool is_term = input == "x1" || input == "x2";
      const auto on = [&](const char* how, int64_t bytes, bool right) {
        list.push_back(
            {name + how + input,
             0,
             right ? ACL_SUCCESS : kInvalid,
             {name, input},
             [=](Spoiled& s) { s[name].base = static_cast<char*>(s[input].base) + bytes; },
             right ? Phase::kAccepted : Phase::kSecond});
      };
      on("_on_", 0, in_place || is_term);
      on("_overlaps_", 4, is_term);
    }
  }
}

// Only where the operator needs a workspace.
void add_workspace(const Variant& v, List& list) {
  const auto add = [&](const char* name, aclnnStatus status, auto spoil) {
    list.push_back({std::string("workspace_") + name,
                    0,
                    status,
                    {"workspace"},
                    [=](Spoiled& s) { s.workspace = spoil; },
                    Phase::kSecond});
  };
  add("too_small", kInvalid, [](void*&, uint64_t& size) { --size; });
  add("null", kNullPointer, [](void*& at, uint64_t&) { at = nullptr; });
  for (const std::string& name : used(v)) {
    list.push_back({"workspace_on_" + name,
                    0,
                    kInvalid,
                    {"workspace"},
                    [=](Spoiled& s) {
                      // The size that is given may be any above the size needed.
                      s.workspace = [base = s[name].base](void*& at, uint64_t& size) {
                        at = base;
                        size = UINT64_MAX;
                      };
                    },
                    Phase::kSecond});
  }
}

bool needs_workspace(const Variant& v, aclDataType dtype) {
  const Spoiled right(v.op, dtype, v.training);
  const Objects objects(right.call);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  EXPECT_EQ(phase_1(right.call, objects, &size, &executor), ACL_SUCCESS) << last_message();
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS);
  return size > 0;
}

struct Parameter {
  Variant variant;
  aclDataType dtype;
  Wrong wrong;
};

void PrintTo(const Parameter& parameter, std::ostream* out) { *out << parameter.wrong.name; }

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const Variant& variant : kVariants) {
    for (aclDataType dtype : kDTypes) {
      List list = {{"nothing", 0, ACL_SUCCESS, {}, [](Spoiled&) {}, Phase::kAccepted}};
      add_objects(variant, list);
      add_dtypes(variant, dtype, list);
      add_shapes(variant, list);
      add_formats(variant, list);
      add_layouts(variant, list);
      add_addresses(variant, list);
      if (needs_workspace(variant, dtype)) add_workspace(variant, list);
      for (const Wrong& wrong : list) all.push_back({variant, dtype, wrong});
    }
  }
  return all;
}

class AclnnSiblingErrors : public testing::TestWithParam<Parameter> {};

TEST_P(AclnnSiblingErrors, AnswersAsDocumented) {
  const auto& [variant, dtype, wrong] = GetParam();
  Spoiled spoiled(variant.op, dtype, variant.training);
  expect_answer(spoiled, wrong);
}

std::string test_name(const testing::TestParamInfo<Parameter>& test) {
  const auto& [variant, dtype, wrong] = test.param;
  return std::string(variant.name) +
         (dtype == ACL_FLOAT     ? "_F32_"
          : dtype == ACL_FLOAT16 ? "_F16_"
                                 : "_BF16_") +
         wrong.name + (wrong.status ? "" : "_is_accepted");
}

INSTANTIATE_TEST_SUITE_P(Matrix, AclnnSiblingErrors, testing::ValuesIn(parameters()), test_name);

constexpr Op kOps[] = {Op::kLayerNorm, Op::kRmsNorm, Op::kAddLayerNorm,     Op::kBatchNorm,
                       Op::kReduce,    Op::kElemt,   Op::kForwardLayerNorm, Op::kForwardRmsNorm};

// An executor belongs to one operator and one run.
class AclnnExecutorErrors : public testing::TestWithParam<Op> {
 protected:
  void SetUp() override {
    ASSERT_EQ(phase_1(spoiled_.call, objects_, &size_, &executor_), ACL_SUCCESS) << last_message();
    workspace_.resize(size_ + 1);
  }
  void TearDown() override { (void)aclDestroyAclOpExecutor(executor_); }

  void expect_refused(aclnnStatus expected, const char* says, Op op, aclOpExecutor* executor,
                      aclrtStream stream = nullptr) {
    const std::vector<unsigned char> before = spoiled_.memory;
    EXPECT_EQ(phase_2(op, workspace_.data(), size_, executor, stream), expected);
    const std::string message = last_message();
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_EQ(spoiled_.memory, before);
  }

  Spoiled spoiled_{GetParam(), ACL_FLOAT};
  Objects objects_{spoiled_.call};
  uint64_t size_ = 0;
  aclOpExecutor* executor_ = nullptr;
  std::vector<char> workspace_;
};

TEST_P(AclnnExecutorErrors, NullOrUnknownIsRefused) {
  char unknown[64] = {};
  expect_refused(kNullPointer, "executor", GetParam(), nullptr);
  expect_refused(kInvalid, "executor", GetParam(), reinterpret_cast<aclOpExecutor*>(unknown));
}

TEST_P(AclnnExecutorErrors, RunsOnce) {
  EXPECT_EQ(phase_2(GetParam(), workspace_.data(), size_, executor_), ACL_SUCCESS);
  expect_refused(kInvalid, "executor", GetParam(), executor_);
}

TEST_P(AclnnExecutorErrors, OfAnotherOperatorIsRefused) {
  for (Op op : kOps) {
    if (op != GetParam()) expect_refused(kInvalid, "executor", op, executor_);
  }
}

TEST_P(AclnnExecutorErrors, DestroyedIsRefused) {
  EXPECT_EQ(aclDestroyAclOpExecutor(executor_), ACL_SUCCESS);
  expect_refused(kInvalid, "executor", GetParam(), executor_);
}

TEST_P(AclnnExecutorErrors, ADestroyedStreamIsRefused) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  expect_refused(361001, "stream", GetParam(), executor_, stream);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
}

TEST_P(AclnnExecutorErrors, IsGoneAfterANullWorkspace) {
  EXPECT_EQ(phase_2(GetParam(), nullptr, size_ + 1, executor_), kNullPointer);
  expect_refused(kInvalid, "executor", GetParam(), executor_);
}

INSTANTIATE_TEST_SUITE_P(Operators, AclnnExecutorErrors, testing::ValuesIn(kOps));

}  // namespace
}  // namespace acl_test
