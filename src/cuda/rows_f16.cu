#include "cuda/rows_kernel.cuh"

namespace normgrad::cuda {

RowsKernel rows_kernel_f16(const RowsVariant& variant) { return find_rows_kernel<F16>(variant); }

}  // namespace normgrad::cuda
