#include "cuda/rows_kernel.cuh"

namespace normgrad::cuda {

RowsKernel rows_kernel_f16(bool rms, int units_per_thread, bool plain, bool is_short, bool dh) {
  return find_rows_kernel<F16>(rms, units_per_thread, plain, is_short, dh);
}

}  // namespace normgrad::cuda
