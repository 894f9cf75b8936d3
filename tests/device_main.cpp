// main() of the tests that need a GPU: 77, by which ctest knows a skip, if all of them skipped
// themselves.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const bool skipped = all.skipped_test_count() > 0 && all.successful_test_count() == 0;
  return failed == 0 && skipped ? 77 : failed;
}
