// CUDA's errors as statuses.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "normgrad/status.hpp"

namespace normgrad::cuda {

// `what`: the call that failed. Errors that end the context stay CUDA's to report; the others are
// taken off its record, so that they do not turn up in somebody else's call.
inline Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool absent = error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
                      error == cudaErrorInvalidDevice || error == cudaErrorNoKernelImageForDevice;
  const bool bad = error == cudaErrorInvalidValue || error == cudaErrorInvalidResourceHandle;
  return {absent ? Code::kUnsupportedDevice
          : bad  ? Code::kBadArgument
                 : Code::kInternal,
          std::string(what) + ": " + cudaGetErrorString(error)};
}

}  // namespace normgrad::cuda
