// A machine without MPI and without NCCL: libinfiniccl loads, and says what is missing. CMake lets
// the loader find empty files in their place.
#include <gtest/gtest.h>

#include <string>

#include "infiniccl/normgrad.h"
#include "normgrad/nccl.hpp"

namespace {

TEST(InfinicclAbsent, Mpi) {
  infinicclComm_t comm = nullptr;
  infinicclUniqueId_t id = {};
  EXPECT_EQ(infinicclCommInitAll(INFINI_DEVICE_CPU, &comm, 1, nullptr),
            INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_NE(std::string(normgradGetLastError()).find("libnormgrad_mpi.so"), std::string::npos)
      << normgradGetLastError();
  EXPECT_EQ(infinicclGetUniqueId(&id), INFINI_STATUS_SUCCESS) << normgradGetLastError();
  EXPECT_EQ(infinicclCommInitRank(&comm, 1, id, 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
  EXPECT_EQ(comm, nullptr);
}

TEST(InfinicclAbsent, Nccl) {
  normgrad::NcclUniqueId id;
  const normgrad::Status status = normgrad::nccl_unique_id(id);
  EXPECT_EQ(status.code(), normgrad::Code::kUnsupportedDevice);
  EXPECT_NE(status.message().find("libnccl.so.2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("LD_LIBRARY_PATH"), std::string::npos) << status.message();
}

}  // namespace
