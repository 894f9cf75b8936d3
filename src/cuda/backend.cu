// The GPU's backends: "cuda:auto", which takes the best kernel for a shape, and one for each kernel
// that it chooses from.
#include "cuda/channels.hpp"
#include "cuda/kernels.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::cuda {

std::span<const Backend> backends() {
  static const Backend kBackends[] = {
      {"cuda:auto", Device::kCuda, &choose_rows, &choose_channels, &copy},
      {"cuda:channels_columns", Device::kCuda, &choose_rows, &choose_channels_columns, &copy},
      {"cuda:channels_cluster", Device::kCuda, &choose_rows, &choose_channels_cluster, &copy},
      {"cuda:channels_team", Device::kCuda, &choose_rows, &choose_channels_team, &copy},
      {"cuda:channels_two_pass", Device::kCuda, &choose_rows, &choose_channels_two_pass, &copy},
  };
  static const size_t count = device_count() > 0 ? std::size(kBackends) : 0;
  return {kBackends, count};
}

}  // namespace normgrad::cuda
