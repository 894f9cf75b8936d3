// The GPU's backends: "cuda:auto", which takes the best kernel for a shape.
#include "cuda/kernels.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::cuda {

std::span<const Backend> backends() {
  static const Backend kBackends[] = {
      {"cuda:auto", Device::kCuda, &choose_rows, &choose_channels, &copy},
  };
  static const size_t count = device_count() > 0 ? std::size(kBackends) : 0;
  return {kBackends, count};
}

}  // namespace normgrad::cuda
