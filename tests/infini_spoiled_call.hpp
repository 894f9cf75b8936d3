// A correct InfiniOP call in which a test spoils one thing, and what became of it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "infini_call.hpp"

namespace infini_test {

enum class Stage { kCreate, kQuery, kCompute, kAccepted };
enum class Object { kGood, kNull, kDestroyed, kOtherKind, kOtherDevice };

constexpr size_t kRedZone = 256;
constexpr unsigned char kFill = 0x3c;  // as a number: 1.06 in F16, 0.0115 in F32 and BF16

// A correct call; a test spoils one thing in it.
struct Call {
  Call(Op o, infiniDtype_t dtype) : op(o), tensors(small_call(o, dtype)), descs(tensors.size()) {}

  Op op;
  std::vector<Tensor> tensors;
  std::vector<Object> descs;  // the tensor descriptors
  Object handle = Object::kGood;
  Object desc = Object::kGood;  // the operator descriptor, from the query on
  bool null_desc_ptr = false, null_size = false;
  std::optional<Extension> extension;
  Numbers numbers;
  // Changes the data pointers and the workspace before the computation.
  std::function<void(Pointers& data, void*& workspace, size_t& size)> spoil;
};

// One block for all operands, with red zones between them and room for strides that double or turn
// the small call's layout.
class Memory {
 public:
  explicit Memory(const Call& call) {
    size_t end = 0;
    for (const Tensor& tensor : small_call(call.op, INFINI_DTYPE_F32)) {
      size_t bytes = 4;
      for (size_t extent : tensor.shape) bytes *= extent;
      offsets_.push_back((end + kRedZone + bytes + 63) / 64 * 64);
      end = offsets_.back() + 2 * bytes;
    }
    bytes_.assign(end + kRedZone + 64, kFill);
  }
  Pointers pointers() {
    Pointers pointers;
    const uintptr_t base = (reinterpret_cast<uintptr_t>(bytes_.data()) + 63) / 64 * 64;
    for (size_t offset : offsets_) pointers.push_back(reinterpret_cast<void*>(base + offset));
    return pointers;
  }
  bool untouched() const { return bytes_ == std::vector<unsigned char>(bytes_.size(), kFill); }

 private:
  std::vector<size_t> offsets_;
  std::vector<unsigned char> bytes_;
};

template <class T>
T spoiled(T good, Object how, void* other_kind) {
  if (how == Object::kNull) return nullptr;
  if (how == Object::kOtherKind) return static_cast<T>(other_kind);
  return good;
}

struct Outcome {
  Stage stage = Stage::kAccepted;
  infiniStatus_t status = INFINI_STATUS_SUCCESS;
  bool untouched = true;
};

// The objects of a call, destroyed whatever happens.
struct Objects {
  ~Objects() {
    for (auto tensor : tensors) (void)infiniopDestroyTensorDescriptor(tensor);
    (void)infiniopDestroyHandle(handle);
    (void)destroy(op, desc);
    (void)destroy(other_op, other_desc);
  }
  Op op, other_op;
  infiniopHandle_t handle = nullptr;
  Tensors tensors = {};
  Descriptor desc = nullptr, other_desc = nullptr;
};

// The memory of handles and descriptors begins with the device type.
inline void set_device(void* object, int32_t device) {
  std::memcpy(object, &device, sizeof(device));
}

inline Descriptor correct_descriptor(Op op, infiniopHandle_t handle) {
  Tensors tensors;
  for (const Tensor& tensor : small_call(op, INFINI_DTYPE_F32)) tensors.push_back(make(tensor));
  Descriptor desc = nullptr;
  EXPECT_EQ(create(op, handle, &desc, tensors), INFINI_STATUS_SUCCESS);
  for (auto tensor : tensors) EXPECT_EQ(infiniopDestroyTensorDescriptor(tensor), 0);
  return desc;
}

inline infiniStatus_t create_spoiled(const Call& call, Objects& o) {
  EXPECT_EQ(infiniopCreateHandle(&o.handle), INFINI_STATUS_SUCCESS);
  Tensors arguments;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    o.tensors.push_back(make(call.tensors[i]));
    EXPECT_NE(o.tensors.back(), nullptr);
    arguments.push_back(spoiled(o.tensors.back(), call.descs[i], o.handle));
  }
  // Once all exist: a new object could get the address of a destroyed one.
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.descs[i] != Object::kDestroyed) continue;
    EXPECT_EQ(infiniopDestroyTensorDescriptor(o.tensors[i]), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infiniopDestroyTensorDescriptor(o.tensors[i]), INFINI_STATUS_BAD_PARAM);
    o.tensors[i] = nullptr;
  }
  const infiniopHandle_t handle = spoiled(o.handle, call.handle, o.tensors[0]);
  if (call.handle == Object::kOtherDevice) set_device(handle, INFINI_DEVICE_NVIDIA);
  if (call.handle == Object::kDestroyed) {
    EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(infiniopDestroyHandle(handle), INFINI_STATUS_BAD_PARAM);
    o.handle = nullptr;
  }
  // Not null: a refused call has to make it so.
  o.desc = reinterpret_cast<Descriptor>(&o);
  const infiniStatus_t status = create(call.op, handle, call.null_desc_ptr ? nullptr : &o.desc,
                                       arguments, call.extension, call.numbers);
  if (call.null_desc_ptr) o.desc = nullptr;
  if (status != INFINI_STATUS_SUCCESS) {
    EXPECT_EQ(o.desc, nullptr);
  }
  if (call.handle == Object::kOtherDevice) set_device(handle, INFINI_DEVICE_CPU);
  return status;
}

