#include "ops/backend.hpp"

#include <cstdlib>
#include <string>
#include <vector>

#include "normgrad/info.hpp"

namespace normgrad {

std::span<const Backend> backends() {
  static const std::vector<Backend> list = [] {
    std::vector<Backend> all;
    for (const auto& device : {cpu::backends(), cuda::backends()}) {
      all.insert(all.end(), device.begin(), device.end());
    }
    return all;
  }();
  return list;
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
  for (const Backend& candidate : backends()) {
    if (candidate.device != device) continue;
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
  return {Code::kUnsupportedDevice,
          std::string("device: ") + device_name + " is not in this build of the library"};
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> list;
  for (const Backend& backend : backends()) list.push_back({backend.name, backend.device});
  return list;
}

const char* version() { return NORMGRAD_VERSION; }

}  // namespace normgrad
