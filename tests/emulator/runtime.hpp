// Streams that do at once what they are asked to, or note it while they are captured.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace normgrad::emulator {

cudaError_t enqueue(cudaStream_t stream, const std::function<void()>& work);

}  // namespace normgrad::emulator
