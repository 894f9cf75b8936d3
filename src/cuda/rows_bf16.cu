#include "cuda/rows_kernel.cuh"

namespace normgrad::cuda {

RowsKernel rows_kernel_bf16(const RowsVariant& variant) { return find_rows_kernel<BF16>(variant); }

}  // namespace normgrad::cuda
