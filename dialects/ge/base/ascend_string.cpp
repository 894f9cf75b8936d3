// AscendString: immutable text that copies share.
#include "graph/ascend_string.h"

#include <cstring>
#include <string_view>

namespace ge {

AscendString::AscendString(const char* text) : AscendString(text, text ? std::strlen(text) : 0) {}

AscendString::AscendString(const char* text, size_t length) {
  if (text && length > 0) text_ = std::make_shared<const std::string>(text, length);
}

const char* AscendString::GetString() const { return text_ ? text_->c_str() : ""; }

size_t AscendString::GetLength() const { return text_ ? text_->size() : 0; }

size_t AscendString::Find(const AscendString& part) const {
  return std::string_view(GetString(), GetLength())
      .find(std::string_view(part.GetString(), part.GetLength()));
}

size_t AscendString::Hash() const {
  return std::hash<std::string_view>()(std::string_view(GetString(), GetLength()));
}

namespace {
int compare(const AscendString& a, const AscendString& b) {
  return std::string_view(a.GetString(), a.GetLength())
      .compare(std::string_view(b.GetString(), b.GetLength()));
}
}  // namespace

bool AscendString::operator<(const AscendString& other) const { return compare(*this, other) < 0; }
bool AscendString::operator>(const AscendString& other) const { return compare(*this, other) > 0; }
bool AscendString::operator<=(const AscendString& other) const {
  return compare(*this, other) <= 0;
}
bool AscendString::operator>=(const AscendString& other) const {
  return compare(*this, other) >= 0;
}
bool AscendString::operator==(const AscendString& other) const {
  return compare(*this, other) == 0;
}
bool AscendString::operator!=(const AscendString& other) const {
  return compare(*this, other) != 0;
}

}  // namespace ge
