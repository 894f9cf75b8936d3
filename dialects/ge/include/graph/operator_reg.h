// REG_OP: an operator's prototype, written as a chain, becomes a class with a setter and getter
// for each input, output and attribute:
//
//   namespace ge {
//   REG_OP(Scale)
//       .INPUT(x, TensorType({DT_FLOAT}))
//       .OUTPUT(y, TensorType({DT_FLOAT}))
//       .ATTR(factor, Float, 1.0f)
//       .OP_END_FACTORY_REG(Scale)
//   }
//
// Each link of the chain ends the function that the link before it has begun, declares its members
// and begins a function of its own, which the one before calls: so the constructor runs them all.
// The types of inputs and outputs are documentation: they are never evaluated.
#ifndef NORMGRAD_GE_GRAPH_OPERATOR_REG_H_
#define NORMGRAD_GE_GRAPH_OPERATOR_REG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "graph/graph.h"
#include "graph/operator.h"
#include "graph/operator_factory.h"

namespace ge {

// What each link of the chain begins with, so that the next may begin with a dot.
struct OpReg {
  OpReg& End() { return *this; }
};

// Whether `Given` is the C text that an attribute of type `Value` can be set from.
template <class Value, class Given>
struct IsText {
  static const bool value =
      (std::is_same<Value, std::string>::value || std::is_same<Value, AscendString>::value) &&
      (std::is_same<Given, const char*>::value || std::is_same<Given, char*>::value);
};

template <class T>
AttrValue MakeAttrValue(const T& value) {
  AttrValue attribute;
  attribute.SetAttrValue(value);
  return attribute;
}

}  // namespace ge

