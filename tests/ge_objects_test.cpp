// The objects of graph mode on their own: strings, shapes, tensors, attributes, operators, what
// REG_OP generates, and inference.
#include <gtest/gtest.h>

#include <unordered_map>

#include "ge_call.hpp"
#include "ge_ir_build.h"

// The dialect is also used with these, as its programs define them after their includes.
#define FAILED -1
#define SUCCESS 0

namespace ge {
REG_OP(TestOp)
    .INPUT(x, TensorType::({DT_FLOAT}))  // types are never evaluated
    .OPTIONAL_INPUT(bias, TensorType({DT_FLOAT}))
    .DYNAMIC_INPUT(more, "T")
    .OUTPUT(y, TensorType({DT_FLOAT}))
    .DYNAMIC_OUTPUT(parts, "T")
    .ATTR(text, String, "default")
    .ATTR(label, AscendString, "label")
    .ATTR(number, Int, 7)
    .ATTR(type, Type, DT_BF16)
    .ATTR(lists, ListListInt, {{1, 2}, {3}})
    .REQUIRED_ATTR(axes, ListInt)
    .GRAPH(branch)
    .DYNAMIC_GRAPH(branches)
    .DATATYPE(T, TensorType({DT_FLOAT}))
    .OP_END_FACTORY_REG(TestOp);
}  // namespace ge

