// Operator: a node of a graph. A handle: copies are the same node.
#ifndef NORMGRAD_GE_GRAPH_OPERATOR_H_
#define NORMGRAD_GE_GRAPH_OPERATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "graph/ascend_string.h"
#include "graph/attr_value.h"
#include "graph/error_codes.h"
#include "graph/tensor.h"
#include "graph/types.h"

namespace ge {

class Graph;
struct OperatorImpl;

class NORMGRAD_GE_EXPORT Operator {
 public:
  typedef std::function<Graph()> SubgraphBuilder;

  // The types that prototypes call Int, Float and so on.
  typedef int64_t OpInt;
  typedef float OpFloat;
  typedef bool OpBool;
  typedef std::string OpString;
  typedef AscendString OpAscendString;
  typedef Tensor OpTensor;
  typedef DataType OpType;
  typedef NamedAttrs OpNamedAttrs;
  typedef std::vector<uint8_t> OpBytes;
  typedef std::vector<int64_t> OpListInt;
  typedef std::vector<float> OpListFloat;
  typedef std::vector<bool> OpListBool;
  typedef std::vector<std::string> OpListString;
  typedef std::vector<AscendString> OpListAscendString;
  typedef std::vector<Tensor> OpListTensor;
  typedef std::vector<DataType> OpListType;
  typedef std::vector<NamedAttrs> OpListNamedAttrs;
  typedef std::vector<std::vector<int64_t>> OpListListInt;

  Operator() = default;  // no node
  // A name is made up from the type.
  explicit Operator(const char* type);
  explicit Operator(const std::string& type);
  explicit Operator(const AscendString& type);
  Operator(const char* name, const char* type);
  Operator(const std::string& name, const std::string& type);
  Operator(const AscendString& name, const AscendString& type);
  Operator(const Operator&) = default;
  Operator& operator=(const Operator&) = default;
  virtual ~Operator();

  bool IsEmpty() const;
  graphStatus GetName(AscendString& name) const;
  std::string GetName() const;
  graphStatus GetOpType(AscendString& type) const;
  std::string GetOpType() const;

  // Feeds input `dst` with an output of `src`: its only one, or the one of that index or name. What
  // cannot be done is remembered: a graph with this node is refused with the reason.
  Operator& SetInput(const char* dst, const Operator& src);
  Operator& SetInput(const std::string& dst, const Operator& src);
  Operator& SetInput(const char* dst, const Operator& src, const char* output);
  Operator& SetInput(const std::string& dst, const Operator& src, const std::string& output);
  template <class Index>
  typename std::enable_if<std::is_integral<Index>::value, Operator&>::type SetInput(
      const char* dst, const Operator& src, Index index) {
    return SetInputByIndex(dst, src, static_cast<uint32_t>(index));
  }
  template <class Index>
  typename std::enable_if<std::is_integral<Index>::value, Operator&>::type SetInput(
      const std::string& dst, const Operator& src, Index index) {
    return SetInputByIndex(dst.c_str(), src, static_cast<uint32_t>(index));
  }

  size_t GetInputsSize() const;
  size_t GetOutputsSize() const;
  TensorDesc GetInputDesc(uint32_t index) const;
  TensorDesc GetInputDesc(const std::string& name) const;
  TensorDesc GetInputDescByName(const char* name) const;
  TensorDesc GetOutputDesc(uint32_t index) const;
  TensorDesc GetOutputDesc(const std::string& name) const;
  TensorDesc GetOutputDescByName(const char* name) const;
  graphStatus UpdateInputDesc(const char* name, const TensorDesc& desc);
  graphStatus UpdateInputDesc(const std::string& name, const TensorDesc& desc);
  graphStatus UpdateOutputDesc(const char* name, const TensorDesc& desc);
  graphStatus UpdateOutputDesc(const std::string& name, const TensorDesc& desc);
  template <class Index>
  typename std::enable_if<std::is_integral<Index>::value, graphStatus>::type UpdateInputDesc(
      Index index, const TensorDesc& desc) {
    return UpdateInputDescByIndex(static_cast<uint32_t>(index), desc);
  }
  template <class Index>
  typename std::enable_if<std::is_integral<Index>::value, graphStatus>::type UpdateOutputDesc(
      Index index, const TensorDesc& desc) {
    return UpdateOutputDescByIndex(static_cast<uint32_t>(index), desc);
  }

  // Values of every type that AttrValue has.
  Operator& SetAttr(const char* name, const AttrValue& value);
  graphStatus GetAttr(const char* name, AttrValue& value) const;
  template <class T>
  Operator& SetAttr(const char* name, const T& value) {
    AttrValue attribute;
    attribute.SetAttrValue(value);
    return SetAttr(name, attribute);
  }
  template <class T>
  Operator& SetAttr(const std::string& name, const T& value) {
    return SetAttr(name.c_str(), value);
  }
  template <class T>
  Operator& SetAttr(const AscendString& name, const T& value) {
    return SetAttr(name.GetString(), value);
  }
  template <class T>
  graphStatus GetAttr(const char* name, T& value) const {
    AttrValue attribute;
    const graphStatus status = GetAttr(name, attribute);
    return status == GRAPH_SUCCESS ? attribute.GetAttrValue(value) : status;
  }
  template <class T>
  graphStatus GetAttr(const std::string& name, T& value) const {
    return GetAttr(name.c_str(), value);
  }
  template <class T>
  graphStatus GetAttr(const AscendString& name, T& value) const {
    return GetAttr(name.GetString(), value);
  }

  // Sets the output descriptions from those of the inputs. Unknown extents and ranks pass through;
  // a type that was stated for a parameter gradient stays.
  graphStatus InferShapeAndType();

 protected:
  // What the macros of operator_reg.h call.
  void InputRegister(const char* name);
  void OptionalInputRegister(const char* name);
  void OutputRegister(const char* name);
  void AttrRegister(const char* name, const AttrValue& value);
  void DynamicInputRegister(const char* name, uint32_t count, bool push_back);
  void DynamicInputRegisterByIndex(const char* name, uint32_t count, size_t index);
  void DynamicOutputRegister(const char* name, uint32_t count, bool push_back);
  void SetSubgraphBuilder(const char* name, const SubgraphBuilder& builder);
  SubgraphBuilder GetSubgraphBuilder(const char* name) const;

 private:
  friend struct Internals;
  Operator& SetInputByIndex(const char* dst, const Operator& src, uint32_t index);
  graphStatus UpdateInputDescByIndex(uint32_t index, const TensorDesc& desc);
  graphStatus UpdateOutputDescByIndex(uint32_t index, const TensorDesc& desc);

  std::shared_ptr<OperatorImpl> impl_;
};

}  // namespace ge

#endif  // NORMGRAD_GE_GRAPH_OPERATOR_H_
