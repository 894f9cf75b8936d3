// Every wrong call of aclnnLayerNormBackward, one thing wrong at a time: the exact code, a sentence
// that names the argument, and nothing changed. Rows are those of the validation order that CANN
// has: a call with two faults answers as the first one does.
#include <gtest/gtest.h>

#include <ostream>

#include "aclnn_spoiled_call.hpp"

namespace acl_test {
namespace {

// gradInputOut alone, without parameters: fewer tensors that could be wrong too.
void only_grad_input(Spoiled& s) {
  s.call.mask = {1, 0, 0};
  for (const char* name : {"weightOptional", "biasOptional", "gradWeightOut", "gradBiasOut"}) {
    s[name].absent = true;
  }
}

// Takes that back, for a fault in one of them that comes on top.
View& present(Spoiled& s, const std::string& name) {
  s.call.mask = {1, 1, 1};
  for (View& view : s.call.tensors) view.absent = false;
  return s[name];
}

void add_nulls(List& list) {
  list.push_back(
      {"size_null", 1, kNullPointer, {"workspaceSize"}, [](Spoiled& s) { s.null_size = true; }});
  list.push_back(
      {"executor_null", 1, kNullPointer, {"executor"}, [](Spoiled& s) { s.null_executor = true; }});
  for (const std::string name : {"gradOut", "input", "mean", "rstd"}) {
    list.push_back(
        {name + "_null", 3, kNullPointer, {name}, [=](Spoiled& s) { s[name] = kAbsent; }});
  }
  list.push_back({"normalizedShape_null", 3, kNullPointer, {"normalizedShape"}, [](Spoiled& s) {
                    s.call.normalized_shape.reset();
                  }});
  list.push_back({"outputMask_null", 3, kNullPointer, {"outputMask"}, [](Spoiled& s) {
                    s.call.mask.reset();
                  }});
  for (size_t length : {0, 1, 2, 4}) {
    list.push_back(
        {"outputMask_" + std::to_string(length), 4, kInvalid, {"outputMask"}, [=](Spoiled& s) {
           s.call.mask = std::vector<char>(length, 1);
         }});
  }
  const std::string outputs[] = {"gradInputOut", "gradWeightOut", "gradBiasOut"};
  for (size_t i = 0; i < 3; ++i) {
    list.push_back({outputs[i] + "_null", 5, kNullPointer, {outputs[i]}, [=](Spoiled& s) {
                      present(s, outputs[i]).absent = true;
                    }});
    list.push_back({outputs[i] + "_null_alone", 5, kNullPointer, {outputs[i]}, [=](Spoiled& s) {
                      s.call.mask = std::vector<char>(3, 0);
                      (*s.call.mask)[i] = 1;
                      s[outputs[i]] = kAbsent;
                    }});
  }
}

void add_dtypes(aclDataType dtype, List& list) {
  const auto add = [&](const std::string& name, int row, aclDataType bad, bool masked_off = false) {
    std::vector<std::string> says = {name};
    if (row == 7) says = {"gradOut", "input"};
    list.push_back({name + "_dtype_" + std::to_string(bad + 1) + (masked_off ? "_masked_off" : ""),
                    row, kInvalid, says, [=](Spoiled& s) {
                      present(s, name).dtype = bad;
                      if (masked_off) s.call.mask = std::vector<char>(3, 0);
                    }});
  };
  for (aclDataType bad : kBadDTypes) {
    for (const char* name : {"gradOut", "input", "mean", "rstd"}) add(name, 6, bad);
    add("weightOptional", 8, bad);
    add("biasOptional", 9, bad);
    for (const char* name : {"gradInputOut", "gradWeightOut", "gradBiasOut"}) {
      add(name, 10, bad);
      add(name, 10, bad, true);
    }
  }
  add("gradOut", 7, other(dtype));
  add("input", 7, other(dtype));
  add("weightOptional", 8, other(dtype));
}

void add_ranks(List& list) {
  const auto add = [&](const std::string& name, int row, std::vector<std::string> says,
                       std::function<void(Spoiled&)> spoil) {
    list.push_back({name, row, kInvalid, std::move(says), std::move(spoil)});
  };
  const Shape nine = {1, 1, 1, 1, 1, 3, 2, 4, 5}, nine_ones = {6, 1, 1, 1, 1, 1, 1, 1, 1};
  for (const std::string name : {"gradOut", "input", "gradInputOut"}) {
    add(name + "_rank_9", 11, {name}, [=](Spoiled& s) { s[name].shape = nine; });
  }
  for (const std::string name : {"mean", "rstd"}) {
    add(name + "_rank_9", 11, {name}, [=](Spoiled& s) { s[name].shape = nine_ones; });
  }
  for (const std::string name : {"gradWeightOut", "gradBiasOut"}) {
    add(name + "_rank_9", 11, {name},
        [=](Spoiled& s) { present(s, name).shape = {1, 1, 1, 1, 1, 1, 1, 4, 5}; });
  }
  add("all_rank_9", 11, {"gradOut", "input"}, [=](Spoiled& s) {
    s.set({"gradOut", "input", "gradInputOut"}, nine);
  });
  add("statistics_rank_9", 11, {"mean"}, [=](Spoiled& s) { s.set({"mean", "rstd"}, nine_ones); });
  add("normalizedShape_size_9", 11, {"normalizedShape"},
      [](Spoiled& s) { s.call.normalized_shape = Shape{1, 1, 1, 1, 1, 3, 2, 4, 5}; });
  add("normalizedShape_empty", 12, {"normalizedShape"}, [](Spoiled& s) {
    only_grad_input(s);
    s.call.normalized_shape = Shape{};
    s.set({"mean", "rstd"}, {3, 2, 4, 5});
  });
  add("normalizedShape_longer_than_input", 13, {"normalizedShape", "input"}, [](Spoiled& s) {
    only_grad_input(s);
    s.call.normalized_shape = Shape{1, 3, 2, 4, 5};
    s.set({"mean", "rstd"}, {1});
  });
  add("input_rank_0", 13, {"normalizedShape", "input"}, [](Spoiled& s) {
    only_grad_input(s);
    s.call.normalized_shape = Shape{1};
    s.set({"gradOut", "input", "gradInputOut", "mean", "rstd"}, {});
  });
}

void add_shapes(List& list) {
  const auto add = [&](const std::string& name, int row, std::vector<std::string> says,
                       std::function<void(Spoiled&)> spoil) {
    list.push_back({name, row, kInvalid, std::move(says), std::move(spoil)});
  };
  // Also entries that CANN's own comparison skips, and products that are right.
  for (const Shape& shape : {Shape{4, 6}, {9, 5}, {5, 4}, {2, 10}, {3, 4, 5}, {20}, {4, -5}}) {
    std::string name = "normalizedShape";
    for (int64_t extent : shape) name += extent < 0 ? "_minus" : "_" + std::to_string(extent);
    add(name, 14, {"normalizedShape"}, [=](Spoiled& s) {
      only_grad_input(s);
      s.call.normalized_shape = shape;
    });
  }
  for (const auto& [name, row] :
       {std::pair<std::string, int>{"weightOptional", 15}, {"biasOptional", 16}}) {
    const std::pair<const char*, Shape> bad[] = {{"rank_9", {1, 1, 1, 1, 1, 1, 1, 4, 5}},
                                                 {"flat", {20}},
                                                 {"extra_1", {1, 4, 5}},
                                                 {"swapped", {5, 4}},
                                                 {"longer", {4, 6}},
                                                 {"scalar", {}}};
    for (const auto& [what, shape] : bad) {
      add(name + "_" + what, row, {name},
          [name = name, shape = shape](Spoiled& s) { present(s, name).shape = shape; });
    }
  }
  for (const Shape& shape : {Shape{2, 3, 4, 5}, {6, 4, 5}, {3, 2, 4, 6}, {4, 2, 4, 5}}) {
    const std::string what = std::to_string(shape[0]) + "_" + std::to_string(shape.back());
    add("gradOut_shape_" + what, 17, {"gradOut", "input"},
        [=](Spoiled& s) { s["gradOut"].shape = shape; });
    add("gradInputOut_shape_" + what, 20, {"gradInputOut"},
        [=](Spoiled& s) { s["gradInputOut"].shape = shape; });
  }
  for (const Shape& shape : {Shape{3, 2}, {6}, {2, 3, 1, 1}, {6, 1, 1, 1}, {3, 2, 1}}) {
    for (const std::string name : {"mean", "rstd"}) {
      const std::string what = std::to_string(shape[0]) + "_" + std::to_string(shape.size());
      add(name + "_shape_" + what, 18, {"mean", "rstd"},
          [=](Spoiled& s) { s[name].shape = shape; });
    }
  }
  for (const Shape& shape : {Shape{7}, {5}, {3, 2, 4, 5}, {3, 2, 4}, {}}) {
    add("statistics_" + std::to_string(shape.empty() ? 0 : shape[0]) + "_" +
            std::to_string(shape.size()),
        19, {"mean", "rstd"}, [=](Spoiled& s) {
          s.set({"mean", "rstd"}, shape);
        });
  }
  for (const std::string name : {"gradWeightOut", "gradBiasOut"}) {
    for (const Shape& shape : {Shape{4, 6}, {19}, {1, 21}, {}}) {
      add(name + "_elements_" + std::to_string(shape.empty() ? 1 : shape.back()), 21, {name},
          [=](Spoiled& s) { present(s, name).shape = shape; });
    }
  }
}

// Not in the validation order: layouts and sizes.
void add_layouts(List& list) {
  const auto add = [&](const std::string& name, std::vector<std::string> says,
                       std::function<void(Spoiled&)> spoil) {
    list.push_back({name, 0, kInvalid, std::move(says), std::move(spoil)});
  };
  for (const std::string& name : names(Op::kLayerNorm)) {
    if (name == "biasOptional") continue;  // nobody reads it
    const Role role = role_of(Op::kLayerNorm, name);
    const Shape dense = role == Role::kData        ? Shape{40, 20, 5, 1}
                        : role == Role::kStatistic ? Shape{2, 1, 1, 1}
                                                   : Shape{5, 1};
    const auto strides = [&](const char* what, size_t axis, int64_t stride) {
      add(name + "_strides_" + what, {name}, [=](Spoiled& s) {
        s[name].strides = dense;
        s[name].strides[axis] = stride;
      });
    };
    strides("negative_first", 0, -dense[0]);
    strides("negative", 1, -1);
    strides("overflow", 0, INT64_MAX / 2);
    if (!is_output(name)) continue;
    strides("zero_first", 0, 0);
    strides("zero", 1, 0);
    strides("overlapping", 0, dense[0] - 1);
    strides("overlapping_rows", dense.size() - 2, 3);
  }
  const auto extents = [&](const char* name, int64_t first) {
    add(std::string("extent_") + name, {"gradOut", "input"}, [=](Spoiled& s) {
      s.set({"gradOut", "input", "gradInputOut"}, {first, 2, 4, 5});
      s.set({"mean", "rstd"}, {first, 2, 1, 1});
    });
  };
  extents("elements_overflow", int64_t{1} << 62);
  extents("bytes_overflow", (int64_t{1} << 62) / 40 + 1);
  extents("negative", -3);
  add("overflow_beside_0", {"gradOut", "input"}, [](Spoiled& s) {
    const int64_t huge = int64_t{1} << 62;
    only_grad_input(s);
    s.call.normalized_shape = Shape{huge, huge};
    s.set({"gradOut", "input", "gradInputOut"}, {0, huge, huge});
    s.set({"mean", "rstd"}, {0});
  });
}

void add_addresses(List& list) {
  const std::vector<std::string> all = names(Op::kLayerNorm);
  for (const std::string& name : all) {
    if (name == "biasOptional") continue;
    add_bad_pointers(name, list);
    list.push_back({name + "_on_workspace",
                    0,
                    kInvalid,
                    {"workspace"},
                    [=](Spoiled& s) {
                      s.workspace = [base = s[name].base](void*& workspace, uint64_t&) {
                        workspace = base;
                      };
                    },
                    Phase::kSecond});
  }
  for (size_t i = 6; i < 9; ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (all[j] == "biasOptional") continue;
      const auto overlap = [&](const char* how, int64_t bytes, Phase phase) {
        list.push_back({all[i] + how + all[j],
                        0,
                        phase == Phase::kAccepted ? 0 : kInvalid,
                        {all[i], all[j]},
                        [=](Spoiled& s) {
                          s.call.tensors[i].base =
                              static_cast<char*>(s.call.tensors[j].base) + bytes;
                        },
                        phase});
      };
      overlap("_overlaps_", 4, Phase::kSecond);
      overlap("_on_", 0, i == 6 && j < 2 ? Phase::kAccepted : Phase::kSecond);
    }
  }
  const auto workspace = [&](const char* name, aclnnStatus status, auto spoil) {
    list.push_back({std::string("workspace_") + name,
                    0,
                    status,
                    {"workspace"},
                    [=](Spoiled& s) { s.workspace = spoil; },
                    status ? Phase::kSecond : Phase::kAccepted});
  };
  workspace("too_small", kInvalid, [](void*&, uint64_t& size) { --size; });
  workspace("empty", kInvalid, [](void*& at, uint64_t& size) { at = nullptr, size = 0; });
  workspace("null", kNullPointer, [](void*& at, uint64_t&) { at = nullptr; });
  workspace("misaligned", 0, [](void*& at, uint64_t&) { at = static_cast<char*>(at) + 1; });
  workspace("larger", 0, [](void*&, uint64_t& size) { size += 64; });
}

// What looks odd and is right.
void add_accepted(aclDataType dtype, List& list) {
  const auto add = [&](const char* name, std::function<void(Spoiled&)> change) {
    list.push_back({name, 0, 0, {}, std::move(change), Phase::kAccepted});
  };
  add("nothing", [](Spoiled&) {});
  add("bias_of_any_dtype", [=](Spoiled& s) { s["biasOptional"].dtype = other(dtype); });
  add("bias_without_weight", [](Spoiled& s) { s["weightOptional"] = kAbsent; });
  add("weight_float", [](Spoiled& s) { s["weightOptional"].dtype = ACL_FLOAT; });
  add("statistics_of_two_dtypes", [](Spoiled& s) { s["rstd"].dtype = ACL_BF16; });
  add("outputs_of_other_dtypes", [=](Spoiled& s) {
    s["gradInputOut"].dtype = other(dtype);
    s["gradWeightOut"].dtype = ACL_BF16;
  });
  add("parameter_gradients_of_any_rank", [](Spoiled& s) {
    s["gradWeightOut"].shape = {20};
    s["gradBiasOut"].shape = {1, 2, 1, 5, 2, 1};
  });
  add("statistics_flat", [](Spoiled& s) { s.set({"mean", "rstd"}, {6}); });
  for (size_t i = 6; i < 9; ++i) {
    list.push_back({names(Op::kLayerNorm)[i] + "_masked_off_of_any_shape",
                    0,
                    0,
                    {},
                    [=](Spoiled& s) {
                      (*s.call.mask)[i - 6] = 0;
                      s.call.tensors[i].shape = {1, 1, 1, 1, 1, 1, 1, 1, 7};
                    },
                    Phase::kAccepted});
  }
  add("any_format", [](Spoiled& s) {
    const aclFormat formats[] = {ACL_FORMAT_NHWC, ACL_FORMAT_NCHW, ACL_FORMAT_NDHWC};
    for (size_t i = 0; i < 9; ++i) s.call.tensors[i].format = formats[i % 3];
  });
}

List wrongs(aclDataType dtype) {
  List list;
  add_nulls(list);
  add_dtypes(dtype, list);
  add_ranks(list);
  add_shapes(list);
  add_layouts(list);
  add_addresses(list);
  add_accepted(dtype, list);
  return list;
}

struct Parameter {
  aclDataType dtype;
  Wrong wrong;
};

void PrintTo(const Parameter& parameter, std::ostream* out) { *out << parameter.wrong.name; }

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (aclDataType dtype : kDTypes) {
    for (const Wrong& wrong : wrongs(dtype)) all.push_back({dtype, wrong});
  }
  return all;
}

