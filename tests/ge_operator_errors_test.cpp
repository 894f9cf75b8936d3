// Wrong calls of the graph operators. Each test varies one thing of a correct call and sees FAILED,
// a message that names the node and the argument, and outputs as they were.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "ge_spoiled_call.hpp"

namespace ge_test {
namespace {

using normgrad::reference::Instance;

class Engine : public testing::Environment {
  void SetUp() override { ASSERT_EQ(ge::GEInitialize(Options()), ge::SUCCESS); }
  void TearDown() override { EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS); }
};
const testing::Environment* const kEngine = testing::AddGlobalTestEnvironment(new Engine);

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

// Another floating type, and not FLOAT: a type that fits neither the data nor the exceptions.
ge::DataType other_than(ge::DataType type) {
  return type == ge::DT_FLOAT16 ? ge::DT_BF16 : ge::DT_FLOAT16;
}

void expect_refused(const Call& call, const std::string& node, const std::string& argument) {
  const Kept kept;
  const Result result = run(graph_of(call), feeds_of(call), kept.outputs);
  EXPECT_EQ(result.status, ge::FAILED);
  expect_named(result.message, node, argument);
  EXPECT_TRUE(kept.intact(result.outputs));
}

// What its Data state is enough to refuse the graph before anything is fed.
void expect_not_compiled(const Call& call, const std::string& argument) {
  (void)ge::GEGetErrorMsgV2();
  ge::Session session{Options()};
  ge::Status status = session.AddGraph(3, graph_of(call));
  if (status == ge::SUCCESS) status = session.CompileGraph(3);
  EXPECT_EQ(status, ge::FAILED);
  expect_named(ge::GEGetErrorMsgV2().GetString(), kNode, argument);
}

struct Wrong {
  const char* what;
  const char* argument;
  std::function<void(Call&)> spoil;
};

// The outputs are not described beforehand, so that it is the input that does not fit.
void expect_all_refused(const std::string& type, const std::vector<Wrong>& table) {
  for (DType dtype : kDTypes) {
    const Instance instance(correct(type, dtype));
    const Result good = run(translate(instance));
    ASSERT_EQ(good.status, ge::SUCCESS) << good.message;
    for (const Wrong& wrong : table) {
      SCOPED_TRACE(type + " " + name_of(dtype) + ": " + wrong.what);
      Call call = translate(instance);
      for (Operand& output : call.outputs) output.stated = false;
      wrong.spoil(call);
      expect_refused(call, kNode, wrong.argument);
      expect_not_compiled(call, wrong.argument);
    }
  }
}

void set_shapes(Call& call, const std::vector<const char*>& names, const Shape& shape) {
  for (const char* name : names) call[name].shape = shape;
}

void state(Call& call, const char* output, ge::DataType dtype) {
  call[output].stated = true;
  call[output].dtype = dtype;
}

// What dy, x and gamma have in common in the three operators over rows.
std::vector<Wrong> row_table() {
  return {
      {"x of another shape", "x",
       [](Call& c) {
         c["x"].shape = {3, 2, 4, 5};
       }},
      {"x of another rank", "x",
       [](Call& c) {
         c["x"].shape = {6, 4, 5};
       }},
      {"dy of another shape", "dy",
       [](Call& c) {
         c["dy"].shape = {3, 2, 4, 5};
       }},
      {"gamma of another order", "gamma",
       [](Call& c) {
         c["gamma"].shape = {5, 4};
       }},
      {"gamma of axes that are not the last", "gamma", [](Call& c) { c["gamma"].shape = {4}; }},
      {"gamma flat", "gamma", [](Call& c) { c["gamma"].shape = {20}; }},
      {"gamma of a higher rank", "gamma",
       [](Call& c) {
         c["gamma"].shape = {1, 2, 3, 4, 5};
       }},
      {"gamma of fewer axes than the rows", "one per row", [](Call& c) { c["gamma"].shape = {5}; }},
      {"dy of an integer type", "dy", [](Call& c) { c["dy"].dtype = ge::DT_INT16; }},
      {"dy of DOUBLE", "dy", [](Call& c) { c["dy"].dtype = ge::DT_DOUBLE; }},
      {"all of DOUBLE", "dy",
       [](Call& c) { c["dy"].dtype = c["x"].dtype = c["gamma"].dtype = ge::DT_DOUBLE; }},
      {"x of another type", "x", [](Call& c) { c["x"].dtype = other_than(c["dy"].dtype); }},
      {"gamma of another 16-bit type", "gamma",
       [](Call& c) { c["gamma"].dtype = other_than(c["dy"].dtype); }},
      {"gamma of an integer type", "gamma", [](Call& c) { c["gamma"].dtype = ge::DT_INT32; }},
      {"9 axes", "dy",
       [](Call& c) {
         set_shapes(c, {"dy", "x"}, {1, 1, 1, 1, 1, 2, 3, 4, 5});
       }},
  };
}

void expect_all_layer_norms_refused(const std::string& type, const char* spread) {
  std::vector<Wrong> table = row_table();
  const std::vector<Wrong> more = {
      {"mean of another shape", "mean", [](Call& c) { c["mean"].shape = {6}; }},
      {"mean without the ones", "mean",
       [](Call& c) {
         c["mean"].shape = {2, 3};
       }},
      {"spread of another shape", spread,
       [=](Call& c) {
         c[spread].shape = {3, 2, 1, 1};
       }},
      {"too few statistics", spread,
       [=](Call& c) {
         set_shapes(c, {spread, "mean"}, {2, 2, 1, 1});
       }},
      {"too many statistics", spread,
       [=](Call& c) {
         set_shapes(c, {spread, "mean"}, {2, 3, 4, 1});
       }},
      {"spread of a 16-bit type", spread, [=](Call& c) { c[spread].dtype = ge::DT_FLOAT16; }},
      {"mean of a 16-bit type", "mean", [](Call& c) { c["mean"].dtype = ge::DT_BF16; }},
      {"no rows", "dy",
       [=](Call& c) {
         set_shapes(c, {"dy", "x"}, {2, 0, 4, 5});
         set_shapes(c, {spread, "mean"}, {2, 0, 1, 1});
       }},
      {"no columns", "dy",
       [](Call& c) {
         set_shapes(c, {"dy", "x"}, {2, 3, 4, 0});
         c["gamma"].shape = {4, 0};
       }},
      {"pd_x stated of another shape", "pd_x",
       [](Call& c) {
         c["pd_x"].stated = true;
         c["pd_x"].shape = {3, 2, 4, 5};
       }},
      {"pd_gamma stated of another shape", "pd_gamma",
       [](Call& c) {
         c["pd_gamma"].stated = true;
         c["pd_gamma"].shape = {20};
       }},
      {"pd_beta stated of another shape", "pd_beta",
       [](Call& c) {
         c["pd_beta"].stated = true;
         c["pd_beta"].shape = {5, 4};
       }},
      {"pd_x stated of another type", "pd_x",
       [](Call& c) { state(c, "pd_x", other_than(c["dy"].dtype)); }},
      {"gradients stated of a type that is not gamma's", "pd_gamma",
       [](Call& c) {
         state(c, "pd_gamma", other_than(c["gamma"].dtype));
         state(c, "pd_beta", other_than(c["gamma"].dtype));
       }},
      {"16-bit gradients of a FLOAT gamma", "pd_gamma",
       [](Call& c) {
         c["gamma"].dtype = ge::DT_FLOAT;
         state(c, "pd_gamma", ge::DT_FLOAT16);
         state(c, "pd_beta", ge::DT_FLOAT16);
       }},
      {"a mask of 2", "output_mask",
       [](Call& c) {
         c.mask = {true, true};
       }},
      {"a mask of 4", "output_mask",
       [](Call& c) {
         c.mask = {true, true, true, true};
       }},
      {"a mask of 0", "output_mask", [](Call& c) { c.mask = std::vector<bool>(); }},
  };
  table.insert(table.end(), more.begin(), more.end());
  expect_all_refused(type, table);
}

TEST(GeErrors, LayerNormGradV3) { expect_all_layer_norms_refused("LayerNormGradV3", "rstd"); }

TEST(GeErrors, LayerNormGrad) {
  expect_all_layer_norms_refused("LayerNormGrad", "variance");
  std::vector<Wrong> table;
  for (float epsilon : {-0.5F, -2.0F, -1e-12F, kNan, kInf, -kInf}) {
    table.push_back({"epsilon", "epsilon", [=](Call& c) { c.epsilon = epsilon; }});
  }
  expect_all_refused("LayerNormGrad", table);
}

// With 16-bit gamma FLOAT is a type that either gradient may have, but then both do.
TEST(GeErrors, GradientsOfDifferentTypes) {
  for (const char* type : {"LayerNormGrad", "LayerNormGradV3"}) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      for (const char* output : {"pd_gamma", "pd_beta"}) {
        const Instance instance(correct(type, dtype));
        Call call = translate(instance);
        call[output].dtype = ge::DT_FLOAT;
        expect_refused(call, kNode, output);
      }
    }
  }
}

