// GEInitialize, GEFinalize, the messages, and options.
#include <atomic>
#include <mutex>

#include "error.hpp"
#include "ge/ge_api.h"
#include "runner/engine.hpp"
#include "runner/gpu.hpp"

namespace normgrad::graph_mode {
namespace {

std::atomic<uint64_t> g_epoch{0};
std::atomic<uint64_t> g_last_epoch{0};
std::atomic<int> g_gpu{-1};
constinit std::mutex g_mutex;

int gpu_in(const Options& options) {
  const auto found = options.find(::ge::OPTION_EXEC_DEVICE_ID);
  return found == options.end() ? -1 : parse_gpu(found->second.GetString());
}

uint32_t initialize(const Options& options) {
  return guard([&] {
    check_options("GEInitialize", options);
    const int gpu = gpu_in(options);
    const std::lock_guard<std::mutex> lock(g_mutex);
    if (g_epoch == 0) {
      g_gpu = gpu;
      g_epoch = ++g_last_epoch;
    }
    return ::ge::SUCCESS;
  });
}

}  // namespace

Options to_options(const std::map<std::string, std::string>& options) {
  Options result;
  for (const auto& [key, value] : options) result.emplace(key.c_str(), value.c_str());
  return result;
}

void check_options(const char* function, const Options& options) {
  for (const auto& [key, value] : options) {
    if (key.GetLength() == 0) refuse(std::string(function) + ": an option has an empty key");
    if (key == ::ge::OPTION_EXEC_DEVICE_ID || key == ::ge::OPTION_GRAPH_RUN_MODE) continue;
    add_warning((std::string(function) + ": option '" + key.GetString() + "' is ignored").c_str());
  }
}

int gpu_of(const Options& options) {
  const int gpu = gpu_in(options);
  return gpu >= 0 ? gpu : g_gpu.load();
}

uint64_t current_epoch() noexcept { return g_epoch; }

}  // namespace normgrad::graph_mode

namespace ge {

using normgrad::graph_mode::guard;

Status GEInitialize(const std::map<AscendString, AscendString>& options) {
  return normgrad::graph_mode::initialize(options);
}

Status GEInitialize(const std::map<std::string, std::string>& options) {
  return guard([&] { return GEInitialize(normgrad::graph_mode::to_options(options)); });
}

Status GEFinalize() {
  const std::lock_guard<std::mutex> lock(normgrad::graph_mode::g_mutex);
  normgrad::graph_mode::g_epoch = 0;
  return SUCCESS;
}

AscendString GEGetErrorMsgV2() { return normgrad::graph_mode::take_error(); }
AscendString GEGetWarningMsgV2() { return normgrad::graph_mode::take_warnings(); }
std::string GEGetErrorMsg() { return normgrad::graph_mode::take_error(); }
std::string GEGetWarningMsg() { return normgrad::graph_mode::take_warnings(); }

}  // namespace ge
