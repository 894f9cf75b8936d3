#include "cuda/rows_kernel.cuh"

namespace normgrad::cuda {

RowsKernel rows_kernel_f32(const RowsVariant& variant) { return find_rows_kernel<float>(variant); }

}  // namespace normgrad::cuda
