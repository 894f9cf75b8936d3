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
  // Also where there is a GPU: a program must not land there because somebody built in CUDA.
  if (!value || !*value) return Choice::kCpu;
  const std::string_view name = value;
  if (name == "cpu") return Choice::kCpu;
  return name == "cuda" ? Choice::kCuda : Choice::kUnknown;
}

// Read once: memory and operators must agree on the device for as long as the process runs.
Choice choice() noexcept {
  static const Choice kChoice = read_choice();
  return kChoice;
}

bool has_gpu() {
  static const bool kAny = kCuda.count() > 0;
  return kAny;
}

}  // namespace

const Device* find_device(const char* function) {
  switch (choice()) {
    case Choice::kCpu:
      return &kCpu;
    case Choice::kCuda:
      if (has_gpu()) return &kCuda;
      fail(ACL_ERROR_RT_NO_DEVICE,
           "EE9999: %s: %s chooses cuda, which is not in this build, or not in this machine",
           function, kVariable);
      return nullptr;
    default:
      fail(ACL_ERROR_RT_NO_DEVICE, "EE9999: %s: %s must be cpu or cuda", function, kVariable);
      return nullptr;
  }
}

}  // namespace normgrad::acl

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

extern "C" {

// Whatever is not the CPU answers 1, so that operators refuse a misspelt device too.
int32_t normgradAclDevice() noexcept { return choice() == Choice::kCpu ? 0 : 1; }

aclError aclrtGetDeviceCount(uint32_t* count) {
  if (!count) return null_pointer(__func__, "count");
  const Device* device = find_device(__func__);
  if (!device) return ACL_ERROR_RT_NO_DEVICE;
  *count = static_cast<uint32_t>(device->count());
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
  return on_device(__func__, [](const Device& device) { return device.synchronize(); });
}

}  // extern "C"
