// Shape: immutable extents that copies share; SetDim replaces them.
#include <utility>

#include "error.hpp"
#include "graph/tensor.h"

namespace ge {

Shape::Shape(const std::vector<int64_t>& dims)
    : dims_(std::make_shared<const std::vector<int64_t>>(dims)) {}

size_t Shape::GetDimNum() const {
  if (!dims_ || (dims_->size() == 1 && dims_->front() == UNKNOWN_DIM_NUM)) return 0;
  return dims_->size();
}

int64_t Shape::GetDim(size_t axis) const { return axis < GetDimNum() ? (*dims_)[axis] : 0; }

graphStatus Shape::SetDim(size_t axis, int64_t extent) {
  return normgrad::graph_mode::guard([&]() -> uint32_t {
    if (axis >= GetDimNum()) {
      return normgrad::graph_mode::fail(GRAPH_PARAM_INVALID,
                                        "Shape::SetDim: axis " + std::to_string(axis) +
                                            " of a shape of rank " + std::to_string(GetDimNum()));
    }
    std::vector<int64_t> dims = *dims_;
    dims[axis] = extent;
    dims_ = std::make_shared<const std::vector<int64_t>>(std::move(dims));
    return GRAPH_SUCCESS;
  });
}

std::vector<int64_t> Shape::GetDims() const { return dims_ ? *dims_ : std::vector<int64_t>(); }

int64_t Shape::GetShapeSize() const {
  if (!dims_ || dims_->empty()) return 0;
  int64_t size = 1;
  bool overflow = false, empty = false;
  for (const int64_t extent : *dims_) {
    if (extent < 0) return -1;
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(size, extent, &size);
  }
  return overflow || empty ? 0 : size;
}

}  // namespace ge
