// AttrValue: an attribute of an operator, of one of the types listed here. NamedAttrs: a named set
// of them.
#ifndef NORMGRAD_GE_GRAPH_ATTR_VALUE_H_
#define NORMGRAD_GE_GRAPH_ATTR_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/ascend_string.h"
#include "graph/error_codes.h"
#include "graph/tensor.h"
#include "graph/types.h"

namespace ge {

struct AttrValueImpl;
struct NamedAttrsImpl;
class NamedAttrs;

// A value: copies share what they hold, which setting replaces. All integers are kept as int64_t
// and all text as std::string, so that they can be read as any type of their kind that they fit.
class NORMGRAD_GE_EXPORT AttrValue {
 public:
  graphStatus SetAttrValue(int64_t value);
  graphStatus SetAttrValue(int32_t value);
  graphStatus SetAttrValue(uint32_t value);
  graphStatus SetAttrValue(float value);
  graphStatus SetAttrValue(bool value);
  graphStatus SetAttrValue(const char* value);
  graphStatus SetAttrValue(const std::string& value);
  graphStatus SetAttrValue(const AscendString& value);
  graphStatus SetAttrValue(const Tensor& value);
  graphStatus SetAttrValue(DataType value);
  graphStatus SetAttrValue(const NamedAttrs& value);
  graphStatus SetAttrValue(const std::vector<int64_t>& value);
  graphStatus SetAttrValue(const std::vector<int32_t>& value);
  graphStatus SetAttrValue(const std::vector<uint32_t>& value);
  graphStatus SetAttrValue(const std::vector<uint8_t>& value);
  graphStatus SetAttrValue(const std::vector<float>& value);
  graphStatus SetAttrValue(const std::vector<bool>& value);
  graphStatus SetAttrValue(const std::vector<std::string>& value);
  graphStatus SetAttrValue(const std::vector<AscendString>& value);
  graphStatus SetAttrValue(const std::vector<Tensor>& value);
  graphStatus SetAttrValue(const std::vector<DataType>& value);
  graphStatus SetAttrValue(const std::vector<NamedAttrs>& value);
  graphStatus SetAttrValue(const std::vector<std::vector<int64_t>>& value);

  // GRAPH_FAILED, and nothing changes, if the attribute is of another type.
  graphStatus GetAttrValue(int64_t& value) const;
  graphStatus GetAttrValue(int32_t& value) const;
  graphStatus GetAttrValue(uint32_t& value) const;
  graphStatus GetAttrValue(float& value) const;
  graphStatus GetAttrValue(bool& value) const;
  graphStatus GetAttrValue(std::string& value) const;
  graphStatus GetAttrValue(AscendString& value) const;
  graphStatus GetAttrValue(Tensor& value) const;
  graphStatus GetAttrValue(DataType& value) const;
  graphStatus GetAttrValue(NamedAttrs& value) const;
  graphStatus GetAttrValue(std::vector<int64_t>& value) const;
  graphStatus GetAttrValue(std::vector<int32_t>& value) const;
  graphStatus GetAttrValue(std::vector<uint32_t>& value) const;
  graphStatus GetAttrValue(std::vector<uint8_t>& value) const;
  graphStatus GetAttrValue(std::vector<float>& value) const;
  graphStatus GetAttrValue(std::vector<bool>& value) const;
  graphStatus GetAttrValue(std::vector<std::string>& value) const;
  graphStatus GetAttrValue(std::vector<AscendString>& value) const;
  graphStatus GetAttrValue(std::vector<Tensor>& value) const;
  graphStatus GetAttrValue(std::vector<DataType>& value) const;
  graphStatus GetAttrValue(std::vector<NamedAttrs>& value) const;
  graphStatus GetAttrValue(std::vector<std::vector<int64_t>>& value) const;

 private:
  friend struct Internals;
  std::shared_ptr<const AttrValueImpl> impl_;  // null: never set
};

// A handle: copies share the set.
class NORMGRAD_GE_EXPORT NamedAttrs {
 public:
  NamedAttrs();
  void SetName(const char* name);
  void SetName(const std::string& name);
  AscendString GetName() const;
  graphStatus SetAttr(const AscendString& name, const AttrValue& value);
  graphStatus GetAttr(const AscendString& name, AttrValue& value) const;

 private:
  friend struct Internals;
  std::shared_ptr<NamedAttrsImpl> impl_;
};

}  // namespace ge

#endif  // NORMGRAD_GE_GRAPH_ATTR_VALUE_H_
