// aclInit and its counterparts: a reference count and the memory of the first configuration.
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>

#include "runtime.hpp"

using namespace normgrad::acl;

namespace {

struct State {
  std::mutex mutex;
  uint64_t references = 0;
  bool finalized = false;
  std::optional<std::string> configuration;  // that of the first aclInit
};

// Never destroyed: programs call aclFinalize while the process exits.
State& state() {
  alignas(State) static unsigned char storage[sizeof(State)];
  static State& object = *new (storage) State;
  return object;
}

// The text of the file without white space. Null, an empty path, an empty file and {} all say that
// nothing is configured.
aclError read_configuration(const char* function, const char* path, std::string& text) {
  if (!path || !*path) return ACL_SUCCESS;
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) file.open(path);
  if (!file.is_open()) {
    return fail(ACL_ERROR_INVALID_FILE, "EE1001: %s: configPath, %s, is not a readable file",
                function, path);
  }
  for (char c; file >> c;) text += c;  // skips white space
  if (text == "{}") text.clear();
  return ACL_SUCCESS;
}

aclError initialize(const char* function, const char* path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.references > 0) {
    ++s.references;
    return fail(ACL_ERROR_REPEAT_INITIALIZE,
                "EE9999: %s: already initialized, the reference count is %llu now", function,
                static_cast<unsigned long long>(s.references));
  }
  std::string text;
  if (aclError status = read_configuration(function, path, text)) return status;
  if (s.configuration && *s.configuration != text) {
    return fail(ACL_ERROR_INVALID_PARAM,
                "EE1001: %s: the content of configPath, %s, differs from that of the first call",
                function, path ? path : "null");
  }
  s.configuration = std::move(text);
  s.references = 1;
  s.finalized = false;
  return ACL_SUCCESS;
}

}  // namespace

extern "C" {

aclError aclInit(const char* configPath) {
  return guarded(__func__, [&] { return initialize("aclInit", configPath); });
}

aclError aclFinalize() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.finalized)
    return fail(ACL_ERROR_REPEAT_FINALIZE, "EE9999: %s: already finalized", __func__);
  s.finalized = true;
  s.references = 0;
  return ACL_SUCCESS;
}

aclError aclFinalizeReference(uint64_t* refCount) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.references == 0) {
    return fail(ACL_ERROR_REPEAT_FINALIZE, "EE9999: %s: there is no reference left to take back",
                __func__);
  }
  if (--s.references == 0) s.finalized = true;
  if (refCount) *refCount = s.references;
  return ACL_SUCCESS;
}

aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion) {
  if (!majorVersion) return null_pointer(__func__, "majorVersion");
  if (!minorVersion) return null_pointer(__func__, "minorVersion");
  if (!patchVersion) return null_pointer(__func__, "patchVersion");
  *majorVersion = ACL_MAJOR_VERSION;
  *minorVersion = ACL_MINOR_VERSION;
  *patchVersion = ACL_PATCH_VERSION;
  return ACL_SUCCESS;
}

}  // extern "C"
