// Every wrong call of the InfiniOP functions, one thing wrong at a time: the exact status, a
// sentence that names the argument, and not one byte changed. For each operator and dtype wrongs()
// lists what can be wrong with each argument; a call runs until it is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

#include "infini_spoiled_call.hpp"

namespace infini_test {
namespace {

struct Wrong {
  std::string name;
  Stage stage;  // at which the call is refused
  infiniStatus_t status;
  std::vector<std::string> says;  // the sentence has one of these; empty: accepted
  std::function<void(Call&)> spoil;
  bool writes = true;  // if accepted
};

using List = std::vector<Wrong>;

std::vector<ptrdiff_t> row_major(const std::vector<size_t>& shape) {
  std::vector<ptrdiff_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * static_cast<ptrdiff_t>(shape[axis]);
  }
  return strides;
}

void add_objects(const std::vector<Argument>& args, List& list) {
  const auto handle = [&](const char* name, Object how, infiniStatus_t status) {
    list.push_back(
        {std::string("handle_") + name, Stage::kCreate, status, {"handle"}, [how](Call& c) {
           c.handle = how;
         }});
  };
  handle("null", Object::kNull, INFINI_STATUS_BAD_PARAM);
  handle("destroyed", Object::kDestroyed, INFINI_STATUS_BAD_PARAM);
  handle("other_kind", Object::kOtherKind, INFINI_STATUS_BAD_PARAM);
  handle("other_device", Object::kOtherDevice, INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);

  const auto desc = [&](const char* name, Object how, infiniStatus_t status) {
    list.push_back({std::string("desc_") + name, Stage::kQuery, status, {"desc"}, [how](Call& c) {
                      c.desc = how;
                    }});
  };
  desc("null", Object::kNull, INFINI_STATUS_BAD_PARAM);
  desc("destroyed", Object::kDestroyed, INFINI_STATUS_BAD_PARAM);
  desc("other_kind", Object::kOtherKind, INFINI_STATUS_BAD_PARAM);
  desc("other_device", Object::kOtherDevice, INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);

  list.push_back(
      {"desc_ptr_null", Stage::kCreate, INFINI_STATUS_BAD_PARAM, {"desc_ptr"}, [](Call& c) {
         c.null_desc_ptr = true;
       }});
  list.push_back({"size_null", Stage::kQuery, INFINI_STATUS_BAD_PARAM, {"size"}, [](Call& c) {
                    c.null_size = true;
                  }});

  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].name;
    const auto tensor = [&](const char* what, Object how) {
      list.push_back(
          {name + "_desc_" + what, Stage::kCreate, INFINI_STATUS_BAD_PARAM, {name}, [=](Call& c) {
             c.descs[i] = how;
           }});
    };
    if (args[i].optional) {
      list.push_back({name + "_desc_null_is_accepted",
                      Stage::kAccepted,
                      INFINI_STATUS_SUCCESS,
                      {},
                      [=](Call& c) { c.descs[i] = Object::kNull; }});
    } else {
      tensor("null", Object::kNull);
    }
    tensor("destroyed", Object::kDestroyed);
    tensor("other_kind", Object::kOtherKind);
  }
}

void add_dtypes(const std::vector<Argument>& args, infiniDtype_t dtype, List& list) {
  const struct {
    const char* name;
    infiniDtype_t dtype;
  } bad[] = {{"INVALID", INFINI_DTYPE_INVALID}, {"I32", INFINI_DTYPE_I32},
             {"F8", INFINI_DTYPE_F8},           {"F64", INFINI_DTYPE_F64},
             {"C64", INFINI_DTYPE_C64},         {"unknown", static_cast<infiniDtype_t>(31)},
             {"F32", INFINI_DTYPE_F32},         {"F16", INFINI_DTYPE_F16},
             {"BF16", INFINI_DTYPE_BF16}};
  for (const auto& other : bad) {
    if (other.dtype == dtype) continue;
    for (size_t i = 0; i < args.size(); ++i) {
      const bool right =
          args[i].any_dtype && std::count(std::begin(kDtypes), std::end(kDtypes), other.dtype) > 0;
      list.push_back(
          {std::string(args[i].name) + "_dtype_" + other.name + (right ? "_is_accepted" : ""),
           right ? Stage::kAccepted : Stage::kCreate,
           right ? INFINI_STATUS_SUCCESS : INFINI_STATUS_BAD_TENSOR_DTYPE,
           {args[i].name},
           [=](Call& c) { c.tensors[i].dtype = other.dtype; }});
    }
  }
  list.push_back({"all_dtype_F64",
                  Stage::kCreate,
                  INFINI_STATUS_BAD_TENSOR_DTYPE,
                  {args[0].name},
                  [](Call& c) {
                    for (Tensor& tensor : c.tensors) tensor.dtype = INFINI_DTYPE_F64;
                  }});
}

