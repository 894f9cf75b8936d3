#include "ops/backend.hpp"

#include <cstdlib>
#include <string>

#include "normgrad/info.hpp"

namespace normgrad {

std::span<const Backend> backends(Device device) {
  return device == Device::kCpu ? cpu::backends() : cuda::backends();
}

Status choose_backend(Device device, const Backend*& backend) {
  const char* device_name = device == Device::kCpu ? "cpu" : "cuda";
  const char* variable = std::getenv("NORMGRAD_IMPL");
  const std::string wanted = variable ? variable : "";
  if (!wanted.empty() && !wanted.starts_with("cpu:") && !wanted.starts_with("cuda:")) {
    return {Code::kUnsupportedDevice,
            "NORMGRAD_IMPL: expected a name that starts with cpu: or cuda:, got " + wanted};
  }
  // A choice for another device does not concern this one.
  const bool forced = wanted.starts_with(std::string(device_name) + ":");
  std::string available;
  for (const Backend& candidate : backends(device)) {
    if (!forced || wanted == candidate.name) {
      backend = &candidate;
      return {};
    }
    available += std::string(available.empty() ? "" : ", ") + candidate.name;
  }
  if (forced) {
    return {Code::kUnsupportedDevice,
            "NORMGRAD_IMPL: expected one of " + available + "; got " + wanted};
  }
  return {Code::kUnsupportedDevice, std::string("device: there is no ") + device_name +
                                        " on this machine, or it is not in this build"};
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> list;
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    for (const Backend& backend : backends(device)) list.push_back({backend.name, backend.device});
  }
  return list;
}

const char* version() { return NORMGRAD_VERSION; }

}  // namespace normgrad
