// AscendString: text that crosses the API, whichever std::string either side was built with.
#ifndef NORMGRAD_GE_GRAPH_ASCEND_STRING_H_
#define NORMGRAD_GE_GRAPH_ASCEND_STRING_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "graph/types.h"

namespace ge {

class NORMGRAD_GE_EXPORT AscendString {
 public:
  AscendString() = default;
  // Null is the empty text.
  AscendString(const char* text);  // NOLINT(google-explicit-constructor): programs pass literals
  AscendString(const char* text, size_t length);

  const char* GetString() const;  // never null
  size_t GetLength() const;
  size_t Find(const AscendString& part) const;  // std::string::npos if it is not there
  size_t Hash() const;

  bool operator<(const AscendString& other) const;
  bool operator>(const AscendString& other) const;
  bool operator<=(const AscendString& other) const;
  bool operator>=(const AscendString& other) const;
  bool operator==(const AscendString& other) const;
  bool operator!=(const AscendString& other) const;

 private:
  std::shared_ptr<const std::string> text_;  // null: empty
};

}  // namespace ge

namespace std {
template <>
struct hash<ge::AscendString> {
  size_t operator()(const ge::AscendString& text) const { return text.Hash(); }
};
}  // namespace std

#endif  // NORMGRAD_GE_GRAPH_ASCEND_STRING_H_
