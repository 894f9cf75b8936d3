// Tensor: a description and a buffer, shared by the copies of the handle.
#include "graph/tensor.h"

#include <cstring>
#include <new>
#include <utility>

#include "error.hpp"

namespace ge {

using normgrad::graph_mode::fail;
using normgrad::graph_mode::guard;

struct TensorImpl {
  TensorDesc desc;
  std::shared_ptr<uint8_t> data;
  size_t size = 0;

  void copy(const void* bytes, size_t count) {
    std::shared_ptr<uint8_t> memory;
    if (count > 0) {
      constexpr std::align_val_t kAlignment{64};
      memory.reset(static_cast<uint8_t*>(::operator new(count, kAlignment)),
                   [](uint8_t* p) { ::operator delete(p, kAlignment); });
      std::memcpy(memory.get(), bytes, count);
    }
    data = std::move(memory);
    size = count;
  }
  void take(std::vector<uint8_t>&& bytes) {
    auto owner = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
    size = owner->size();
    data = std::shared_ptr<uint8_t>(owner, owner->data());
  }
};

Tensor::Tensor() : impl_(std::make_shared<TensorImpl>()) {}

Tensor::Tensor(const TensorDesc& desc) : Tensor() { impl_->desc = desc; }

Tensor::Tensor(const TensorDesc& desc, const std::vector<uint8_t>& data) : Tensor(desc) {
  impl_->copy(data.data(), data.size());
}

Tensor::Tensor(const TensorDesc& desc, const uint8_t* data, size_t size) : Tensor(desc) {
  if (data) impl_->copy(data, size);
}

Tensor::Tensor(TensorDesc&& desc, std::vector<uint8_t>&& data) : Tensor(desc) {
  impl_->take(std::move(data));
}

// A handle that was moved from has no node: it reads as empty and is given a new one when set.
TensorDesc Tensor::GetTensorDesc() const { return impl_ ? impl_->desc : TensorDesc(); }
const uint8_t* Tensor::GetData() const { return impl_ ? impl_->data.get() : nullptr; }
uint8_t* Tensor::GetData() { return impl_ ? impl_->data.get() : nullptr; }
size_t Tensor::GetSize() const { return impl_ ? impl_->size : 0; }

graphStatus Tensor::SetTensorDesc(const TensorDesc& desc) {
  return guard([&] {
    if (!impl_) *this = Tensor();
    impl_->desc = desc;
    return GRAPH_SUCCESS;
  });
}

graphStatus Tensor::SetData(const std::vector<uint8_t>& data) {
  return SetData(data.data(), data.size());
}

graphStatus Tensor::SetData(const std::string& data) {
  return SetData(reinterpret_cast<const uint8_t*>(data.data()), data.size());
}

graphStatus Tensor::SetData(const uint8_t* data, size_t size) {
  return guard([&]() -> uint32_t {
    if (!data && size > 0) {
      return fail(GRAPH_PARAM_INVALID,
                  "Tensor::SetData: data is null with a size of " + std::to_string(size));
    }
    if (!impl_) *this = Tensor();
    impl_->copy(data, size);
    return GRAPH_SUCCESS;
  });
}

graphStatus Tensor::SetData(std::vector<uint8_t>&& data) {
  return guard([&] {
    if (!impl_) *this = Tensor();
    impl_->take(std::move(data));
    return GRAPH_SUCCESS;
  });
}

graphStatus Tensor::SetData(uint8_t* data, size_t size, const DeleteFunc& deleter) {
  return guard([&]() -> uint32_t {
    if (!data && size > 0) {
      return fail(GRAPH_PARAM_INVALID,
                  "Tensor::SetData: data is null with a size of " + std::to_string(size));
    }
    if (!impl_) *this = Tensor();
    impl_->data = std::shared_ptr<uint8_t>(data, [deleter](uint8_t* p) {
      if (deleter && p) deleter(p);
    });
    impl_->size = size;
    return GRAPH_SUCCESS;
  });
}

graphStatus Tensor::IsValid() {
  return guard([&]() -> uint32_t {
    const Shape shape = GetTensorDesc().GetShape();
    const int64_t elements = shape.GetDimNum() == 0 ? 1 : shape.GetShapeSize();
    const int bytes = GetSizeByDataType(GetTensorDesc().GetDataType());
    if (elements < 0 || bytes < 0 || bytes > kDataTypeSizeBitOffset) return GRAPH_SUCCESS;
    const size_t expected = static_cast<size_t>(elements) * static_cast<size_t>(bytes);
    if (GetSize() == expected) return GRAPH_SUCCESS;
    return fail(GRAPH_FAILED, "Tensor: its shape and type take " + std::to_string(expected) +
                                  " bytes, its data has " + std::to_string(GetSize()));
  });
}

Tensor Tensor::Clone() const { return Tensor(GetTensorDesc(), GetData(), GetSize()); }

}  // namespace ge
