// The case table through the native API, once per instruction set that this machine has.
#include "reference/cases.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace normgrad::reference {
namespace {

class CaseTable : public testing::TestWithParam<std::tuple<Op, std::string>> {};

TEST_P(CaseTable, EveryCaseIsWithinItsBound) {
  const auto& [op, implementation] = GetParam();
  setenv("NORMGRAD_IMPL", implementation.c_str(), 1);
  for (const std::vector<Case>& table :
       {cases(op, /*long_mode=*/false), extended_cases(op), forward_cases(op), step_cases(op)}) {
    for (const Case& description : table) {
      const auto instance = make_instance(description);
      const Status status = run_on(*instance, Device::kCpu);
      ASSERT_TRUE(status.ok()) << description.name << ": " << status.message();
      const Report report = instance->check();
      EXPECT_TRUE(report.ok) << description.name << ": " << report.why;
    }
  }
  unsetenv("NORMGRAD_IMPL");
}

std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const Implementation& implementation : implementations()) {
    names.push_back(implementation.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllImplementations, CaseTable,
                         testing::Combine(testing::Values(Op::kLayerNorm, Op::kRmsNorm,
                                                          Op::kBatchNorm),
                                          testing::ValuesIn(implementation_names())),
                         [](const auto& instance) {
                           std::string name = std::string(name_of(std::get<0>(instance.param))) +
                                              "_" + std::get<1>(instance.param);
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace normgrad::reference
