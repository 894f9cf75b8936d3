// Some rows that are looked at together.
#if defined(NORMGRAD_CPU_ROW_BATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_BATCH_INL_H_
#undef NORMGRAD_CPU_ROW_BATCH_INL_H_
#else
#define NORMGRAD_CPU_ROW_BATCH_INL_H_
#endif

#include <cstdint>

#include "cpu/row_scalars-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

template <class T>
struct RowBatch {
  int64_t count = 0;
  bool has_dh = false;
  const T* x[kMostRows];
  const T* dy[kMostRows];
  const T* dh[kMostRows];
  T* dx[kMostRows];
  RowMeasures measures;
  RowScalars scalars;
  // Set only if a row needs float64: for x_hat, or for dx, if only because x_hat does.
  bool any_wide = false;
  bool wide_params[kMostRows], wide_dx[kMostRows];
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_BATCH_INL_H_
