// The objects behind aclnn's opaque pointers. libnnopbase makes and destroys them, the operators
// in libopapi_nn look into them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "aclnn/acl_meta.h"
#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad::acl {

enum class Kind {
  kTensor,
  kScalar,
  kIntArray,
  kFloatArray,
  kBoolArray,
  kTensorList,
  kScalarList,
  kExecutor,
};

struct Object {
  explicit Object(Kind k) : kind(k) {}
  const Kind kind;
};

template <Kind K>
struct ObjectOf : Object {
  static constexpr Kind kKind = K;
  ObjectOf() : Object(K) {}
};

template <Kind K, class T>
struct ArrayOf : ObjectOf<K> {
  std::vector<T> values;
};

}  // namespace normgrad::acl

struct aclTensor : normgrad::acl::ObjectOf<normgrad::acl::Kind::kTensor> {
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  normgrad::Tensor view;  // its dtype counts only if the one above is one of the library's
  std::vector<int64_t> storage_shape;
  int64_t offset = 0;
  void* data = nullptr;
  uint64_t serial = 0;  // of this description: no two that were ever made have the same
};

struct aclScalar : normgrad::acl::ObjectOf<normgrad::acl::Kind::kScalar> {
  aclDataType dtype = ACL_DT_UNDEFINED;
  alignas(16) unsigned char value[16] = {};
};

// Not a vector of bool: the operators read it as an array.
struct aclBoolArray : normgrad::acl::ArrayOf<normgrad::acl::Kind::kBoolArray, unsigned char> {};
struct aclIntArray : normgrad::acl::ArrayOf<normgrad::acl::Kind::kIntArray, int64_t> {};
struct aclFloatArray : normgrad::acl::ArrayOf<normgrad::acl::Kind::kFloatArray, float> {};
struct aclTensorList : normgrad::acl::ArrayOf<normgrad::acl::Kind::kTensorList, aclTensor*> {};
struct aclScalarList : normgrad::acl::ArrayOf<normgrad::acl::Kind::kScalarList, aclScalar*> {};

namespace normgrad::acl {

// One of the caller's tensors as the first stage saw it. All but its address is fixed from then on;
// the serial number tells when it has been described anew, or another one has its place.
struct Operand {
  Operand(const aclTensor* t = nullptr)  // NOLINT: operators name tensors where operands go
      : tensor(t),
        serial(t ? t->serial : 0),
        offset(t ? t->offset * static_cast<int64_t>(size_of(t->view.dtype)) : 0) {}

  const aclTensor* tensor;
  uint64_t serial;
  int64_t offset;  // in bytes
};

// The tensors of a call, by the role they play; null where there is none.
struct Operands {
  Operand x = {};
  Operand dy = {};
  Operand gamma = {};
  Operand mean = {};
  Operand spread = {};
  Operand dx = {};
  Operand dgamma = {};
  Operand dbeta = {};
  Operand sum_dy = {};
  Operand sum_dy_xmu = {};
  Operand count = {};
  Operand dh = {};
  Operand residual = {};
  Operand beta = {};
  Operand y = {};
  Operand saved_mean = {};
  Operand saved_spread = {};
};

// A sum of x and residual, which comes first: it lies at the front of the workspace, where the
// call then finds its x.
struct Sum {
  static constexpr size_t kAlignment = 64;
  Plan plan;
  size_t bytes = 0;  // 0: there is none
};

}  // namespace normgrad::acl

// A checked call that waits for its second stage. `op` is the operator's name; each operator has
// one such array, so the pointer tells whose executor it is.
struct aclOpExecutor : normgrad::acl::ObjectOf<normgrad::acl::Kind::kExecutor> {
  aclOpExecutor(const char* o, const normgrad::acl::Operands& tensors,
                const normgrad::acl::Sum& first)
      : op(o), operands(tensors), sum(first) {}

  // The two plans run one after the other and share what is behind the sum.
  size_t workspace_size() const {
    if (sum.bytes == 0) return plan.workspace_size();
    return sum.kAlignment + sum.bytes + std::max(sum.plan.workspace_size(), plan.workspace_size());
  }

  const char* const op;
  const normgrad::acl::Operands operands;
  const normgrad::acl::Sum sum;
  normgrad::Plan plan;
  int gpu = -1;  // the one that the plan was made for, if any
  bool repeatable = false;
};

// What libopapi_nn needs of libnnopbase. Not in any public header.
extern "C" {
// Whether `object` is a live object of that kind. Pointers to anything else are not read.
__attribute__((visibility("default"))) bool normgradAclIsLive(const void* object,
                                                              normgrad::acl::Kind kind) noexcept;
// Takes an object into the set of live ones; false when memory ran out.
__attribute__((visibility("default"))) bool normgradAclEnter(
    const normgrad::acl::Object* object) noexcept;
// The second stage of operator `op`.
__attribute__((visibility("default"))) int32_t normgradAclRun(const char* op, void* workspace,
                                                              uint64_t workspace_size,
                                                              aclOpExecutor* executor,
                                                              aclrtStream stream) noexcept;
}
