// Gradients of parameters, summed over the ranks of a communicator: what data parallel training
// does with the dgamma and dbeta of every LayerNorm, RMSNorm and BatchNorm.
#pragma once

#include <span>

#include "normgrad/communicator.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

struct Gradient {
  void* data = nullptr;  // in the communicator's memory
  int64_t count = 0;     // elements, without gaps
  DType dtype = DType::kF32;
};

// Bytes of workspace, in the communicator's memory.
NORMGRAD_EXPORT size_t all_reduce_gradients_workspace(std::span<const Gradient> gradients) noexcept;

// Overwrites each gradient with its sum, or average, over all ranks. They are packed: one
// collective for each of the types f32, f16 and bf16 that occur. All ranks give the same list. When
// a collective fails, no gradient has changed (on a GPU, where wait() of the communicator tells:
// undefined).
NORMGRAD_EXPORT Status all_reduce_gradients(Communicator& communicator,
                                            std::span<const Gradient> gradients, void* workspace,
                                            size_t workspace_size, void* stream = nullptr,
                                            Reduction reduction = Reduction::kSum) noexcept;

}  // namespace normgrad
