// What this build of the library can do on this machine.
#pragma once

#include <string>
#include <vector>

#include "normgrad/export.hpp"
#include "normgrad/plan.hpp"

namespace normgrad {

struct Implementation {
  std::string name;  // "cpu:avx3"; the value of NORMGRAD_IMPL that forces it
  Device device;
};

// Best first. Plans take the first one of their device, unless the environment variable
// NORMGRAD_IMPL names another when the plan is made.
NORMGRAD_EXPORT std::vector<Implementation> implementations();

// "0.1.0"
NORMGRAD_EXPORT const char* version();

}  // namespace normgrad
