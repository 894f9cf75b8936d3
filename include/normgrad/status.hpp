// Status: how every call of the library answers. A code for programs, a sentence for people.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "normgrad/export.hpp"

namespace normgrad {

enum class Code {
  kOk,
  kNullPointer,            // a required pointer is null
  kBadArgument,            // an argument is out of its range, or buffers overlap
  kBadDType,               // an element type is not supported, or does not fit the others
  kBadShape,               // ranks or extents do not fit together, or overflow
  kBadStrides,             // a layout is not supported, or an output overlaps itself
  kInsufficientWorkspace,  // the workspace is smaller than the plan asked for
  kUnsupportedDevice,      // the device, or the implementation asked for, is not in this build
  kInternal,               // out of memory, or the device failed
  kCommunication,          // a rank failed, missed the deadline, or does not fit the others
};

// The message names the argument, what was expected and what came. It is empty for kOk.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// What the throwing half of the C++ API throws.
class NORMGRAD_EXPORT Error : public std::runtime_error {
 public:
  explicit Error(const Status& status)
      : std::runtime_error(status.message()), code_(status.code()) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

}  // namespace normgrad
