// The check of a computed tensor against the oracle.
#include "reference/bound.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "reference/elements.hpp"

namespace normgrad::reference {
namespace {

struct Format {
  double roundoff;   // u_o
  double underflow;  // eta_o
  double overflow;   // the largest number plus half a unit: what rounds to Inf
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x1p-11, 0x1p-25, 65520};
    case DType::kBF16:
      return {0x1p-8, 0x1p-134, 0x1.FFp127};
    case DType::kF64:
      return {0x1p-53, 0x1p-1074, INFINITY};
    case DType::kI64:
      return {0, 0, INFINITY};
    default:
      return {0x1p-24, 0x1p-150, 0x1.FFFFFFp127};
  }
}

// slack = K u S + rows 2^-52 S
bool within(const Format& format, double out, double ref, double slack) {
  if (std::isnan(ref) || std::isnan(out)) return std::isnan(ref) && std::isnan(out);
  if (std::isinf(ref)) return out == ref;
  if (std::isinf(out)) return std::copysign(1, out) * ref + slack >= format.overflow;
  if (std::abs(ref) - slack >= format.overflow) return false;
  return std::abs(out - ref) <= format.roundoff * std::abs(ref) + format.underflow + slack;
}

}  // namespace

Verdict compare(const char* name, const Tensor& tensor, const void* data,
                std::span<const double> ref, std::span<const double> scale, double k,
                int64_t summed_rows) {
  const Format format = format_of(tensor.dtype);
  const double per_scale = k * 0x1p-24 + static_cast<double>(summed_rows) * 0x1p-52;
  const std::vector<double> out = gather(tensor, data);
  Verdict verdict;
  verdict.elements = static_cast<int64_t>(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    // A scale that is not finite beside a finite ref says nothing: such an element gets no slack.
    const double slack = std::isfinite(scale[i]) ? per_scale * scale[i] : 0;
    const double error = std::abs(out[i] - ref[i]);
    const double rounding = format.roundoff * std::abs(ref[i]) + format.underflow;
    if (std::isfinite(error) && std::isfinite(scale[i]) && scale[i] > 0) {
      verdict.worst_k = std::max(verdict.worst_k, (error - rounding) / (0x1p-24 * scale[i]));
    }
    if (std::isnan(ref[i]) ? std::isnan(out[i]) : out[i] == round_to(tensor.dtype, ref[i])) {
      ++verdict.nearest;
    }
    if (!within(format, out[i], ref[i], slack) && verdict.failures++ == 0) {
      char text[160];
      std::snprintf(text, sizeof text, "%s[%lld]: expected %.9g, got %.9g, allowed error %.2g",
                    name, static_cast<long long>(i), ref[i], out[i], rounding + slack);
      verdict.first_failure = text;
    }
  }
  return verdict;
}

}  // namespace normgrad::reference