void add_shapes(const std::vector<Argument>& args, Op op, List& list) {
  // Data tensors are compared with each other: the sentence names the other one if it is the
  // yardstick that is wrong.
  const char* gradient = op == Op::kRmsNorm ? "grad_y" : "grad_output";
  const auto shape = [&](size_t i, const char* what, std::function<void(Tensor&)> spoil) {
    std::vector<std::string> says = {args[i].name};
    if (args[i].role == Role::kData && is_gradient(op)) says.push_back(gradient);
    list.push_back({std::string(args[i].name) + "_shape_" + what, Stage::kCreate,
                    INFINI_STATUS_BAD_TENSOR_SHAPE, says, [=](Call& c) { spoil(c.tensors[i]); }});
  };
  for (size_t i = 0; i < args.size(); ++i) {
    shape(i, "scalar", [](Tensor& t) { t.shape.clear(); });
    shape(i, "nine_dims", [](Tensor& t) { t.shape.resize(9, 1); });
    shape(i, "extra_leading_1", [](Tensor& t) { t.shape.insert(t.shape.begin(), 1); });
    shape(i, "extent_2_64", [](Tensor& t) { t.shape[0] = SIZE_MAX; });
    shape(i, "first_longer", [](Tensor& t) { ++t.shape.front(); });
    shape(i, "first_shorter", [](Tensor& t) { --t.shape.front(); });
    shape(i, "first_empty", [](Tensor& t) { t.shape.front() = 0; });
    shape(i, "last_longer", [](Tensor& t) { ++t.shape.back(); });
    shape(i, "last_1", [](Tensor& t) { t.shape.back() = 1; });
    // (N1, N2, 1) is the one shape with an extra 1 that is accepted.
    if (args[i].role != Role::kRowScalar) {
      shape(i, "extra_trailing_1", [](Tensor& t) { t.shape.push_back(1); });
    }
    if (args[i].role != Role::kVector) {
      shape(i, "swapped", [](Tensor& t) { std::swap(t.shape[0], t.shape[1]); });
      shape(i, "dim_missing", [](Tensor& t) { t.shape.erase(t.shape.begin()); });
    }
  }

  // The data tensors agree, but all of them are wrong.
  const auto all = [&](const char* what, std::function<void(Tensor&, const Argument&)> spoil) {
    list.push_back({std::string("all_shapes_") + what,
                    Stage::kCreate,
                    INFINI_STATUS_BAD_TENSOR_SHAPE,
                    {""},
                    [=](Call& c) {
                      for (size_t i = 0; i < args.size(); ++i) spoil(c.tensors[i], args[i]);
                    }});
  };
  all("nine_dims", [](Tensor& t, const Argument& a) {
    if (a.role != Role::kVector) t.shape.insert(t.shape.begin(), 6, 1);
  });
  all("elements_overflow", [](Tensor& t, const Argument& a) {
    if (a.role != Role::kVector) t.shape[0] = size_t{1} << 62;
  });
  all("bytes_overflow", [](Tensor& t, const Argument& a) {
    if (a.role == Role::kData) t.shape[0] = (size_t{1} << 62) / (t.shape[1] * t.shape[2]) + 1;
    if (a.role == Role::kRowScalar) t.shape[0] = (size_t{1} << 62) / 40 + 1;
  });
  all("overflow_beside_0", [](Tensor& t, const Argument& a) {
    if (a.role == Role::kData) t.shape = {0, size_t{1} << 62, size_t{1} << 62};
    if (a.role == Role::kVector) t.shape = {size_t{1} << 62};
    if (a.role == Role::kRowScalar) t.shape = {0, size_t{1} << 62};
  });
  if (is_batch_norm(op)) {
    all("two_dims", [](Tensor& t, const Argument& a) {
      if (a.role == Role::kData) t.shape.pop_back();
    });
    all("four_dims", [](Tensor& t, const Argument& a) {
      if (a.role == Role::kData) t.shape.push_back(2);
    });
  } else {
    all("scalar", [](Tensor& t, const Argument& a) {
      if (a.role != Role::kVector) t.shape.clear();
    });
  }
}

