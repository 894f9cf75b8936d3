#include "cuda/kernels.hpp"

namespace normgrad::cuda {

Status choose_channels(const ChannelsProblem&, Kernel<ChannelsProblem>&) {
  return {Code::kUnsupportedDevice, "device: cuda has no kernel for channels"};
}

}  // namespace normgrad::cuda
