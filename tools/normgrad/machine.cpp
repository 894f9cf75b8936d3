#include "machine.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace normgrad::tool {
namespace {

const std::string kCpu0 = "/sys/devices/system/cpu/cpu0/";

// Empty if there is no such file.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// What stands behind "name : " in /proc/cpuinfo; empty if it is not there.
std::string cpuinfo(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != line.npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::string cpu_model() {
  const std::string model = cpuinfo("model name");
  return model.empty() ? "unknown model" : model;
}

std::vector<Cache> caches() {
  std::vector<Cache> all;
  for (int index = 0;; ++index) {
    const std::string folder = kCpu0 + "cache/index" + std::to_string(index) + "/";
    Cache cache;
    cache.type = first_line(folder + "type");
    if (cache.type.empty()) return all;
    cache.level = std::atoi(first_line(folder + "level").c_str());
    cache.bytes = std::atoll(first_line(folder + "size").c_str()) * 1024;  // "48K"
    for (const char digit : first_line(folder + "shared_cpu_map")) {       // hexadecimal, commas
      const std::string text(1, digit);
      cache.sharing += std::popcount(std::strtoul(text.c_str(), nullptr, 16));
    }
    all.push_back(cache);
  }
}

int cpu_megahertz() { return std::atoi(cpuinfo("cpu MHz").c_str()); }

bool frequency_scaling() {
  const std::string governor = first_line(kCpu0 + "cpufreq/scaling_governor");
  return !governor.empty() && governor != "performance";
}

std::vector<double> load() {
  std::array<double, 3> averages = {};
  const int known = getloadavg(averages.data(), averages.size());
  return {averages.begin(), averages.begin() + (known < 0 ? 0 : known)};
}

std::string host_name() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

}  // namespace normgrad::tool