void add_strides(const std::vector<Argument>& args, Op op, List& list) {
  const auto strides = [&](size_t i, const char* what, bool refused,
                           std::function<void(std::vector<ptrdiff_t>&)> spoil) {
    Wrong wrong = {std::string(args[i].name) + "_strides_" + what,
                   Stage::kCreate,
                   INFINI_STATUS_BAD_TENSOR_STRIDES,
                   {args[i].name},
                   [=](Call& c) {
                     c.tensors[i].strides = row_major(c.tensors[i].shape);
                     spoil(c.tensors[i].strides);
                   }};
    if (!refused) {
      wrong.name += "_is_accepted";
      wrong.stage = Stage::kAccepted;
      wrong.status = INFINI_STATUS_SUCCESS;
      wrong.says.clear();
    }
    list.push_back(wrong);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const bool data = args[i].role == Role::kData;
    const bool contiguous = data && is_batch_norm(op);
    const bool overlapping = args[i].role == Role::kRowScalar && args[i].output;
    strides(i, "last_2", data || overlapping, [](auto& s) { s.back() = 2; });
    strides(i, "last_negative", data, [](auto& s) { s.back() = -1; });
    strides(i, "last_0", data || args[i].output, [](auto& s) { s.back() = 0; });
    strides(i, "overflow", true, [](auto& s) { s.front() = PTRDIFF_MAX / 2; });
    strides(i, "overflow_down", true, [](auto& s) { s.front() = PTRDIFF_MIN; });
    if (!data) continue;
    strides(i, "padded", contiguous, [](auto& s) { s[1] += 2, s[0] *= 2; });
    strides(i, "negative", contiguous, [](auto& s) { s[0] *= -1, s[1] *= -1; });
    strides(i, "broadcast", contiguous || args[i].output, [](auto& s) { s[0] = 0; });
    strides(i, "overlapping", contiguous || args[i].output, [](auto& s) { s[0] -= 1; });
    strides(i, "overlapping_rows", contiguous || args[i].output, [](auto& s) { s[1] = 3; });
    if (contiguous) strides(i, "channels_last", true, [](auto& s) { s = {20, 1, 5}; });
  }
}

// The input that the first output may lie in.
size_t place(Op op) {
  switch (op) {
    case Op::kBatchNorm:
      return 4;
    case Op::kForwardRmsNorm:
      return 1;
    case Op::kRmsNorm:
    case Op::kAddRmsNorm:
      return 2;
    default:
      return 3;
  }
}

size_t small_workspace(Op op, infiniDtype_t dtype) {
  Call call(op, dtype);
  Objects objects = {op, op};
  size_t size = 0;
  EXPECT_EQ(create_spoiled(call, objects), INFINI_STATUS_SUCCESS);
  EXPECT_EQ(workspace_size(op, objects.desc, &size), INFINI_STATUS_SUCCESS);
  return size;
}

