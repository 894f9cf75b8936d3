// What tests that need a GPU share.
#pragma once

#include <gtest/gtest.h>

#include "normgrad/cuda.hpp"
#include "reference/device.hpp"

namespace device_test {

using normgrad::reference::DeviceMemory;
using normgrad::reference::DeviceMirror;
using normgrad::reference::DeviceWorkspace;

inline void expect_ok(const normgrad::Status& status) {
  EXPECT_TRUE(status.ok()) << status.message();
}

// Skips where there is no GPU.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (normgrad::cuda::device_count() == 0) GTEST_SKIP() << "no device";
  }
};

}  // namespace device_test
