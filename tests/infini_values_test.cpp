// The case table through the InfiniOP functions: within the bounds, and bit for bit what the native
// API gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "infini_table_call.hpp"

namespace infini_test {
namespace {

class InfiniValues : public testing::TestWithParam<normgrad::reference::Op> {};

TEST_P(InfiniValues, EqualTheNativeApi) {
  int ordinary = 0, extended = 0;
  for (const normgrad::reference::Case& c : normgrad::reference::cases(GetParam(), false)) {
    SCOPED_TRACE(c.name);
    normgrad::reference::Instance infini(c);
    const Translated translated = translate(infini.call(), infini.buffers());
    if (!translated.expressible) continue;
    ++(translated.extension ? extended : ordinary);
    const Status status = run(translated);
    ASSERT_TRUE(status.ok()) << status.message();
    const normgrad::reference::Instance::Report report = infini.check();
    EXPECT_TRUE(report.ok) << report.why;

    normgrad::reference::Instance native(c);
    const Status expected = normgrad::reference::run_native(native.call(), native.buffers());
    ASSERT_TRUE(expected.ok()) << expected.message();
    EXPECT_EQ(infini.hash(), native.hash());
  }
  RecordProperty("ordinary", ordinary);
  RecordProperty("extended", extended);
  EXPECT_GT(ordinary, 10);
  EXPECT_GT(extended, 10);
}

INSTANTIATE_TEST_SUITE_P(Table, InfiniValues,
                         testing::Values(normgrad::reference::Op::kLayerNorm,
                                         normgrad::reference::Op::kRmsNorm,
                                         normgrad::reference::Op::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace infini_test
