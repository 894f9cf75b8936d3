#include "limit.hpp"

#include <omp.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "limit.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <Stores kStores>
void add_words(const uint32_t* HWY_RESTRICT x, const uint32_t* HWY_RESTRICT dy,
               uint32_t* HWY_RESTRICT dx, int64_t words) {
  const hn::ScalableTag<uint32_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= words; i += lanes) {
    const auto sum = hn::Add(hn::Load(d, x + i), hn::Load(d, dy + i));
    if constexpr (kStores == Stores::kNonTemporal) {
      hn::Stream(sum, d, dx + i);
    } else {
      hn::Store(sum, d, dx + i);
    }
  }
  for (; i < words; ++i) dx[i] = x[i] + dy[i];
  hwy::FlushStream();
}

void add_part(const uint32_t* x, const uint32_t* dy, uint32_t* dx, int64_t words, Stores stores) {
  (stores == Stores::kPlain ? add_words<Stores::kPlain>
                            : add_words<Stores::kNonTemporal>)(x, dy, dx, words);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace normgrad::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::bench {

HWY_EXPORT(add_part);

void add_arrays(const void* x, const void* dy, void* dx, int64_t bytes, Stores stores,
                int64_t times) {
  constexpr int64_t kLine = 64 / sizeof(uint32_t);  // parts begin with a cache line
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint32_t));
  const int64_t lines = (words + kLine - 1) / kLine;
  const auto* const x_words = static_cast<const uint32_t*>(x);
  const auto* const dy_words = static_cast<const uint32_t*>(dy);
  auto* const dx_words = static_cast<uint32_t*>(dx);
  const auto add = HWY_DYNAMIC_DISPATCH(add_part);
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t begin = lines * thread / threads * kLine;
    const int64_t end = std::min(lines * (thread + 1) / threads * kLine, words);
    for (int64_t time = 0; time < times; ++time) {
      add(x_words + begin, dy_words + begin, dx_words + begin, end - begin, stores);
    }
  }
}

}  // namespace normgrad::bench
#endif  // HWY_ONCE
