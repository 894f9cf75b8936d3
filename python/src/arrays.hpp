// Arrays of any framework as operands of a call.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "call.hpp"
#include "dlpack.hpp"

namespace normgrad::python {

namespace nb = nanobind;

// Sets the Python exception of the code, with the sentence, and throws it.
[[noreturn]] void raise(Code code, const std::string& sentence);

// Reads the operands of one call and keeps what they borrow until it is over. An array is None
// (absent), an object with DLPack, or a tuple (data, dtype, shape, strides, device_type, device_id)
// with strides in elements or None. The first one, x, says where the call runs.
class Reader {
 public:
  Reader(Call& call, nb::handle stream) : call_(call), stream_(stream) {}

  Reader& input(Role role, const char* name, nb::handle array) {
    read(role, name, array, /*output=*/false);
    return *this;
  }
  Reader& output(Role role, const char* name, nb::handle array) {
    read(role, name, array, /*output=*/true);
    return *this;
  }
  Reader& required(Role role, const char* name, nb::handle array);

  // The device's stream that the call runs on: the caller's, or else that of x's framework.
  void* stream() const;

  // The pointer of a workspace array.
  void* memory(nb::handle array);

 private:
  struct View {
    dlpack::Tensor tensor;
    bool read_only = false;
  };
  void read(Role role, const char* name, nb::handle array, bool output);
  View view_of(const char* name, nb::handle array);
  View from_tuple(const char* name, nb::tuple array);
  View from_capsule(const char* name, nb::handle array);

  Call& call_;
  nb::handle stream_;
  const dlpack::ExchangeApi* api_ = nullptr;  // of x
  bool placed_ = false;
  std::array<int64_t, 2 * kMaxRank> words_;  // shape and strides of the last tuple
  std::vector<nb::object> kept_;
};

}  // namespace normgrad::python
