// The data of a case, in float64 and dense; writing it to the operands rounds it.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/cases.hpp"

namespace normgrad::reference {

struct Inputs {
  std::vector<double> x, dy, gamma, mean, spread;
};

// x, dy and gamma; with kXHatStd also the spread, since x has become x_hat.
Inputs draw(const Case& description, uint64_t seed);

// Numbers like those of gamma.
std::vector<double> draw_parameters(const Case& description, uint64_t seed);

// mean and spread that belong to the x given, which is inputs.x as the call will see it. Changes x
// and dy where the case wants numbers that would spoil the statistics.
void finish(const Case& description, uint64_t seed, const std::vector<double>& x, Inputs& inputs);

}  // namespace normgrad::reference
