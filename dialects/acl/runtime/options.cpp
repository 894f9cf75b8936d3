// System parameters. They are kept and given back; none of them changes what is computed.
#include "context.hpp"

using namespace normgrad::acl;

namespace {

// Levels of determinism: 0 off, 1 the same bits every time, 2 also wherever the data lies, 3 also
// whatever the batch. The results satisfy all of them, always.
constexpr std::array<int64_t, 4> kLargest = {3, 1, 1, 1};

constinit Options process_options;

aclError check(const char* function, aclSysParamOpt opt) {
  const auto number = static_cast<unsigned>(opt);
  if (number < kLargest.size()) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s: opt is %d, expected 0 to %zu", function,
              static_cast<int>(opt), kLargest.size() - 1);
}

aclError set(const char* function, Options& options, aclSysParamOpt opt, int64_t value) {
  if (value < 0 || value > kLargest[opt]) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "EE1001: %s: value is %lld, expected 0 to %lld for opt %d", function,
                static_cast<long long>(value), static_cast<long long>(kLargest[opt]),
                static_cast<int>(opt));
  }
  options.values[opt] = value;
  return ACL_SUCCESS;
}

aclError get(const char* function, const Options& options, aclSysParamOpt opt, int64_t* value) {
  const int64_t found = options.values[opt];
  if (found == Options::kUnset) {
    return fail(ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, "EE1001: %s: opt %d was never set", function,
                static_cast<int>(opt));
  }
  *value = found;
  return ACL_SUCCESS;
}

}  // namespace

extern "C" {

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  if (aclError status = check(__func__, opt)) return status;
  return set(__func__, process_options, opt, value);
}

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  if (!value) return null_pointer(__func__, "value");
  if (aclError status = check(__func__, opt)) return status;
  return get(__func__, process_options, opt, value);
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  if (aclError status = check(__func__, opt)) return status;
  const std::shared_ptr<Context> context = need_context(__func__);
  if (!context) return ACL_ERROR_RT_CONTEXT_NULL;
  return set(__func__, context->options, opt, value);
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  if (!value) return null_pointer(__func__, "value");
  if (aclError status = check(__func__, opt)) return status;
  const std::shared_ptr<Context> context = need_context(__func__);
  if (!context) return ACL_ERROR_RT_CONTEXT_NULL;
  return get(__func__, context->options, opt, value);
}

}  // extern "C"