void add_pointers(const std::vector<Argument>& args, Op op, infiniDtype_t dtype, List& list) {
  const bool works = small_workspace(op, dtype) > 0;  // else nobody looks at the workspace
  const auto data = [&](std::string name, infiniStatus_t status, std::vector<std::string> says,
                        auto spoil) {
    list.push_back({std::move(name), status ? Stage::kCompute : Stage::kAccepted, status,
                    std::move(says), [=](Call& c) { c.spoil = spoil; }});
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].name;
    data(name + "_data_null", INFINI_STATUS_BAD_PARAM, {name},
         [=](Pointers& p, void*&, size_t&) { p[i] = nullptr; });
    data(name + "_data_misaligned", INFINI_STATUS_BAD_PARAM, {name},
         [=](Pointers& p, void*&, size_t&) { p[i] = static_cast<char*>(p[i]) + 1; });
    if (works) {
      data(name + "_on_workspace", INFINI_STATUS_BAD_PARAM, {"workspace"},
           [=](Pointers& p, void*& workspace, size_t&) { workspace = p[i]; });
    }
    for (size_t j = 0; j < args.size(); ++j) {
      if (i == j || !args[i].output || (args[j].output && j < i)) continue;
      const std::string other = args[j].name;
      const bool in_place = args[i].role == Role::kData && args[j].role == Role::kData &&
                            !args[j].output && name != "input_standardization";
      data(name + "_overlaps_" + other, INFINI_STATUS_BAD_PARAM, {name, other},
           [=](Pointers& p, void*&, size_t&) { p[i] = static_cast<char*>(p[j]) + 4; });
      data(name + "_on_" + other + (in_place ? "_is_accepted" : ""),
           in_place ? INFINI_STATUS_SUCCESS : INFINI_STATUS_BAD_PARAM,
           in_place ? std::vector<std::string>{} : std::vector{name, other},
           [=](Pointers& p, void*&, size_t&) { p[i] = p[j]; });
    }
  }
  if (works) {
    data("workspace_too_small", INFINI_STATUS_INSUFFICIENT_WORKSPACE, {"workspace"},
         [](Pointers&, void*&, size_t& size) { --size; });
    data("workspace_empty", INFINI_STATUS_INSUFFICIENT_WORKSPACE, {"workspace"},
         [](Pointers&, void*& workspace, size_t& size) { workspace = nullptr, size = 0; });
    data("workspace_null", INFINI_STATUS_BAD_PARAM, {"workspace"},
         [](Pointers&, void*& workspace, size_t&) { workspace = nullptr; });
  } else {
    data("workspace_null_is_accepted", INFINI_STATUS_SUCCESS, {},
         [](Pointers&, void*& workspace, size_t&) { workspace = nullptr; });
  }
  data("workspace_misaligned_is_accepted", INFINI_STATUS_SUCCESS, {},
       [](Pointers&, void*& workspace, size_t&) { workspace = static_cast<char*>(workspace) + 1; });
  data("workspace_larger_is_accepted", INFINI_STATUS_SUCCESS, {},
       [](Pointers&, void*&, size_t& size) { size += 64; });
}

