// The checks that operators share. Each throws a sentence with the node, the argument, what was
// expected and what came.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "error.hpp"
#include "kinds/device.hpp"
#include "kinds/operator_kind.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad::graph_mode {

// "DT_FLOAT", "[2, 3, ?]"
NORMGRAD_GE_EXPORT std::string text(::ge::DataType type);
NORMGRAD_GE_EXPORT std::string text(const ::ge::Shape& shape);

// Whether extents and rank are known; how many elements or bytes there are then. Both are checked:
// -1 if the number does not fit, or the type has no size.
NORMGRAD_GE_EXPORT bool is_known(const ::ge::Shape& shape);
NORMGRAD_GE_EXPORT int64_t count_elements(const ::ge::Shape& shape);
NORMGRAD_GE_EXPORT int64_t count_bytes(const ::ge::TensorDesc& desc);

[[noreturn]] NORMGRAD_GE_EXPORT void refuse(const Invocation& invocation,
                                            const std::string& argument, const std::string& reason);

// Inputs are named by their place in the kind.
void expect_type(const Invocation& invocation, size_t input,
                 std::initializer_list<::ge::DataType> allowed);
void expect_same_type(const Invocation& invocation, size_t input, size_t as);
void expect_same_shape(const Invocation& invocation, size_t input, size_t as);

// DT_FLOAT, or the type of input `as`.
void expect_float_or_type(const Invocation& invocation, size_t input, size_t as);

// Plain formats; dy of rank 1 to 8 without empty axes, x of the same shape, type and, unless one of
// them is ND, format.
void check_data(const Invocation& invocation, size_t dy, size_t x);

// What rows need: a gamma that ends the shape of dy, and one statistic per row.
void check_rows(const Invocation& invocation, size_t dy, size_t gamma, size_t statistic);

// Two parameter gradients of one type.
void expect_same_output_type(const Invocation& invocation, size_t output, size_t as);

// The attribute, or `otherwise` if the prototype of the program does not have it.
template <class T>
T attribute(const Invocation& invocation, const char* name, const T& otherwise) {
  for (const auto& [key, value] : invocation.attributes) {
    if (key != name) continue;
    T result{};
    if (value.GetAttrValue(result) != ::ge::GRAPH_SUCCESS) {
      refuse(invocation, std::string("attribute ") + name, "it has another type than documented");
    }
    return result;
  }
  return otherwise;
}

Tensor native(const ::ge::TensorDesc& desc);

// Outputs that are to be computed: used, and not masked.
using Produced = std::vector<bool>;

// Plans `call` with the outputs produced; `outputs` are its places for them, in the order of the
// kind. With none the call is checked as if all were wanted.
template <class Call, size_t kOutputs>
Plan plan(const Invocation& invocation, Call call, const Produced& produced,
          const std::array<std::optional<Tensor> Call::*, kOutputs>& outputs) {
  bool any = false;
  for (size_t i = 0; i < kOutputs; ++i) any = any || produced[i];
  for (size_t i = 0; i < kOutputs; ++i) {
    if (produced[i] || !any) call.*outputs[i] = native(invocation.outputs[i]);
  }
  Plan made;
  const Status status = Plan::create(call, device(), made);
  if (!status.ok()) refuse(invocation, "", status.message());
  return any ? made : Plan();
}

}  // namespace normgrad::graph_mode