TEST(GeErrors, RmsNormGrad) {
  std::vector<Wrong> table = row_table();
  const std::vector<Wrong> more = {
      {"too few statistics", "rstd", [](Call& c) { c["rstd"].shape = {5}; }},
      {"too many statistics", "rstd",
       [](Call& c) {
         c["rstd"].shape = {2, 3, 4};
       }},
      {"rstd of a 16-bit type", "rstd", [](Call& c) { c["rstd"].dtype = ge::DT_FLOAT16; }},
      {"dx stated of another type", "dx",
       [](Call& c) { state(c, "dx", other_than(c["dy"].dtype)); }},
      {"dgamma stated of a 16-bit type", "dgamma",
       [](Call& c) { state(c, "dgamma", ge::DT_FLOAT16); }},
  };
  table.insert(table.end(), more.begin(), more.end());
  expect_all_refused("RmsNormGrad", table);
}

TEST(GeErrors, BatchNormGradV3) {
  std::vector<Wrong> table = {
      {"x of another shape", "x",
       [](Call& c) {
         c["x"].shape = {2, 3, 5, 4};
       }},
      {"dy of another shape", "dy",
       [](Call& c) {
         c["dy"].shape = {2, 3, 5, 4};
       }},
      {"weight of other channels", "weight", [](Call& c) { c["weight"].shape = {4}; }},
      {"channels first in the wrong format", "weight",
       [](Call& c) { c["x"].format = c["dy"].format = ge::FORMAT_NHWC; }},
      {"1 axis", "",
       [](Call& c) {
         set_shapes(c, {"dy", "x"}, {3});
       }},
      {"9 axes", "",
       [](Call& c) {
         set_shapes(c, {"dy", "x"}, {2, 3, 4, 5, 1, 1, 1, 1, 1});
       }},
      {"dy of an integer type", "dy", [](Call& c) { c["dy"].dtype = ge::DT_INT16; }},
      {"x of another type", "x", [](Call& c) { c["x"].dtype = other_than(c["dy"].dtype); }},
      {"weight of another 16-bit type", "weight",
       [](Call& c) { c["weight"].dtype = other_than(c["dy"].dtype); }},
      {"dx stated of another type", "dx",
       [](Call& c) { state(c, "dx", other_than(c["dy"].dtype)); }},
      {"dx stated of another shape", "dx",
       [](Call& c) {
         c["dx"].stated = true;
         c["dx"].shape = {2, 3, 20};
       }},
  };
  for (const char* name : {"running_mean", "running_var", "save_mean", "save_rstd"}) {
    table.push_back({"statistics of other channels", name, [=](Call& c) { c[name].shape = {4}; }});
    table.push_back(
        {"statistics of a 16-bit type", name, [=](Call& c) { c[name].dtype = ge::DT_FLOAT16; }});
  }
  for (float epsilon : {-1.0F, -1e-12F, kNan, kInf}) {
    table.push_back({"epsilon", "epsilon", [=](Call& c) {
                       c.training = false;
                       c.epsilon = epsilon;
                     }});
  }
  expect_all_refused("BatchNormGradV3", table);
}

