#include "cuda/rows_kernel.cuh"

namespace normgrad::cuda {

RowsKernel rows_kernel_bf16(bool rms, int units_per_thread, bool plain, bool is_short, bool dh) {
  return find_rows_kernel<BF16>(rms, units_per_thread, plain, is_short, dh);
}

}  // namespace normgrad::cuda
