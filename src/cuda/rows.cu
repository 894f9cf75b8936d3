#include "cuda/kernels.hpp"

namespace normgrad::cuda {

Status choose_rows(const RowsProblem&, Kernel<RowsProblem>&) {
  return {Code::kUnsupportedDevice, "device: cuda has no kernel for rows"};
}

}  // namespace normgrad::cuda
