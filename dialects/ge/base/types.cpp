// Names of formats.
#include "graph/types.h"

namespace ge {

const char* GetFormatName(Format format) {
  switch (format) {
    case FORMAT_NCHW:
      return "NCHW";
    case FORMAT_NHWC:
      return "NHWC";
    case FORMAT_ND:
      return "ND";
    case FORMAT_NC1HWC0:
      return "NC1HWC0";
    case FORMAT_FRACTAL_Z:
      return "FRACTAL_Z";
    case FORMAT_NC1HWC0_C04:
      return "NC1HWC0_C04";
    case FORMAT_HWCN:
      return "HWCN";
    case FORMAT_NDHWC:
      return "NDHWC";
    case FORMAT_FRACTAL_NZ:
      return "FRACTAL_NZ";
    case FORMAT_NCDHW:
      return "NCDHW";
    case FORMAT_DHWCN:
      return "DHWCN";
    case FORMAT_NDC1HWC0:
      return "NDC1HWC0";
    case FORMAT_FRACTAL_Z_3D:
      return "FRACTAL_Z_3D";
    case FORMAT_NC:
      return "NC";
    case FORMAT_RESERVED:
      return "RESERVED";
    case FORMAT_ALL:
      return "ALL";
    case FORMAT_NULL:
      return "NULL";
    case FORMAT_NCL:
      return "NCL";
    case FORMAT_FRACTAL_NZ_C0_16:
      return "FRACTAL_NZ_C0_16";
  }
  return "UNKNOWN";
}

}  // namespace ge
