// A correct aclnn call in which a test spoils one thing, and what became of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "acl_call.hpp"

namespace acl_test {

using Shape = std::vector<int64_t>;
inline constexpr aclDataType kDTypes[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
inline constexpr aclDataType kBadDTypes[] = {ACL_INT32, ACL_DOUBLE, ACL_BOOL, ACL_INT8,
                                             ACL_DT_UNDEFINED};
inline constexpr size_t kRoom = 4096;         // bytes of memory for each tensor
inline constexpr unsigned char kFill = 0x3c;  // as a number: 1.06 in F16, 0.0115 in F32 and BF16
inline constexpr size_t kWorkspaceRoom = size_t{1} << 16;

inline aclDataType other(aclDataType dtype) {
  return dtype == ACL_FLOAT16 ? ACL_BF16 : ACL_FLOAT16;
}

enum class Role { kData, kVector, kStatistic, kCounter };

inline Role role_of(Op op, const std::string& name) {
  for (const char* data : {"gradOut", "input", "gradInputOut", "gradInput", "dy", "x", "x1", "x2",
                           "dsumOptional", "dxOut", "out", "yOut"}) {
    if (name == data) return Role::kData;
  }
  if (name == "counter") return Role::kCounter;
  const bool statistic = name.starts_with("mean") || name.starts_with("rstd");
  return !is_batch_norm(op) && statistic ? Role::kStatistic : Role::kVector;
}

inline bool is_output(const std::string& name) {
  return name != "gradOut" && (name.starts_with("grad") || name == "out" || name.ends_with("Out") ||
                               name.ends_with("OutOptional"));
}

// A correct call in which a test spoils one thing: (3, 2, 4, 5) with two normalized axes, or five
// channels of a BatchNorm.
struct Spoiled {
  Spoiled(Op op, aclDataType dtype, bool training = true)
      : call{.op = op, .tensors = {}, .training = training, .eps = 1e-5},
        memory(12 * kRoom + kWorkspaceRoom, kFill) {
    const bool rows = !is_batch_norm(op);
    if (op == Op::kLayerNorm || op == Op::kForwardLayerNorm) call.normalized_shape = Shape{4, 5};
    for (const std::string& name : names(op)) {
      const Role role = role_of(op, name);
      View view = {dtype, rows ? Shape{4, 5} : Shape{5}};
      if (role == Role::kData) view.shape = rows ? Shape{3, 2, 4, 5} : Shape{3, 5, 4};
      if (role == Role::kStatistic) view = {ACL_FLOAT, {3, 2, 1, 1}};
      if (role == Role::kCounter) view = {ACL_INT32, {2}};
      if (always_float(name)) view.dtype = ACL_FLOAT;
      if (op == Op::kBatchNorm && name.starts_with(training ? "running" : "save")) view = kAbsent;
      const size_t room = (call.tensors.size() + 1) * kRoom;
      const uintptr_t base = (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64;
      view.base = reinterpret_cast<void*>(base + room);
      call.tensors.push_back(view);
    }
  }
  static bool always_float(const std::string& name) {
    return name == "dgammaOut" || name == "dbetaOut" || name == "mean" || name == "invstd" ||
           name.starts_with("sum") || name.starts_with("running") || name.starts_with("save");
  }

  View& operator[](const std::string& name) { return call[name]; }
  void set(std::initializer_list<const char*> some, const Shape& shape) {
    for (const char* name : some) call[name].shape = shape;
  }

  Call call;
  std::vector<unsigned char> memory;
  bool null_size = false, null_executor = false;
  std::function<void(void*& workspace, uint64_t& size)> workspace;
};

enum class Phase { kFirst, kSecond, kEither, kAccepted };

struct Wrong {
  std::string name;
  int row;  // of the validation order of LayerNorm; 0: not in it
  aclnnStatus status;
  std::vector<std::string> says;  // the sentence has one of these
  std::function<void(Spoiled&)> spoil;
  Phase phase = Phase::kFirst;  // which refuses

  bool is_named(const std::string& message) const {
    return std::any_of(says.begin(), says.end(), [&](const std::string& argument) {
      return message.find(argument) != std::string::npos;
    });
  }
};
using List = std::vector<Wrong>;

// A tensor whose data is null, or not aligned to its elements.
inline void add_bad_pointers(const std::string& name, List& list) {
  list.push_back({name + "_data_misaligned",
                  0,
                  kInvalid,
                  {name},
                  [=](Spoiled& s) { s[name].base = static_cast<char*>(s[name].base) + 1; },
                  Phase::kEither});
  list.push_back({name + "_data_null",
                  0,
                  kNullPointer,
                  {name},
                  [=](Spoiled& s) { s[name].base = nullptr; },
                  Phase::kEither});
}

struct Outcome {
  aclnnStatus status;
  Phase phase;
  std::string message;
  bool untouched;
};

inline Outcome run_spoiled(const Spoiled& s) {
  const Objects objects(s.call);
  const auto outcome = [&](aclnnStatus status, Phase phase) {
    const bool untouched = s.memory == std::vector<unsigned char>(s.memory.size(), kFill);
    return Outcome{status, phase, last_message(), untouched};
  };
  uint64_t size = 12345;
  aclOpExecutor* const sentinel = reinterpret_cast<aclOpExecutor*>(&size);
  aclOpExecutor* executor = sentinel;
  aclnnStatus status = phase_1(s.call, objects, s.null_size ? nullptr : &size,
                               s.null_executor ? nullptr : &executor);
  if (status != ACL_SUCCESS) {
    EXPECT_EQ(executor, sentinel);
    EXPECT_EQ(size, 12345u);
    return outcome(status, Phase::kFirst);
  }
  std::vector<unsigned char> block(size + 128, kFill);
  void* workspace = block.data();
  if (s.workspace) {
    EXPECT_GT(size, 0u);
    EXPECT_LT(size, kWorkspaceRoom);
    s.workspace(workspace, size);
  }
  status = phase_2(s.call.op, workspace, size, executor);
  if (status == ACL_SUCCESS) return outcome(status, Phase::kAccepted);
  const Outcome refused = outcome(status, Phase::kSecond);
  // Some errors leave the executor to the caller; where it is gone this is harmless.
  (void)aclDestroyAclOpExecutor(executor);
  return refused;
}

// A refused call names the argument and changes nothing.
inline void expect_answer(Spoiled& spoiled, const Wrong& wrong) {
  wrong.spoil(spoiled);
  (void)last_message();
  const Outcome outcome = run_spoiled(spoiled);
  EXPECT_EQ(outcome.status, wrong.status) << outcome.message;
  if (wrong.phase != Phase::kEither) {
    EXPECT_EQ(static_cast<int>(outcome.phase), static_cast<int>(wrong.phase)) << outcome.message;
  }
  if (wrong.phase == Phase::kAccepted) {
    EXPECT_FALSE(outcome.untouched);
    return;
  }
  EXPECT_TRUE(outcome.untouched);
  EXPECT_TRUE(wrong.is_named(outcome.message))
      << "expected " << wrong.says[0] << " in: " << outcome.message;
  EXPECT_EQ(outcome.message.find("AclNN_Parameter_Error(EZ1001): "), 0u) << outcome.message;
}

}  // namespace acl_test
