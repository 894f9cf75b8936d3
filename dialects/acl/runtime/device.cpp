// Which device is behind the runtime, and what it is.
#include "device.hpp"

#include <cstdlib>
#include <string_view>

namespace normgrad::acl {
namespace {

enum class Choice { kCpu, kCuda, kUnknown };

constexpr const char* kVariable = "NORMGRAD_ACL_DEVICE";

Choice read_choice() noexcept {
  const char* value = std::getenv(kVariable);
  if (!value || !*value) return Choice::kCpu;  // until there is a table for a GPU
  const std::string_view name = value;
  if (name == "cpu") return Choice::kCpu;
  return name == "cuda" ? Choice::kCuda : Choice::kUnknown;
}

// Read once: memory and operators must agree on the device for as long as the process runs.
Choice choice() noexcept {
  static const Choice kChoice = read_choice();
  return kChoice;
}

}  // namespace

const Device* find_device(const char* function) {
  switch (choice()) {
    case Choice::kCpu:
      return &kCpu;
    case Choice::kCuda:
      fail(ACL_ERROR_RT_NO_DEVICE,
           "EE9999: %s: %s chooses cuda, but the runtime of this build has the CPU only", function,
           kVariable);
      return nullptr;
    default:
      fail(ACL_ERROR_RT_NO_DEVICE, "EE9999: %s: %s must be cpu or cuda", function, kVariable);
      return nullptr;
  }
}

}  // namespace normgrad::acl

using normgrad::acl::Device;
using normgrad::acl::find_device;
using normgrad::acl::null_pointer;

extern "C" {

// Whatever is not the CPU answers 1, so that operators refuse a misspelt device too.
int32_t normgradAclDevice() noexcept {
  return normgrad::acl::choice() == normgrad::acl::Choice::kCpu ? 0 : 1;
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  if (!count) return null_pointer(__func__, "count");
  if (!find_device(__func__)) return ACL_ERROR_RT_NO_DEVICE;
  *count = 1;
  return ACL_SUCCESS;
}

const char* aclrtGetSocName() {
  const Device* device = find_device(__func__);
  return device ? device->soc_name : nullptr;
}

// The program runs on the host and copies to the device and back.
aclError aclrtGetRunMode(aclrtRunMode* runMode) {
  if (!runMode) return null_pointer(__func__, "runMode");
  *runMode = ACL_HOST;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeDevice() {
  return find_device(__func__) ? ACL_SUCCESS : ACL_ERROR_RT_NO_DEVICE;
}

}  // extern "C"
