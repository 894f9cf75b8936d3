// One case of `normgrad bench` with its memory: inputs, outputs, and the call held ready.
//
// LayerNorm, RMSNorm and BatchNorm along the length go through the InfiniOP C API; BatchNorm along
// the channels and an RMSNorm that is given rstd, which InfiniOP does not have, through the C++
// API. All memory comes from infinirtMalloc: it is what programs get.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/shapes.hpp"
#include "infiniop_call.hpp"
#include "reference/cases.hpp"

namespace normgrad::tool {

class Trial {
 public:
  // Fills the inputs with random values, which repeat after about 65 thousand so that gigabytes are
  // there in a moment. The statistics of a BatchNorm are those of x; a LayerNorm gets x_hat.
  // saved_rstd: an RMSNorm gets rstd, as after a forward pass that saved it.
  explicit Trial(const BenchCase& description, bool saved_rstd = false);

  const reference::Call& call() const { return call_; }
  const Buffers& buffers() const { return operands_.buffers(); }
  int64_t data_bytes() const;     // of x; dy and dx have as many
  int64_t minimal_bytes() const;  // of all operands: what must be moved once

  void run() const { run_(); }

  // Spoils the outputs, runs once and says what is wrong.
  std::string verify() const;

  // Compares every element of every output, as it is now, with the oracle, by the proven bounds.
  // The answer is the first thing wrong, or empty.
  std::string what_is_wrong() const;

 private:
  reference::Call call_;
  DeviceOperands operands_;
  std::function<void()> run_;
};

}  // namespace normgrad::tool
