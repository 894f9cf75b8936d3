// The processes that a launcher such as mpirun started, as a communicator on the CPU, for programs
// that are built without MPI: libnormgrad_mpi is loaded at run time, and MPI is initialized and
// finalized by it unless the program does so. Programs with an MPI_Comm take normgrad/mpi.hpp.
#pragma once

#include <chrono>
#include <memory>

#include "normgrad/communicator.hpp"

namespace normgrad {

// `size` is the number of all processes, of which this must be `rank`, or 1: this process alone.
// kUnsupportedDevice: libnormgrad_mpi, or the MPI it needs, is not there. `communicator` is changed
// only on success.
NORMGRAD_EXPORT Status world_communicator(int size, int rank,
                                          std::chrono::duration<double> deadline,
                                          std::unique_ptr<Communicator>& communicator) noexcept;

}  // namespace normgrad
