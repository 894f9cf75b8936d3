// Element types: their sizes, and halves as this API converts them.
#include <bit>
#include <cmath>
#include <cstdint>

#include "acl/acl.h"

extern "C" {

float aclFloat16ToFloat(aclFloat16 value) {
  const int exponent = value >> 10 & 31, mantissa = value & 1023;
  // 2^-24 is the smallest half. The exponent 31 is taken for a number like the others.
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return value & 0x8000 ? -magnitude : magnitude;
}

aclFloat16 aclFloatToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude >= 0x477ff000) {  // 65520, the midpoint that rounds up to 65536; infinities; NaN
    half = 0x7bff;
  } else if (magnitude < 0x38800000) {  // below 2^-14, the smallest normal half
    // The last bit of 0.5f stands for 2^-24: the addition rounds to a multiple of it.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
           std::bit_cast<uint32_t>(0.5F);
  } else {
    const uint32_t ties_to_even = magnitude >> 13 & 1;
    half = (magnitude + 0xfff + ties_to_even - (112U << 23)) >> 13;  // biases: 127 and 15
  }
  return static_cast<aclFloat16>((bits >> 16 & 0x8000U) | half);
}

size_t aclDataTypeSize(aclDataType dataType) {
  switch (dataType) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
      return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
      return 8;
    case ACL_COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

}  // extern "C"
