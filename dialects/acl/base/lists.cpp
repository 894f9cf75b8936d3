// Lists of tensors and scalars, which own their members.
#include <memory>

#include "base/live.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

template <class List, class T>
List* create(const T* const* members, uint64_t size) noexcept {
  List* made = nullptr;
  guarded(kInner, [&]() -> int32_t {
    auto list = std::make_unique<List>();
    for (uint64_t i = 0; members && i < size; ++i) {
      if (members[i] && !normgradAclIsLive(members[i], T::kKind)) {
        return not_live("value", members[i]);
      }
      list->values.push_back(const_cast<T*>(members[i]));  // the list owns it from here on
    }
    made = publish(std::move(list));
    return kSuccess;
  });
  return made;
}

// A member that is gone already, or there twice, is told but keeps nobody from going.
template <class List>
aclnnStatus destroy_list(const List* list, const char* name) noexcept {
  if (!list) return kSuccess;
  int32_t status = take(list, name);
  if (status != kSuccess) return status;
  for (const auto* member : list->values) {
    const int32_t destroyed = destroy(member, "a member of the list");
    if (status == kSuccess) status = destroyed;
  }
  delete list;
  return status;
}

template <class List>
aclnnStatus get_size(const List* list, const char* name, uint64_t* size) noexcept {
  if (const int32_t status = check(list, name, size, "size")) return status;
  *size = list->values.size();
  return kSuccess;
}

}  // namespace

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return create<aclTensorList>(value, size);
}

aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return create<aclScalarList>(value, size);
}

aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  return destroy_list(array, "tensorList");
}

aclnnStatus aclDestroyScalarList(const aclScalarList* array) {
  return destroy_list(array, "scalarList");
}

aclnnStatus aclGetTensorListSize(const aclTensorList* tensorList, uint64_t* size) {
  return get_size(tensorList, "tensorList", size);
}

aclnnStatus aclGetScalarListSize(const aclScalarList* scalarList, uint64_t* size) {
  return get_size(scalarList, "scalarList", size);
}
