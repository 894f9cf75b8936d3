#include "normgrad/all_reduce_gradients.hpp"

#include <cstring>
#include <new>
#include <string>

#include "normgrad/cuda.hpp"
#include "ops/return_if_error.hpp"

namespace normgrad {
namespace {

// Each type's gradients lie side by side, in this order of the types.
constexpr struct {
  DType dtype;
  Element element;
} kTypes[] = {
    {DType::kF32, Element::kF32}, {DType::kF16, Element::kF16}, {DType::kBF16, Element::kBF16}};

constexpr size_t kAlignment = 16;

size_t bytes_of(const Gradient& gradient) {
  return static_cast<size_t>(gradient.count) * size_of(gradient.dtype);
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t count_of(std::span<const Gradient> gradients, DType dtype) {
  int64_t count = 0;
  for (const Gradient& gradient : gradients) {
    if (gradient.dtype == dtype) count += gradient.count;
  }
  return count;
}

Status check(std::span<const Gradient> gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& g = gradients[i];
    const std::string name = "gradients[" + std::to_string(i) + "]";
    if (g.dtype != DType::kF32 && g.dtype != DType::kF16 && g.dtype != DType::kBF16) {
      return {Code::kBadDType, name + ": expected f32, f16 or bf16, got " + name_of(g.dtype)};
    }
    if (g.count < 0 || g.count > int64_t{1} << 48) {
      return {Code::kBadShape,
              name + ": expected 0 to 2^48 elements, got " + std::to_string(g.count)};
    }
    if (g.count > 0 && !g.data) return {Code::kNullPointer, name + ": is null"};
  }
  return {};
}

Status copy(Device device, void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  if (device == Device::kCuda) return cuda::copy(to, from, bytes, stream);
  std::memcpy(to, from, bytes);
  return {};
}

// move(gradient, where its packed elements lie), for all of them.
template <class Move>
Status for_packed(std::span<const Gradient> gradients, std::byte* packed, const Move& move) {
  for (const auto& [dtype, element] : kTypes) {
    std::byte* next = packed;
    for (const Gradient& gradient : gradients) {
      if (gradient.dtype != dtype) continue;
      NORMGRAD_RETURN_IF_ERROR(move(gradient, next));
      next += bytes_of(gradient);
    }
    packed += aligned(static_cast<size_t>(next - packed));
  }
  return {};
}

}  // namespace

size_t all_reduce_gradients_workspace(std::span<const Gradient> gradients) noexcept {
  size_t bytes = kAlignment;
  for (const auto& [dtype, element] : kTypes) {
    bytes += aligned(static_cast<size_t>(count_of(gradients, dtype)) * size_of(dtype));
  }
  return bytes;
}

Status all_reduce_gradients(Communicator& communicator, std::span<const Gradient> gradients,
                            void* workspace, size_t workspace_size, void* stream,
                            Reduction reduction) noexcept try {
  NORMGRAD_RETURN_IF_ERROR(check(gradients));
  const size_t needed = all_reduce_gradients_workspace(gradients);
  if (workspace_size < needed) {
    return {Code::kInsufficientWorkspace, "workspace_size: expected at least " +
                                              std::to_string(needed) + " bytes, got " +
                                              std::to_string(workspace_size)};
  }
  if (!workspace) return {Code::kNullPointer, "workspace: is null"};
  if (reduction != Reduction::kSum && reduction != Reduction::kAverage) {
    return {Code::kBadArgument,
            std::string("reduction: expected sum or average, got ") + name_of(reduction)};
  }
  const Device device = communicator.device();
  std::byte* packed =
      static_cast<std::byte*>(workspace) + -reinterpret_cast<uintptr_t>(workspace) % kAlignment;
  NORMGRAD_RETURN_IF_ERROR(for_packed(gradients, packed, [&](const Gradient& g, std::byte* at) {
    return copy(device, at, g.data, bytes_of(g), stream);
  }));
  std::byte* sums = packed;
  for (const auto& [dtype, element] : kTypes) {
    const int64_t count = count_of(gradients, dtype);
    if (count == 0) continue;
    NORMGRAD_RETURN_IF_ERROR(
        communicator.all_reduce(sums, sums, count, element, reduction, stream));
    sums += aligned(static_cast<size_t>(count) * size_of(dtype));
  }
  return for_packed(gradients, packed, [&](const Gradient& g, std::byte* at) {
    return copy(device, g.data, at, bytes_of(g), stream);
  });
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

}  // namespace normgrad
