#include "bench/pieces.hpp"

#include <algorithm>

#include "reference/elements.hpp"

namespace normgrad::tool {
namespace {

constexpr int64_t kElements = 256 * 1024;  // of x in a piece, about

template <class Pointer>
void advance(Pointer& pointer, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, char, const char>;
  if (pointer)
    pointer = static_cast<Byte*>(pointer) + elements * static_cast<int64_t>(size_of(dtype));
}

// Rows `begin` to `end` of a call.
template <class Call>
Piece cut(Call call, Buffers buffers, int64_t begin, int64_t end) {
  const int64_t cols = call.x.shape[1];
  for (Tensor* each : {&call.x, &call.dy, &*call.dx}) each->shape[0] = end - begin;
  advance(buffers.x, begin * cols, call.x.dtype);
  advance(buffers.dy, begin * cols, call.dy.dtype);
  advance(buffers.dx, begin * cols, call.dx->dtype);
  const auto cut_statistic = [&](Tensor& tensor, const void*& data) {
    tensor.shape = {end - begin};
    advance(data, begin, tensor.dtype);
  };
  if constexpr (std::is_same_v<Call, LayerNormBackward>) {
    cut_statistic(call.spread, buffers.spread);
    if (call.mean) cut_statistic(*call.mean, buffers.mean);
  } else if (call.spread) {
    cut_statistic(*call.spread, buffers.spread);
  }
  return {begin, end, call, buffers};
}

// Channels `begin` to `end`.
Piece cut(BatchNormBackward call, Buffers buffers, int64_t begin, int64_t end) {
  const std::vector<int64_t> strides = reference::strides_of(call.x);
  const int64_t offset = begin * strides[call.channel_axis];
  for (Tensor* each : {&call.x, &call.dy, &*call.dx}) {
    each->shape[call.channel_axis] = end - begin;
    each->strides = strides;
  }
  advance(buffers.x, offset, call.x.dtype);
  advance(buffers.dy, offset, call.dy.dtype);
  advance(buffers.dx, offset, call.dx->dtype);
  for (Tensor* each : {&*call.gamma, &call.mean, &call.spread, &*call.dgamma, &*call.dbeta}) {
    each->shape = {end - begin};
  }
  advance(buffers.gamma, begin, call.gamma->dtype);
  advance(buffers.mean, begin, call.mean.dtype);
  advance(buffers.spread, begin, call.spread.dtype);
  advance(buffers.dgamma, begin, call.dgamma->dtype);
  advance(buffers.dbeta, begin, call.dbeta->dtype);
  return {begin, end, call, buffers};
}

template <class Call>
std::vector<Piece> cut_all(const Call& call, const Buffers& buffers) {
  int64_t total = call.x.shape[0], least = 1;
  if constexpr (std::is_same_v<Call, BatchNormBackward>) {
    total = call.x.shape[call.channel_axis];
    // Channels side by side: a whole cache line of them, so that memory is read once.
    if (call.channel_axis + 1 == static_cast<int>(call.x.shape.size())) least = 32;
  }
  const int64_t elements = reference::count(call.x) / total;  // per row or channel
  const int64_t step = std::max(least, kElements / elements);
  std::vector<Piece> pieces;
  for (int64_t begin = 0; begin < total; begin += step) {
    pieces.push_back(cut(call, buffers, begin, std::min(begin + step, total)));
  }
  return pieces;
}

}  // namespace

std::vector<Piece> pieces_of(const reference::Call& call, const Buffers& buffers) {
  return std::visit([&](const auto& each) { return cut_all(each, buffers); }, call);
}

}  // namespace normgrad::tool
