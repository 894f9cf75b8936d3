// AttrValue: one of the types of its variant; integers and texts convert within their kind.
#include "graph/attr_value.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "error.hpp"
#include "graph/node.hpp"

namespace ge {

using normgrad::graph_mode::fail;
using normgrad::graph_mode::guard;

namespace {

// What values of a type are kept as: itself, but for integers and texts.
template <class T>
struct Kept {
  using Type = T;
};
template <>
struct Kept<int32_t> {
  using Type = int64_t;
};
template <>
struct Kept<uint32_t> {
  using Type = int64_t;
};
template <>
struct Kept<AscendString> {
  using Type = std::string;
};
template <class T>
struct Kept<std::vector<T>> {
  using Type = std::vector<typename Kept<T>::Type>;
};

// Both directions; false where an integer does not fit.
template <class From, class To>
bool convert(const From& from, To& to) {
  if constexpr (std::is_same_v<From, AscendString>) {
    to = std::string(from.GetString(), from.GetLength());
  } else if constexpr (std::is_same_v<To, AscendString>) {
    to = AscendString(from.c_str(), from.size());
  } else if constexpr (std::is_same_v<From, To>) {
    to = from;
  } else {
    to = static_cast<To>(from);
    return static_cast<int64_t>(to) == static_cast<int64_t>(from);
  }
  return true;
}

template <class From, class To>
bool convert(const std::vector<From>& from, std::vector<To>& to) {
  if constexpr (std::is_same_v<From, To>) {
    to = from;
    return true;
  } else {
    to.resize(from.size());
    return std::equal(from.begin(), from.end(), to.begin(),
                      [](const From& a, To& b) { return convert(a, b); });
  }
}

template <class T>
graphStatus set(std::shared_ptr<const AttrValueImpl>& impl, const T& value) {
  return guard([&] {
    typename Kept<T>::Type kept{};
    (void)convert(value, kept);  // widening always fits
    impl = std::make_shared<const AttrValueImpl>(AttrValueImpl{std::move(kept)});
    return GRAPH_SUCCESS;
  });
}

template <class T>
graphStatus get(const std::shared_ptr<const AttrValueImpl>& impl, T& value) {
  return guard([&]() -> uint32_t {
    const auto* kept = impl ? std::get_if<typename Kept<T>::Type>(&impl->value) : nullptr;
    if (!kept) return fail(GRAPH_FAILED, "AttrValue: it is not set, or of another type");
    T converted{};
    if (!convert(*kept, converted)) {
      return fail(GRAPH_FAILED, "AttrValue: an integer does not fit the type it is read as");
    }
    value = std::move(converted);
    return GRAPH_SUCCESS;
  });
}

}  // namespace

graphStatus AttrValue::SetAttrValue(const char* value) { return SetAttrValue(AscendString(value)); }

#define NORMGRAD_GE_SET(T) \
  graphStatus AttrValue::SetAttrValue(T value) { return set(impl_, value); }
#define NORMGRAD_GE_GET(T) \
  graphStatus AttrValue::GetAttrValue(T value) const { return get(impl_, value); }
NORMGRAD_GE_SET(int64_t)
NORMGRAD_GE_SET(int32_t)
NORMGRAD_GE_SET(uint32_t)
NORMGRAD_GE_SET(float)
NORMGRAD_GE_SET(bool)
NORMGRAD_GE_SET(const std::string&)
NORMGRAD_GE_SET(const AscendString&)
NORMGRAD_GE_SET(const Tensor&)
NORMGRAD_GE_SET(DataType)
NORMGRAD_GE_SET(const NamedAttrs&)
NORMGRAD_GE_SET(const std::vector<int64_t>&)
NORMGRAD_GE_SET(const std::vector<int32_t>&)
NORMGRAD_GE_SET(const std::vector<uint32_t>&)
NORMGRAD_GE_SET(const std::vector<uint8_t>&)
NORMGRAD_GE_SET(const std::vector<float>&)
NORMGRAD_GE_SET(const std::vector<bool>&)
NORMGRAD_GE_SET(const std::vector<std::string>&)
NORMGRAD_GE_SET(const std::vector<AscendString>&)
NORMGRAD_GE_SET(const std::vector<Tensor>&)
NORMGRAD_GE_SET(const std::vector<DataType>&)
NORMGRAD_GE_SET(const std::vector<NamedAttrs>&)
NORMGRAD_GE_SET(const std::vector<std::vector<int64_t>>&)
NORMGRAD_GE_GET(int64_t&)
NORMGRAD_GE_GET(int32_t&)
NORMGRAD_GE_GET(uint32_t&)
NORMGRAD_GE_GET(float&)
NORMGRAD_GE_GET(bool&)
NORMGRAD_GE_GET(std::string&)
NORMGRAD_GE_GET(AscendString&)
NORMGRAD_GE_GET(Tensor&)
NORMGRAD_GE_GET(DataType&)
NORMGRAD_GE_GET(NamedAttrs&)
NORMGRAD_GE_GET(std::vector<int64_t>&)
NORMGRAD_GE_GET(std::vector<int32_t>&)
NORMGRAD_GE_GET(std::vector<uint32_t>&)
NORMGRAD_GE_GET(std::vector<uint8_t>&)
NORMGRAD_GE_GET(std::vector<float>&)
NORMGRAD_GE_GET(std::vector<bool>&)
NORMGRAD_GE_GET(std::vector<std::string>&)
NORMGRAD_GE_GET(std::vector<AscendString>&)
NORMGRAD_GE_GET(std::vector<Tensor>&)
NORMGRAD_GE_GET(std::vector<DataType>&)
NORMGRAD_GE_GET(std::vector<NamedAttrs>&)
NORMGRAD_GE_GET(std::vector<std::vector<int64_t>>&)
#undef NORMGRAD_GE_SET
#undef NORMGRAD_GE_GET

NamedAttrs::NamedAttrs() : impl_(std::make_shared<NamedAttrsImpl>()) {}
void NamedAttrs::SetName(const char* name) { impl_->name = name ? name : ""; }
void NamedAttrs::SetName(const std::string& name) { impl_->name = name; }
AscendString NamedAttrs::GetName() const { return impl_->name.c_str(); }

graphStatus NamedAttrs::SetAttr(const AscendString& name, const AttrValue& value) {
  return guard([&] {
    impl_->attributes[name.GetString()] = value;
    return GRAPH_SUCCESS;
  });
}

graphStatus NamedAttrs::GetAttr(const AscendString& name, AttrValue& value) const {
  return guard([&]() -> uint32_t {
    const auto found = impl_->attributes.find(name.GetString());
    if (found == impl_->attributes.end()) {
      return fail(GRAPH_FAILED, "NamedAttrs '" + impl_->name + "': it has no attribute '" +
                                    name.GetString() + "'");
    }
    value = found->second;
    return GRAPH_SUCCESS;
  });
}

}  // namespace ge