namespace ge_test {
namespace {

using ge::GRAPH_FAILED;
using ge::GRAPH_PARAM_INVALID;
using ge::GRAPH_SUCCESS;

TEST(GeObjects, AscendString) {
  const ge::AscendString empty, null(nullptr), text("text"), cut("textual", 4);
  EXPECT_STREQ(empty.GetString(), "");
  EXPECT_EQ(empty, null);
  EXPECT_EQ(text, cut);
  EXPECT_EQ(text.Hash(), cut.Hash());
  EXPECT_EQ(text.GetLength(), 4u);
  EXPECT_EQ(text.Find("xt"), 2u);
  EXPECT_EQ(text.Find("no"), std::string::npos);
  EXPECT_TRUE(empty < text && text > empty && text <= cut && text >= cut && text != empty);
  const std::unordered_map<ge::AscendString, int> map = {{"text", 1}};
  EXPECT_EQ(map.count(cut), 1u);
}

TEST(GeObjects, Shape) {
  EXPECT_EQ(ge::Shape().GetShapeSize(), 0);
  EXPECT_EQ(ge::Shape({2, 3}).GetShapeSize(), 6);
  EXPECT_EQ(ge::Shape({2, 0}).GetShapeSize(), 0);
  EXPECT_EQ(ge::Shape({2, -1}).GetShapeSize(), -1);
  EXPECT_EQ(ge::Shape({int64_t{1} << 40, int64_t{1} << 40}).GetShapeSize(), 0);
  EXPECT_EQ(ge::Shape(ge::UNKNOWN_RANK).GetDimNum(), 0u);
  EXPECT_EQ(ge::Shape(ge::UNKNOWN_RANK).GetDims(), ge::UNKNOWN_RANK);
  ge::Shape shape({2, 3});
  const ge::Shape copy = shape;
  EXPECT_EQ(shape.SetDim(1, 4), GRAPH_SUCCESS);
  EXPECT_EQ(shape.SetDim(2, 4), GRAPH_PARAM_INVALID);
  EXPECT_EQ(shape.GetDims(), (Dims{2, 4}));
  EXPECT_EQ(copy.GetDim(1), 3);
  EXPECT_EQ(copy.GetDim(2), 0);
}

TEST(GeObjects, TensorDesc) {
  ge::TensorDesc desc;
  EXPECT_EQ(desc.GetDataType(), ge::DT_FLOAT);
  EXPECT_EQ(desc.GetFormat(), ge::FORMAT_ND);
  const ge::TensorDesc copy = desc;
  desc.Update(ge::Shape({4}), ge::FORMAT_NHWC, ge::DT_BF16);
  desc.SetName("name");
  desc.SetRealDimCnt(1);
  desc.SetPlacement(ge::kPlacementDevice);
  EXPECT_EQ(desc.SetShapeRange({{1, 4}}), GRAPH_SUCCESS);
  EXPECT_EQ(copy.GetDataType(), ge::DT_FLOAT);
  const ge::TensorDesc moved = std::move(desc);
  EXPECT_EQ(moved.GetName(), "name");
  EXPECT_EQ(moved.GetRealDimCnt(), 1);
  EXPECT_EQ(moved.GetPlacement(), ge::kPlacementDevice);
  std::vector<std::pair<int64_t, int64_t>> range;
  EXPECT_EQ(moved.GetShapeRange(range), GRAPH_SUCCESS);
  EXPECT_EQ(range.size(), 1u);
  ge::TensorDesc unknown;
  EXPECT_EQ(unknown.SetUnknownDimNumShape(), GRAPH_SUCCESS);
  EXPECT_EQ(unknown.GetShape().GetDims(), ge::UNKNOWN_RANK);
}

TEST(GeObjects, Tensor) {
  std::vector<uint8_t> bytes = {1, 2, 3, 4};
  ge::Tensor tensor(desc_of({1}), bytes.data(), bytes.size());
  bytes[0] = 9;
  EXPECT_EQ(tensor.GetData()[0], 1);  // it was copied
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.GetData()) % 64, 0u);
  EXPECT_EQ(tensor.IsValid(), GRAPH_SUCCESS);
  const ge::Tensor alias = tensor, clone = tensor.Clone();
  tensor.GetData()[0] = 5;
  EXPECT_EQ(alias.GetData()[0], 5);
  EXPECT_EQ(clone.GetData()[0], 1);
  EXPECT_EQ(tensor.SetData(std::string("ab")), GRAPH_SUCCESS);
  EXPECT_EQ(tensor.IsValid(), GRAPH_FAILED);
  EXPECT_EQ(tensor.SetData(static_cast<const uint8_t*>(nullptr), 4), GRAPH_PARAM_INVALID);
  EXPECT_EQ(tensor.GetSize(), 2u);
  bool deleted = false;
  {
    ge::Tensor owner;
    EXPECT_EQ(owner.SetData(bytes.data(), 4, [&](uint8_t*) { deleted = true; }), GRAPH_SUCCESS);
    EXPECT_EQ(owner.GetData(), bytes.data());
  }
  EXPECT_TRUE(deleted);
  ge::Tensor moved = std::move(tensor);
  EXPECT_EQ(tensor.GetSize(), 0u);  // NOLINT: a handle that was moved from is empty
  EXPECT_EQ(tensor.SetTensorDesc(desc_of({1})), GRAPH_SUCCESS);
}

TEST(GeObjects, SizesAndNames) {
  EXPECT_EQ(ge::GetSizeByDataType(ge::DT_FLOAT), 4);
  EXPECT_EQ(ge::GetSizeByDataType(ge::DT_BF16), 2);
  EXPECT_EQ(ge::GetSizeByDataType(ge::DT_STRING), -1);
  EXPECT_STREQ(ge::GetFormatName(ge::FORMAT_NDHWC), "NDHWC");
  EXPECT_STREQ(ge::GetFormatName(static_cast<ge::Format>(99)), "UNKNOWN");
}

