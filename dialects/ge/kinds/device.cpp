#include "kinds/device.hpp"

#include <cstdlib>
#include <string>

#include "error.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::graph_mode {

Device device() {
  static const std::string kName = [] {
    const char* value = std::getenv("NORMGRAD_ACL_DEVICE");
    return std::string(value && *value ? value : "cpu");
  }();
  if (kName == "cpu") return Device::kCpu;
  if (kName != "cuda") refuse("NORMGRAD_ACL_DEVICE must be cpu or cuda, got " + kName);
  static const bool kHasGpu = cuda::device_count() > 0;
  if (kHasGpu) return Device::kCuda;
  refuse("NORMGRAD_ACL_DEVICE chooses cuda, which is not in this build, or not in this machine");
}

}  // namespace normgrad::graph_mode