class AclnnErrors : public testing::TestWithParam<Parameter> {};

TEST_P(AclnnErrors, AnswersAsDocumented) {
  Spoiled spoiled(Op::kLayerNorm, GetParam().dtype);
  expect_answer(spoiled, GetParam().wrong);
}

std::string test_name(const testing::TestParamInfo<Parameter>& test) {
  const aclDataType dtype = test.param.dtype;
  return std::string(dtype == ACL_FLOAT     ? "F32_"
                     : dtype == ACL_FLOAT16 ? "F16_"
                                            : "BF16_") +
         test.param.wrong.name + (test.param.wrong.status ? "" : "_is_accepted");
}

INSTANTIATE_TEST_SUITE_P(Matrix, AclnnErrors, testing::ValuesIn(parameters()), test_name);

TEST(AclnnErrorOrder, TheFirstFaultAnswers) {
  const List list = wrongs(ACL_FLOAT16);
  int pairs = 0;
  for (const Wrong& first : list) {
    for (const Wrong& second : list) {
      if (first.row == 0 || first.row >= second.row) continue;
      Spoiled spoiled(Op::kLayerNorm, ACL_FLOAT16);
      second.spoil(spoiled);
      first.spoil(spoiled);
      const Outcome outcome = run_spoiled(spoiled);
      EXPECT_EQ(outcome.status, first.status) << first.name << " and " << second.name;
      EXPECT_TRUE(outcome.untouched);
      EXPECT_TRUE(first.is_named(outcome.message))
          << first.name << " and " << second.name << ": " << outcome.message;
      ++pairs;
    }
  }
  EXPECT_GT(pairs, 1000);
}

}  // namespace
}  // namespace acl_test
