// Shape, TensorDesc and Tensor. The first two are values; a Tensor is a handle whose copies share
// one buffer, until Clone.
#ifndef NORMGRAD_GE_GRAPH_TENSOR_H_
#define NORMGRAD_GE_GRAPH_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/ascend_string.h"
#include "graph/error_codes.h"
#include "graph/types.h"

namespace ge {

class NORMGRAD_GE_EXPORT Shape {
 public:
  Shape() = default;  // of a scalar
  explicit Shape(const std::vector<int64_t>& dims);

  size_t GetDimNum() const;           // 0 for an unknown rank
  int64_t GetDim(size_t axis) const;  // 0 for an axis that is not there
  graphStatus SetDim(size_t axis, int64_t extent);
  std::vector<int64_t> GetDims() const;
  // Elements; -1 if not known, 0 for a scalar and where the product does not fit 64 bits.
  int64_t GetShapeSize() const;

 private:
  std::shared_ptr<const std::vector<int64_t>> dims_;  // null: no axes
};

struct TensorDescImpl;

class NORMGRAD_GE_EXPORT TensorDesc {
 public:
  TensorDesc() = default;  // a scalar, FORMAT_ND, DT_FLOAT
  explicit TensorDesc(const Shape& shape, Format format = FORMAT_ND, DataType type = DT_FLOAT);

  void Update(const Shape& shape, Format format = FORMAT_ND, DataType type = DT_FLOAT);

  void SetShape(const Shape& shape);
  Shape GetShape() const;
  graphStatus SetUnknownDimNumShape();
  graphStatus SetShapeRange(const std::vector<std::pair<int64_t, int64_t>>& range);
  graphStatus GetShapeRange(std::vector<std::pair<int64_t, int64_t>>& range) const;
  void SetFormat(Format format);
  Format GetFormat() const;
  void SetDataType(DataType type);
  DataType GetDataType() const;

  // Kept and given back, otherwise without meaning here.
  void SetOriginShape(const Shape& shape);
  Shape GetOriginShape() const;
  void SetOriginFormat(Format format);
  Format GetOriginFormat() const;
  void SetName(const char* name);
  void SetName(const std::string& name);
  graphStatus GetName(AscendString& name) const;
  std::string GetName() const;
  void SetSize(int64_t bytes);
  int64_t GetSize() const;
  void SetRealDimCnt(int64_t count);
  int64_t GetRealDimCnt() const;
  void SetPlacement(Placement placement);
  Placement GetPlacement() const;

 private:
  const TensorDescImpl& get() const;
  // Setters replace what is shared, so that copies cost nothing and stay as they are.
  TensorDescImpl& edit();
  std::shared_ptr<TensorDescImpl> impl_;  // null: the defaults
};

struct TensorImpl;

class NORMGRAD_GE_EXPORT Tensor {
 public:
  typedef std::function<void(uint8_t*)> DeleteFunc;

  Tensor();
  explicit Tensor(const TensorDesc& desc);
  Tensor(const TensorDesc& desc, const std::vector<uint8_t>& data);
  Tensor(const TensorDesc& desc, const uint8_t* data, size_t size);
  Tensor(TensorDesc&& desc, std::vector<uint8_t>&& data);

  TensorDesc GetTensorDesc() const;
  graphStatus SetTensorDesc(const TensorDesc& desc);

  const uint8_t* GetData() const;
  uint8_t* GetData();
  size_t GetSize() const;  // bytes
  // These copy; memory is aligned to 64 bytes.
  graphStatus SetData(const std::vector<uint8_t>& data);
  graphStatus SetData(const std::string& data);
  graphStatus SetData(const uint8_t* data, size_t size);
  // These take over.
  graphStatus SetData(std::vector<uint8_t>&& data);
  graphStatus SetData(uint8_t* data, size_t size, const DeleteFunc& deleter);

  // Whether the bytes are those of the shape and type.
  graphStatus IsValid();
  Tensor Clone() const;

 private:
  std::shared_ptr<TensorImpl> impl_;
};

}  // namespace ge

#endif  // NORMGRAD_GE_GRAPH_TENSOR_H_
