// TensorDesc: what a tensor is, without its data.
#include <utility>

#include "error.hpp"
#include "graph/tensor.h"

namespace ge {

struct TensorDescImpl {
  Shape shape, origin_shape;
  Format format = FORMAT_ND, origin_format = FORMAT_ND;
  DataType type = DT_FLOAT;
  Placement placement = kPlacementHost;
  int64_t size = 0;
  int64_t real_dim_count = 0;
  std::string name;
  std::vector<std::pair<int64_t, int64_t>> range;
};

const TensorDescImpl& TensorDesc::get() const {
  static const TensorDescImpl& defaults = *new TensorDescImpl;
  return impl_ ? *impl_ : defaults;
}

TensorDescImpl& TensorDesc::edit() {
  impl_ = std::make_shared<TensorDescImpl>(get());
  return *impl_;
}

TensorDesc::TensorDesc(const Shape& shape, Format format, DataType type) {
  Update(shape, format, type);
}

void TensorDesc::Update(const Shape& shape, Format format, DataType type) {
  TensorDescImpl& impl = edit();
  impl.shape = shape;
  impl.format = format;
  impl.type = type;
}

void TensorDesc::SetShape(const Shape& shape) { edit().shape = shape; }
Shape TensorDesc::GetShape() const { return get().shape; }

graphStatus TensorDesc::SetUnknownDimNumShape() {
  return normgrad::graph_mode::guard([&] {
    edit().shape = Shape({UNKNOWN_DIM_NUM});
    return GRAPH_SUCCESS;
  });
}

graphStatus TensorDesc::SetShapeRange(const std::vector<std::pair<int64_t, int64_t>>& range) {
  return normgrad::graph_mode::guard([&] {
    edit().range = range;
    return GRAPH_SUCCESS;
  });
}

graphStatus TensorDesc::GetShapeRange(std::vector<std::pair<int64_t, int64_t>>& range) const {
  return normgrad::graph_mode::guard([&] {
    range = get().range;
    return GRAPH_SUCCESS;
  });
}

void TensorDesc::SetFormat(Format format) { edit().format = format; }
Format TensorDesc::GetFormat() const { return get().format; }

void TensorDesc::SetDataType(DataType type) { edit().type = type; }
DataType TensorDesc::GetDataType() const { return get().type; }

void TensorDesc::SetOriginShape(const Shape& shape) { edit().origin_shape = shape; }
Shape TensorDesc::GetOriginShape() const { return get().origin_shape; }

void TensorDesc::SetOriginFormat(Format format) { edit().origin_format = format; }
Format TensorDesc::GetOriginFormat() const { return get().origin_format; }

void TensorDesc::SetName(const char* name) { edit().name = name ? name : ""; }
void TensorDesc::SetName(const std::string& name) { edit().name = name; }
std::string TensorDesc::GetName() const { return get().name; }

graphStatus TensorDesc::GetName(AscendString& name) const {
  return normgrad::graph_mode::guard([&] {
    name = get().name.c_str();
    return GRAPH_SUCCESS;
  });
}

void TensorDesc::SetSize(int64_t bytes) { edit().size = bytes; }
int64_t TensorDesc::GetSize() const { return get().size; }

void TensorDesc::SetRealDimCnt(int64_t count) { edit().real_dim_count = count; }
int64_t TensorDesc::GetRealDimCnt() const { return get().real_dim_count; }

void TensorDesc::SetPlacement(Placement placement) { edit().placement = placement; }
Placement TensorDesc::GetPlacement() const { return get().placement; }

}  // namespace ge
