// The case table in the words of InfiniOP. Cases that fit the ordinary entry points take those, the
// others the extensions; what InfiniOP cannot say (statistics as mean and rstd, gaps inside rows)
// is not expressible.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "infini_call.hpp"
#include "reference/cases.hpp"

namespace infini_test {

using normgrad::Buffers;
using normgrad::Code;
using normgrad::Statistics;
using normgrad::Status;

// A call in the words of InfiniOP: arguments in the order of its functions, null for what is
// absent.
struct Translated {
  Op op;
  std::vector<const normgrad::Tensor*> tensors;
  Pointers pointers;
  std::optional<Extension> extension = {};
  Numbers numbers = {};
  bool expressible = true;
};

inline void* writable(const void* data) { return const_cast<void*>(data); }

inline const normgrad::Tensor* pointer(const std::optional<normgrad::Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

// Without gaps inside rows, if there at all.
inline bool is_plain(const std::optional<normgrad::Tensor>& tensor) {
  return !tensor || tensor->strides.empty() || tensor->shape.back() <= 1 ||
         tensor->strides.back() == 1;
}

// One normalized axis, without gaps in any tensor.
template <class Call>
bool has_plain_rows(const Call& c) {
  return c.normalized_axes == 1 && is_plain(c.x) && is_plain(c.dy) && is_plain(c.dx);
}

inline Translated translate(const normgrad::LayerNormBackward& c, const Buffers& b) {
  return {.op = Op::kLayerNorm,
          .tensors = {pointer(c.dx), pointer(c.dgamma), pointer(c.dbeta), &c.dy, pointer(c.gamma),
                      &c.x, &c.spread},
          .pointers = {b.dx, b.dgamma, b.dbeta, writable(b.dy), writable(b.gamma), writable(b.x),
                       writable(b.spread)},
          .expressible = c.statistics == Statistics::kXHatStd && has_plain_rows(c)};
}

inline Translated translate(const normgrad::BatchNormBackward& c, const Buffers& b) {
  Translated t = {.op = Op::kBatchNorm,
                  .tensors = {pointer(c.dx), pointer(c.dgamma), pointer(c.dbeta), &c.x, &c.dy,
                              pointer(c.gamma), &c.mean, &c.spread},
                  .pointers = {b.dx, b.dgamma, b.dbeta, writable(b.x), writable(b.dy),
                               writable(b.gamma), writable(b.mean), writable(b.spread)},
                  .expressible = c.statistics == Statistics::kMeanVariance &&
                                 c.x.shape.size() == 3 && c.channel_axis == 1};
  // Strides may say "contiguous" in other words; those cases take the extension.
  const bool contiguous = c.x.strides.empty() && c.dy.strides.empty() &&
                          (!c.dx || c.dx->strides.empty()) && c.dbeta.has_value();
  if (c.eps != 0 || c.frozen || !contiguous) t.extension = {c.eps, c.frozen};
  return t;
}

inline Translated translate(const normgrad::RmsNormBackward& c, const Buffers& b) {
  Translated t = {.op = Op::kRmsNorm,
                  .tensors = {pointer(c.dx), pointer(c.dgamma), &c.dy, &c.x, pointer(c.gamma)},
                  .pointers = {b.dx, b.dgamma, writable(b.dy), writable(b.x), writable(b.gamma)},
                  .expressible = !c.spread && has_plain_rows(c)};
  if (c.eps != 0) t.extension = {c.eps, false};
  return t;
}

// Mixed dtypes and absent operands need the extension, except grad_bias of LayerNorm.
inline Translated translate(const normgrad::reference::Call& call, const Buffers& buffers) {
  Translated t = std::visit([&](const auto& c) { return translate(c, buffers); }, call);
  const std::vector<Argument> args = arguments(t.op);
  for (size_t i = 0; i < args.size(); ++i) {
    const bool optional = t.op == Op::kLayerNorm && std::string(args[i].name) == "grad_bias";
    const normgrad::Tensor* data = t.tensors[args.size() - 2];  // an input, always there
    const bool ordinary = t.tensors[i] ? t.tensors[i]->dtype == data->dtype : optional;
    if (!ordinary && !t.extension) t.extension.emplace();
  }
  return t;
}

inline Numbers numbers_of(double eps, double momentum = 0) {
  return {static_cast<float>(eps), static_cast<float>(momentum)};
}

inline Translated translate(const normgrad::LayerNorm& c, const Buffers& b) {
  const std::vector<int64_t>& shape = c.spread->shape;
  return {.op = Op::kForwardLayerNorm,
          .tensors = {pointer(c.y), pointer(c.x_hat), pointer(c.spread), &c.x, pointer(c.gamma),
                      pointer(c.beta)},
          .pointers = {b.y, b.x_hat, b.saved_spread, writable(b.x), writable(b.gamma),
                       writable(b.beta)},
          .numbers = numbers_of(c.eps),
          .expressible = c.normalized_axes == 1 && is_plain(c.x) && is_plain(c.y) &&
                         is_plain(c.x_hat) &&
                         std::equal(c.x.shape.begin(), c.x.shape.end() - 1, shape.begin(),
                                    shape.begin() + std::min(shape.size(), c.x.shape.size() - 1))};
}

inline Translated translate(const normgrad::RmsNorm& c, const Buffers& b) {
  Translated t = {.op = c.residual ? Op::kAddRmsNorm : Op::kForwardRmsNorm,
                  .tensors = {pointer(c.y), &c.x, pointer(c.gamma)},
                  .pointers = {b.y, writable(b.x), writable(b.gamma)},
                  .numbers = numbers_of(c.eps),
                  .expressible = c.normalized_axes == 1 && is_plain(c.x) && is_plain(c.y) &&
                                 is_plain(c.residual) && is_plain(c.h)};
  if (!c.residual) return t;
  t.tensors = {pointer(c.y), pointer(c.h), &c.x, pointer(c.residual), pointer(c.gamma)};
  t.pointers = {b.y, b.h, writable(b.x), writable(b.residual), writable(b.gamma)};
  return t;
}

// With running statistics the ordinary entry point, which wants contiguous data; else the
// extension.
inline Translated translate(const normgrad::BatchNorm& c, const Buffers& b) {
  Translated t = {.op = Op::kForwardBatchNorm,
                  .tensors = {pointer(c.y), pointer(c.running_mean), pointer(c.running_variance),
                              &c.x, pointer(c.gamma), pointer(c.beta)},
                  .pointers = {b.y, b.running_mean, b.running_variance, writable(b.x),
                               writable(b.gamma), writable(b.beta)},
                  .numbers = numbers_of(c.eps, c.momentum),
                  .expressible = c.x.strides.empty() && c.y->strides.empty()};
  if (c.running_mean) return t;
  t.tensors[1] = pointer(c.mean);
  t.tensors[2] = pointer(c.spread);
  t.pointers[1] = b.saved_mean;
  t.pointers[2] = b.saved_spread;
  t.extension = {c.eps, false};
  t.expressible = true;
  return t;
}

inline Translated translate(const normgrad::reference::ForwardCall& call, const Buffers& buffers) {
  return std::visit([&](const auto& c) { return translate(c, buffers); }, call);
}

// A case of the layers' table as InfiniOP has it: outputs that are always there, one dtype.
inline normgrad::reference::Case spoken(normgrad::reference::Case c) {
  using Reference = normgrad::reference::Op;
  using normgrad::reference::InPlace;
  c.eps = static_cast<float>(c.eps);
  c.gamma_offset = 0;
  c.want_y = c.has_gamma = true;
  c.want_mean = false;
  const bool rms = c.op == Reference::kRmsNorm;
  c.want_x_hat = c.want_spread = c.op == Reference::kLayerNorm;
  c.has_residual = c.want_h = rms && c.has_residual;
  if (!c.has_residual && c.in_place != InPlace::kNone) c.in_place = InPlace::kX;
  if (c.op == Reference::kLayerNorm) c.statistics = Statistics::kXHatStd;
  if (rms) return c;
  c.gamma = c.params = c.statistics_dtype = c.data;
  if (c.op == Reference::kLayerNorm) return c;
  c.has_beta = c.has_running = true;
  c.frozen = false;
  return c;
}

// The extension of BatchNorm, which leaves the statistics of the batch.
inline normgrad::reference::Case spoken_extended(normgrad::reference::Case c) {
  c.want_y = c.want_mean = c.want_spread = true;
  c.has_running = c.frozen = false;
  c.statistics = Statistics::kMeanVariance;
  return c;
}

inline Tensor translate(const normgrad::Tensor& tensor) {
  return {tensor.dtype == normgrad::DType::kF32   ? INFINI_DTYPE_F32
          : tensor.dtype == normgrad::DType::kF16 ? INFINI_DTYPE_F16
                                                  : INFINI_DTYPE_BF16,
          {tensor.shape.begin(), tensor.shape.end()},
          {tensor.strides.begin(), tensor.strides.end()}};
}

inline Status answer(const char* function, infiniStatus_t status) {
  if (status == INFINI_STATUS_SUCCESS) return {};
  return {Code::kInternal, std::string(function) + " answered " + std::to_string(status) + ": " +
                               normgradGetLastError()};
}

// Makes a descriptor on the current device.
inline Status prepare(const Translated& t, Descriptor& desc, size_t& size) {
  infiniopHandle_t handle = nullptr;
  if (Status s = answer("CreateHandle", infiniopCreateHandle(&handle)); !s.ok()) return s;
  Tensors tensors;
  for (const normgrad::Tensor* tensor : t.tensors) {
    tensors.push_back(tensor ? make(translate(*tensor)) : nullptr);
  }
  const Status status =
      answer("Create", create(t.op, handle, &desc, tensors, t.extension, t.numbers));
  for (auto tensor : tensors) (void)infiniopDestroyTensorDescriptor(tensor);
  (void)infiniopDestroyHandle(handle);
  if (!status.ok()) return status;
  return answer("WorkspaceSize", workspace_size(t.op, desc, &size));
}

// All steps on the CPU.
inline Status run(const Translated& t) {
  Descriptor desc = nullptr;
  size_t size = 0;
  Status status = prepare(t, desc, size);
  if (!status.ok()) return status;
  std::vector<unsigned char> workspace(size, 1);
  status = answer("compute",
                  compute(t.op, desc, size > 0 ? workspace.data() : nullptr, size, t.pointers));
  if (!status.ok()) return status;
  return answer("Destroy", destroy(t.op, desc));
}

}  // namespace infini_test