// A description without axes states nothing, so that only the run finds out.
TEST(GeErrors, NoAxes) {
  for (const char* type : {"LayerNormGrad", "LayerNormGradV3", "RmsNormGrad", "BatchNormGradV3"}) {
    const Instance instance(correct(type, DType::kF32));
    Call call = translate(instance);
    for (Operand& input : call.inputs) input.shape = {};
    for (Operand& output : call.outputs) output.stated = false;
    expect_refused(call, kNode, "dy");
  }
}

// Extents whose product, or whose bytes, no 64-bit number holds.
TEST(GeErrors, ExtentsThatOverflow) {
  for (const char* type : {"LayerNormGrad", "LayerNormGradV3", "RmsNormGrad", "BatchNormGradV3"}) {
    for (const Shape& shape : {Shape{int64_t{1} << 31, int64_t{1} << 31, 4, 5},
                               {int64_t{1} << 61, 3, 4, 5},
                               {INT64_MAX, 3, 4, 5},
                               {int64_t{1} << 57, 1, 4, 5}}) {
      SCOPED_TRACE(type);
      const Instance instance(correct(type, DType::kF32));
      Call call = translate(instance);
      set_shapes(call, {"dy", "x"}, shape);
      for (Operand& output : call.outputs) output.stated = false;
      for (Operand& input : call.inputs) {
        if (input.shape == Shape{2, 3, 1, 1}) input.shape = {shape[0], shape[1], 1, 1};
        if (input.shape == Shape{2, 3}) input.shape = {shape[0], shape[1]};
        if (input.shape == Shape{3}) input.shape = {shape[1]};
      }
      expect_not_compiled(call, "");
    }
  }
}

}  // namespace
}  // namespace ge_test
