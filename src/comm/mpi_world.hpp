// What libnormgrad_comm finds in libnormgrad_mpi by name. The arguments are world_communicator's.
#pragma once

#include "normgrad/world.hpp"

namespace normgrad::comm {

inline constexpr const char* kMpiWorld = "normgrad_mpi_world";
using MpiWorld = void(int size, int rank, std::chrono::duration<double> deadline,
                      std::unique_ptr<Communicator>& communicator, Status& status) noexcept;

}  // namespace normgrad::comm