TEST(GeObjects, Attributes) {
  ge::op::TestOp op("op");
  EXPECT_EQ(op.get_attr_text(), "default");
  EXPECT_EQ(op.get_attr_number(), 7);
  EXPECT_EQ(op.get_attr_type(), ge::DT_BF16);
  EXPECT_EQ(op.get_attr_lists(), (std::vector<std::vector<int64_t>>{{1, 2}, {3}}));
  EXPECT_TRUE(op.get_attr_axes().empty());
  op.set_attr_text("other").set_attr_label("l").set_attr_number(8).set_attr_axes({1, 2});
  op.set_attr_number(std::function<int64_t()>([] { return 1; }));
  EXPECT_EQ(op.get_attr_text(), "other");
  EXPECT_EQ(op.get_attr_label(), ge::AscendString("l"));
  EXPECT_EQ(op.get_attr_number(), 8);
  int32_t narrow = 0;
  uint32_t natural = 5;
  float real = 0;
  std::vector<int32_t> axes;
  EXPECT_EQ(op.GetAttr("number", narrow), GRAPH_SUCCESS);
  EXPECT_EQ(narrow, 8);
  EXPECT_EQ(op.GetAttr(std::string("axes"), axes), GRAPH_SUCCESS);
  EXPECT_EQ(axes, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(op.GetAttr("number", real), GRAPH_FAILED);
  EXPECT_EQ(op.GetAttr("nothing", real), GRAPH_FAILED);
  op.SetAttr("number", int64_t{-1});
  EXPECT_EQ(op.GetAttr("number", natural), GRAPH_FAILED);
  EXPECT_EQ(natural, 5u);
  op.SetAttr("number", int64_t{1} << 40);
  EXPECT_EQ(op.GetAttr("number", narrow), GRAPH_FAILED);
  ge::NamedAttrs named, read;
  named.SetName("named");
  op.SetAttr("named", named);
  EXPECT_EQ(op.GetAttr("named", read), GRAPH_SUCCESS);
  EXPECT_EQ(read.GetName(), ge::AscendString("named"));
}

TEST(GeObjects, GeneratedMembers) {
  ge::op::TestOp op("op"), made_up, other_made_up;
  EXPECT_EQ(op.GetName(), "op");
  EXPECT_EQ(op.GetOpType(), "TestOp");
  EXPECT_NE(made_up.GetName(), other_made_up.GetName());
  EXPECT_EQ(op.GetInputsSize(), 2u);
  op.create_dynamic_input_more(2).create_dynamic_output_parts(3);
  EXPECT_EQ(op.GetInputsSize(), 4u);
  EXPECT_EQ(op.GetOutputsSize(), 4u);
  EXPECT_EQ(op.update_dynamic_input_desc_more(1, desc_of({6})), GRAPH_SUCCESS);
  EXPECT_EQ(op.update_dynamic_input_desc_more(2, desc_of({6})), GRAPH_PARAM_INVALID);
  EXPECT_EQ(op.get_dynamic_input_desc_more(1).GetShape().GetDim(0), 6);
  EXPECT_EQ(op.update_output_desc_y(desc_of({3})), GRAPH_SUCCESS);
  EXPECT_EQ(op.GetOutputDescByName("y").GetShape().GetDim(0), 3);
  EXPECT_EQ(op.UpdateOutputDesc(0, desc_of({4})), GRAPH_SUCCESS);
  EXPECT_EQ(op.get_output_desc_y().GetShape().GetDim(0), 4);
  EXPECT_EQ(ge::op::TestOp::name_in_x(), "x");
  EXPECT_EQ(ge::op::TestOp::name_out_y(), "y");
  EXPECT_EQ(ge::op::TestOp::name_attr_text(), "text");
  op.set_subgraph_builder_branch([] { return ge::Graph("built"); });
  ge::AscendString name;
  EXPECT_EQ(op.get_subgraph_branch().GetName(name), GRAPH_SUCCESS);
  EXPECT_EQ(name, ge::AscendString("built"));
  ge::Operator alias = op;
  alias.SetAttr("number", 3);
  EXPECT_EQ(op.get_attr_number(), 3);
}

TEST(GeObjects, Factory) {
  EXPECT_TRUE(ge::OperatorFactory::IsExistOp("TestOp"));
  EXPECT_FALSE(ge::OperatorFactory::IsExistOp("Nothing"));
  const ge::Operator op = ge::OperatorFactory::CreateOperator("name", "LayerNormGrad");
  EXPECT_EQ(op.GetName(), "name");
  EXPECT_EQ(op.GetInputsSize(), 5u);
  EXPECT_TRUE(ge::OperatorFactory::CreateOperator("name", "Nothing").IsEmpty());
  std::vector<ge::AscendString> types;
  EXPECT_EQ(ge::OperatorFactory::GetOpsTypeList(types), GRAPH_SUCCESS);
  EXPECT_GE(types.size(), 8u);
}

TEST(GeObjects, Inference) {
  ge::op::LayerNormGrad op("op");
  EXPECT_EQ(op.update_input_desc_dy(desc_of({-1, 4}, ge::DT_FLOAT16)), GRAPH_SUCCESS);
  EXPECT_EQ(op.update_input_desc_x(desc_of({3, 4}, ge::DT_FLOAT16)), GRAPH_SUCCESS);
  EXPECT_EQ(op.update_input_desc_gamma(desc_of({-2}, ge::DT_FLOAT16)), GRAPH_SUCCESS);
  EXPECT_EQ(op.InferShapeAndType(), GRAPH_SUCCESS);
  EXPECT_EQ(op.get_output_desc_pd_x().GetShape().GetDims(), (Dims{-1, 4}));
  EXPECT_EQ(op.get_output_desc_pd_x().GetDataType(), ge::DT_FLOAT16);
  EXPECT_EQ(op.get_output_desc_pd_gamma().GetShape().GetDims(), ge::UNKNOWN_RANK);
  EXPECT_EQ(op.get_output_desc_pd_beta().GetDataType(), ge::DT_FLOAT16);
  EXPECT_EQ(op.update_output_desc_pd_gamma(desc_of({}, ge::DT_FLOAT)), GRAPH_SUCCESS);
  EXPECT_EQ(op.InferShapeAndType(), GRAPH_SUCCESS);
  EXPECT_EQ(op.get_output_desc_pd_gamma().GetDataType(), ge::DT_FLOAT);
  // From what feeds it.
  ge::op::Data data("data");
  data.update_input_desc_x(desc_of({7, 4}, ge::DT_BF16));
  op.set_input_dy(data).set_input_x(data);
  EXPECT_EQ(op.InferShapeAndType(), GRAPH_SUCCESS);
  EXPECT_EQ(op.get_output_desc_pd_x().GetShape().GetDims(), (Dims{7, 4}));
  EXPECT_EQ(op.get_output_desc_pd_x().GetDataType(), ge::DT_BF16);
  ge::op::TestOp unknown;
  EXPECT_EQ(unknown.InferShapeAndType(), GRAPH_FAILED);
}

TEST(GeObjects, GraphsKnowTheirOperators) {
  auto call = layer_norm();
  call.build();
  ge::Operator found;
  EXPECT_EQ(call.graph.FindOpByName("gamma", found), GRAPH_SUCCESS);
  EXPECT_EQ(found.GetOpType(), "Data");
  EXPECT_EQ(call.graph.FindOpByName("nobody", found), GRAPH_FAILED);
  std::vector<ge::AscendString> names;
  EXPECT_EQ(call.graph.GetAllOpName(names), GRAPH_SUCCESS);
  EXPECT_EQ(names.size(), 6u);
  EXPECT_TRUE(call.graph.IsValid());
  EXPECT_FALSE(ge::Graph("new").IsValid());
}

TEST(GeObjects, IrVersion) {
  int major = 9, minor = 9, patch = 9;
  EXPECT_EQ(ge::aclgrphGetIRVersion(&major, &minor, &patch), GRAPH_SUCCESS);
  EXPECT_TRUE(major == 1 && minor == 0 && patch == 0);
  EXPECT_EQ(ge::aclgrphGetIRVersion(nullptr, &minor, &patch), GRAPH_PARAM_INVALID);
  EXPECT_EQ(ge::aclgrphBuildInitialize(Options{}), GRAPH_SUCCESS);
  ge::aclgrphBuildFinalize();
}

}  // namespace
}  // namespace ge_test
