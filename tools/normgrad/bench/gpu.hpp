// The timing of a case on a GPU: replays of a graph, each after the second-level cache was emptied.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/results.hpp"
#include "bench/trial.hpp"

namespace normgrad::tool {

class Gpu {
 public:
  Gpu();  // throws std::runtime_error if there is none
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  std::string name() const { return name_; }  // "NVIDIA H200, driver 13.0"

  // Checks every element of the outputs, then times the plan beside a copy of as many bytes.
  BenchResult run(const BenchCase& description);

 private:
  // The seconds of `samples` replays of what `queue` queues on a stream.
  template <class Queue>
  std::vector<double> replay(int samples, const Queue& queue);
  void empty_cache();

  struct Flush;
  std::unique_ptr<Flush> flush_;
  std::string name_;
  void* stream_ = nullptr;
  void *start_ = nullptr, *end_ = nullptr;  // events
};

}  // namespace normgrad::tool
