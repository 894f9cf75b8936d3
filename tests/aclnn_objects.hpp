// What the tests of aclnn's objects and of its executor share.
#pragma once

#include <acl/acl.h>
#include <aclnnop/aclnn_ops_nn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace acl_test {

inline constexpr int kNullPointer = 161001, kInvalid = 161002, kRuntime = 361001;
inline constexpr int kInner = 561000, kNoExecutor = 561101, kNoObject = 561103;

using Dims = std::vector<int64_t>;

// Nothing lives at this address, and reading it would be fatal.
template <class T>
T* stranger() {
  return reinterpret_cast<T*>(uintptr_t{16});
}

inline aclTensor* make(const Dims& dims, void* data = nullptr, aclDataType dtype = ACL_FLOAT) {
  return aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND, dims.data(),
                         dims.size(), data);
}

inline std::string message() {
  const char* text = aclGetRecentErrMsg();
  return text ? text : "";
}

inline void* address_of(const aclTensor* tensor) {
  void* address = nullptr;
  EXPECT_EQ(aclGetRawTensorAddr(tensor, &address), 0);
  return address;
}

}  // namespace acl_test