void add_numbers(Op op, List& list) {
  const auto add = [&](const char* what, const char* says, double value, auto set) {
    const char* kind = std::isnan(value) ? "_nan" : value < 0 ? "_negative" : "_infinite";
    list.push_back(
        {std::string(what) + kind, Stage::kCreate, INFINI_STATUS_BAD_PARAM, {says}, [=](Call& c) {
           set(c, value);
         }});
  };
  for (const double bad : {-1e-9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    if (!is_gradient(op)) {
      add("epsilon", "eps", bad,
          [](Call& c, double value) { c.numbers.epsilon = static_cast<float>(value); });
    }
    if (is_gradient(op) ? op != Op::kLayerNorm : op == Op::kForwardBatchNorm) {
      add("extended_epsilon", "eps", bad, [](Call& c, double value) {
        c.extension = {value, false};
      });
    }
    if (op == Op::kForwardBatchNorm && !(bad < 0)) {
      add("momentum", "momentum", bad,
          [](Call& c, double value) { c.numbers.momentum = static_cast<float>(value); });
    }
  }
}

// What looks odd and is right.
void add_accepted(const std::vector<Argument>& args, Op op, infiniDtype_t dtype, List& list) {
  const auto accept = [&](const char* name, std::function<void(Tensor&, const Argument&)> change,
                          decltype(Call::spoil) spoil = {}) {
    list.push_back({std::string(name) + "_is_accepted",
                    Stage::kAccepted,
                    INFINI_STATUS_SUCCESS,
                    {},
                    [=](Call& c) {
                      for (size_t i = 0; i < args.size(); ++i) change(c.tensors[i], args[i]);
                      c.spoil = spoil;
                    }});
    // Without rows there are sums of nothing, but no rows to normalize.
    list.back().writes = is_gradient(op) || name != std::string("no_rows");
  };
  const auto null_data = [args](Pointers& p, void*&, size_t&) {
    for (size_t i = 0; i < args.size(); ++i) {
      if (args[i].role != Role::kVector) p[i] = nullptr;
    }
  };
  accept(
      "no_rows",
      [](Tensor& t, const Argument& a) {
        if (a.role != Role::kVector) t.shape[0] = 0;
        if (a.role == Role::kData) t.strides = {99, 77, 1};
      },
      null_data);
  accept(
      "in_place_with_another_stride_of_extent_1",
      [](Tensor& t, const Argument& a) {
        if (a.role != Role::kVector) t.shape[0] = 1;
        if (a.role == Role::kData && a.output) {
          t.strides = row_major(t.shape);
          t.strides[0] = 7;
        }
      },
      [=](Pointers& p, void*&, size_t&) { p[0] = p[place(op)]; });
  if (is_batch_norm(op)) {
    accept("any_stride_of_extent_1", [](Tensor& t, const Argument& a) {
      if (a.role == Role::kData) t = {t.dtype, {1, 5, 1}, {-77, 1, 99}};
    });
    return;
  }
  accept("any_stride_of_extent_1", [](Tensor& t, const Argument& a) {
    if (a.role == Role::kData) t = {t.dtype, {1, 12, 1}, {0, 1, 99}};
    if (a.role == Role::kVector) t = {t.dtype, {1}, {0}};
    if (a.role == Role::kRowScalar) t = {t.dtype, {1, 12}, {0, 1}};
  });
  accept("one_dim", [](Tensor& t, const Argument& a) {
    if (a.role != Role::kVector) t.shape.erase(t.shape.begin(), t.shape.begin() + 2);
  });
  accept("eight_dims", [](Tensor& t, const Argument& a) {
    if (a.role != Role::kVector) t.shape.insert(t.shape.begin(), 5, 1);
  });
  accept("std_with_trailing_1", [](Tensor& t, const Argument& a) {
    if (a.role == Role::kRowScalar) t.shape.push_back(1);
  });
  // The first output in the gaps between the rows of an input.
  const size_t row = 10 * size_of(dtype);
  accept(
      "interleaved_rows",
      [](Tensor& t, const Argument& a) {
        if (a.role == Role::kData) t.strides = {80, 20, 1};
      },
      [=](Pointers& p, void*&, size_t&) { p[0] = static_cast<char*>(p[place(op)]) + row; });
}

List wrongs(Op op, infiniDtype_t dtype) {
  const std::vector<Argument> args = arguments(op);
  List list = {{"nothing_is_accepted", Stage::kAccepted, INFINI_STATUS_SUCCESS, {}, [](Call&) {}}};
  add_objects(args, list);
  add_dtypes(args, dtype, list);
  add_shapes(args, op, list);
  add_strides(args, op, list);
  add_pointers(args, op, dtype, list);
  add_numbers(op, list);
  add_accepted(args, op, dtype, list);
  return list;
}

struct Parameter {
  Op op;
  infiniDtype_t dtype;
  Wrong wrong;
};

void PrintTo(const Parameter& parameter, std::ostream* out) { *out << parameter.wrong.name; }

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const Op op : kOps) {
    for (const infiniDtype_t dtype : kDtypes) {
      for (const Wrong& wrong : wrongs(op, dtype)) all.push_back({op, dtype, wrong});
    }
  }
  return all;
}

class InfiniErrors : public testing::TestWithParam<Parameter> {};

TEST_P(InfiniErrors, AnswersAsDocumented) {
  const auto& [op, dtype, wrong] = GetParam();
  Call call(op, dtype);
  wrong.spoil(call);
  const Outcome outcome = run(call);
  const std::string sentence = normgradGetLastError();
  EXPECT_EQ(outcome.status, wrong.status) << sentence;
  EXPECT_EQ(static_cast<int>(outcome.stage), static_cast<int>(wrong.stage)) << sentence;
  if (wrong.stage == Stage::kAccepted) {
    EXPECT_EQ(outcome.untouched, !wrong.writes);
    return;
  }
  EXPECT_TRUE(outcome.untouched);
  EXPECT_FALSE(sentence.empty());
  bool named = false;
  for (const std::string& name : wrong.says) named |= sentence.find(name) != std::string::npos;
  EXPECT_TRUE(named) << "expected " << wrong.says[0] << " in: " << sentence;
}

INSTANTIATE_TEST_SUITE_P(Matrix, InfiniErrors, testing::ValuesIn(parameters()),
                         [](const auto& test) {
                           const Parameter& p = test.param;
                           return std::string(name_of(p.op)) + "_" + name_of(p.dtype) + "_" +
                                  p.wrong.name;
                         });

}  // namespace
}  // namespace infini_test