inline Outcome run(const Call& call) {
  Memory memory(call);
  Objects o = {call.op, call.op == Op::kRmsNorm ? Op::kLayerNorm : Op::kRmsNorm};
  if (infiniStatus_t status = create_spoiled(call, o)) {
    return {Stage::kCreate, status, memory.untouched()};
  }
  size_t size = 0;
  EXPECT_EQ(workspace_size(call.op, o.desc, &size), INFINI_STATUS_SUCCESS);
  o.other_desc = correct_descriptor(o.other_op, o.handle);
  const Descriptor desc = spoiled(o.desc, call.desc, o.other_desc);
  if (call.desc == Object::kOtherDevice) set_device(desc, INFINI_DEVICE_NVIDIA);
  if (call.desc == Object::kDestroyed) {
    EXPECT_EQ(destroy(call.op, desc), INFINI_STATUS_SUCCESS);
    EXPECT_EQ(destroy(call.op, desc), INFINI_STATUS_BAD_PARAM);
    o.desc = nullptr;
  }
  if (call.desc == Object::kOtherKind) {
    EXPECT_EQ(destroy(call.op, desc), INFINI_STATUS_BAD_PARAM);
  }
  size_t again = 0;
  infiniStatus_t status = workspace_size(call.op, desc, call.null_size ? nullptr : &again);
  const bool query_refused = status != INFINI_STATUS_SUCCESS;
  EXPECT_EQ(query_refused, call.null_size || call.desc != Object::kGood);

  if (!call.null_size) {
    Pointers data = memory.pointers();
    std::vector<unsigned char> block(size + 64, kFill);
    void* workspace = block.data();
    if (call.spoil) call.spoil(data, workspace, size);
    const infiniStatus_t computed = compute(call.op, desc, workspace, size, data);
    if (query_refused) {
      EXPECT_EQ(computed, status);
    }
    status = computed;
  }
  const Outcome outcome = {!status                           ? Stage::kAccepted
                           : call.null_size || query_refused ? Stage::kQuery
                                                             : Stage::kCompute,
                           status, memory.untouched()};
  if (call.desc == Object::kOtherDevice) {
    EXPECT_EQ(destroy(call.op, desc), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
    set_device(desc, INFINI_DEVICE_CPU);
  }
  return outcome;
}

}  // namespace infini_test