#define REG_OP(Type)                                                                            \
  namespace op {                                                                                \
  class Type : public ::ge::Operator {                                                          \
    typedef Type ThisOp;                                                                        \
                                                                                                \
   public:                                                                                      \
    Type() : ::ge::Operator(#Type) { Declare(); }                                               \
    explicit Type(const char* name) : ::ge::Operator(name, #Type) { Declare(); }                \
    explicit Type(const std::string& name) : ::ge::Operator(name.c_str(), #Type) { Declare(); } \
    explicit Type(const ::ge::AscendString& name) : ::ge::Operator(name.GetString(), #Type) {   \
      Declare();                                                                                \
    }                                                                                           \
                                                                                                \
   private:                                                                                     \
    void Declare() {                                                                            \
      ::ge::OpReg()

// Between two links: ends the function begun, which calls the next; begins the next.
#define NORMGRAD_GE_NEXT(link) \
  End();                       \
  Declare_##link();            \
  }                            \
                               \
 public:
#define NORMGRAD_GE_BEGIN(link) \
 private:                       \
  void Declare_##link() {
#define NORMGRAD_GE_NAME(kind, name)                          \
  static std::string name_##kind##_##name() { return #name; } \
  static void name_##kind##_##name(::ge::AscendString& text) { text = #name; }

#define NORMGRAD_GE_INPUT(name, Register)                                      \
  NORMGRAD_GE_NEXT(input_##name)                                               \
  NORMGRAD_GE_NAME(in, name)                                                   \
  ThisOp& set_input_##name(::ge::Operator& v) {                                \
    ::ge::Operator::SetInput(#name, v);                                        \
    return *this;                                                              \
  }                                                                            \
  ThisOp& set_input_##name(::ge::Operator& v, uint32_t index) {                \
    ::ge::Operator::SetInput(#name, v, index);                                 \
    return *this;                                                              \
  }                                                                            \
  ThisOp& set_input_##name(::ge::Operator& v, const std::string& srcName) {    \
    ::ge::Operator::SetInput(#name, v, srcName.c_str());                       \
    return *this;                                                              \
  }                                                                            \
  ThisOp& set_input_##name##_by_name(::ge::Operator& v, const char* srcName) { \
    ::ge::Operator::SetInput(#name, v, srcName);                               \
    return *this;                                                              \
  }                                                                            \
  ::ge::TensorDesc get_input_desc_##name() const {                             \
    return ::ge::Operator::GetInputDescByName(#name);                          \
  }                                                                            \
  ::ge::graphStatus update_input_desc_##name(const ::ge::TensorDesc& desc) {   \
    return ::ge::Operator::UpdateInputDesc(#name, desc);                       \
  }                                                                            \
  NORMGRAD_GE_BEGIN(input_##name)                                              \
  ::ge::Operator::Register(#name);                                             \
  ::ge::OpReg()

#define INPUT(name, type) NORMGRAD_GE_INPUT(name, InputRegister)
#define OPTIONAL_INPUT(name, type) NORMGRAD_GE_INPUT(name, OptionalInputRegister)

#define OUTPUT(name, type)                                                    \
  NORMGRAD_GE_NEXT(output_##name)                                             \
  NORMGRAD_GE_NAME(out, name)                                                 \
  ::ge::TensorDesc get_output_desc_##name() const {                           \
    return ::ge::Operator::GetOutputDescByName(#name);                        \
  }                                                                           \
  ::ge::graphStatus update_output_desc_##name(const ::ge::TensorDesc& desc) { \
    return ::ge::Operator::UpdateOutputDesc(#name, desc);                     \
  }                                                                           \
  NORMGRAD_GE_BEGIN(output_##name)                                            \
  ::ge::Operator::OutputRegister(#name);                                      \
  ::ge::OpReg()

// The elements of a dynamic input or output x are x0, x1, and so on.
#define DYNAMIC_INPUT(name, type)                                                    \
  NORMGRAD_GE_NEXT(input_##name)                                                     \
  NORMGRAD_GE_NAME(in, name)                                                         \
  ThisOp& create_dynamic_input_##name(uint32_t num, bool pushBack = true) {          \
    ::ge::Operator::DynamicInputRegister(#name, num, pushBack);                      \
    return *this;                                                                    \
  }                                                                                  \
  ThisOp& create_dynamic_input_byindex_##name(uint32_t num, size_t index) {          \
    ::ge::Operator::DynamicInputRegisterByIndex(#name, num, index);                  \
    return *this;                                                                    \
  }                                                                                  \
  ThisOp& set_dynamic_input_##name(uint32_t index, ::ge::Operator& v) {              \
    ::ge::Operator::SetInput(#name + std::to_string(index), v);                      \
    return *this;                                                                    \
  }                                                                                  \
  ThisOp& set_dynamic_input_##name(uint32_t index, ::ge::Operator& v,                \
                                   const std::string& srcName) {                     \
    ::ge::Operator::SetInput(#name + std::to_string(index), v, srcName);             \
    return *this;                                                                    \
  }                                                                                  \
  ::ge::TensorDesc get_dynamic_input_desc_##name(uint32_t index) const {             \
    return ::ge::Operator::GetInputDesc(#name + std::to_string(index));              \
  }                                                                                  \
  ::ge::graphStatus update_dynamic_input_desc_##name(uint32_t index,                 \
                                                     const ::ge::TensorDesc& desc) { \
    return ::ge::Operator::UpdateInputDesc(#name + std::to_string(index), desc);     \
  }                                                                                  \
  NORMGRAD_GE_BEGIN(input_##name)                                                    \
  ::ge::OpReg()

#define DYNAMIC_OUTPUT(name, type)                                                    \
  NORMGRAD_GE_NEXT(output_##name)                                                     \
  NORMGRAD_GE_NAME(out, name)                                                         \
  ThisOp& create_dynamic_output_##name(uint32_t num, bool pushBack = true) {          \
    ::ge::Operator::DynamicOutputRegister(#name, num, pushBack);                      \
    return *this;                                                                     \
  }                                                                                   \
  ::ge::TensorDesc get_dynamic_output_desc_##name(uint32_t index) const {             \
    return ::ge::Operator::GetOutputDesc(#name + std::to_string(index));              \
  }                                                                                   \
  ::ge::graphStatus update_dynamic_output_desc_##name(uint32_t index,                 \
                                                      const ::ge::TensorDesc& desc) { \
    return ::ge::Operator::UpdateOutputDesc(#name + std::to_string(index), desc);     \
  }                                                                                   \
  NORMGRAD_GE_BEGIN(output_##name)                                                    \
  ::ge::OpReg()

// Values that come from a function are not supported: that setter does nothing.
#define NORMGRAD_GE_ATTR(name, Type)                                                           \
  NORMGRAD_GE_NEXT(attr_##name)                                                                \
  NORMGRAD_GE_NAME(attr, name)                                                                 \
  Op##Type get_attr_##name() const {                                                           \
    Op##Type value = Op##Type();                                                               \
    (void)::ge::Operator::GetAttr(#name, value);                                               \
    return value;                                                                              \
  }                                                                                            \
  ThisOp& set_attr_##name(const Op##Type& v) {                                                 \
    ::ge::Operator::SetAttr(#name, v);                                                         \
    return *this;                                                                              \
  }                                                                                            \
  template <class Text>                                                                        \
  typename std::enable_if<::ge::IsText<Op##Type, Text>::value, ThisOp&>::type set_attr_##name( \
      Text v) {                                                                                \
    ::ge::Operator::SetAttr(#name, static_cast<const char*>(v));                               \
    return *this;                                                                              \
  }                                                                                            \
  ThisOp& set_attr_##name(const std::function<Op##Type()>&) { return *this; }                  \
  NORMGRAD_GE_BEGIN(attr_##name)

#define ATTR(name, Type, ...)                                                      \
  NORMGRAD_GE_ATTR(name, Type)                                                     \
  ::ge::Operator::AttrRegister(#name, ::ge::MakeAttrValue(Op##Type(__VA_ARGS__))); \
  ::ge::OpReg()
#define REQUIRED_ATTR(name, Type) \
  NORMGRAD_GE_ATTR(name, Type)    \
  ::ge::OpReg()

#define GRAPH(name)                                               \
  NORMGRAD_GE_NEXT(graph_##name)                                  \
  NORMGRAD_GE_NAME(graph, name)                                   \
  ThisOp& set_subgraph_builder_##name(const SubgraphBuilder& v) { \
    ::ge::Operator::SetSubgraphBuilder(#name, v);                 \
    return *this;                                                 \
  }                                                               \
  SubgraphBuilder get_subgraph_builder_##name() const {           \
    return ::ge::Operator::GetSubgraphBuilder(#name);             \
  }                                                               \
  ::ge::Graph get_subgraph_##name() const {                       \
    const SubgraphBuilder build = get_subgraph_builder_##name();  \
    return build ? build() : ::ge::Graph();                       \
  }                                                               \
  NORMGRAD_GE_BEGIN(graph_##name)                                 \
  ::ge::OpReg()

#define DYNAMIC_GRAPH(name)                                                               \
  NORMGRAD_GE_NEXT(graph_##name)                                                          \
  NORMGRAD_GE_NAME(graph, name)                                                           \
  ThisOp& create_dynamic_subgraph_##name(uint32_t) { return *this; }                      \
  ThisOp& set_dynamic_subgraph_builder_##name(uint32_t index, const SubgraphBuilder& v) { \
    ::ge::Operator::SetSubgraphBuilder((#name + std::to_string(index)).c_str(), v);       \
    return *this;                                                                         \
  }                                                                                       \
  SubgraphBuilder get_dynamic_subgraph_builder_##name(uint32_t index) const {             \
    return ::ge::Operator::GetSubgraphBuilder((#name + std::to_string(index)).c_str());   \
  }                                                                                       \
  ::ge::Graph get_dynamic_subgraph_##name(uint32_t index) const {                         \
    const SubgraphBuilder build = get_dynamic_subgraph_builder_##name(index);             \
    return build ? build() : ::ge::Graph();                                               \
  }                                                                                       \
  NORMGRAD_GE_BEGIN(graph_##name)                                                         \
  ::ge::OpReg()

#define DATATYPE(symbol, type)         \
  NORMGRAD_GE_NEXT(datatype_##symbol)  \
  NORMGRAD_GE_BEGIN(datatype_##symbol) \
  ::ge::OpReg()

#define OP_END_FACTORY_REG(Type)                                                            \
  End();                                                                                    \
  static_assert(std::is_same<ThisOp, Type>::value, "REG_OP and OP_END_FACTORY_REG differ"); \
  }                                                                                         \
  }                                                                                         \
  ;                                                                                         \
  static const ::ge::OperatorCreatorRegister register_##Type(                               \
      #Type, [](const char* name) -> ::ge::Operator { return Type(name); });                \
  }

#endif  // NORMGRAD_GE_GRAPH_OPERATOR_REG_H_
