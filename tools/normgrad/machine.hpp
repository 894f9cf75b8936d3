// What Linux says about this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace normgrad::tool {

// "unknown model" if it does not say.
std::string cpu_model();

struct Cache {
  std::string type;  // "Data", "Instruction" or "Unified"
  int level = 0;
  int64_t bytes = 0;
  int sharing = 0;  // how many CPUs share it
};
std::vector<Cache> caches();

int cpu_megahertz();         // of the first CPU now; 0 if unknown
bool frequency_scaling();    // true if the governor may lower the frequency
std::vector<double> load();  // of the last 1, 5 and 15 minutes
std::string host_name();

// The folder of the running program.
std::string program_folder();

}  // namespace normgrad::tool
