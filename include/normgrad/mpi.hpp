// The engine on MPI: a Communicator over the ranks of an MPI communicator. In libnormgrad_mpi.
//
// Sums, products and averages are made in the order of the ranks (floating point in float64,
// rounded once), so every rank has the same bits, whatever algorithm and network the MPI uses.
//
// A rank that dies must not take the others down before they can tell: start Open MPI's jobs with
// `mpirun --enable-recovery --quiet --mca opal_event_include epoll`. After a failure MPI_Finalize
// may wait for the lost rank forever: end the process with MPI_Abort, which ends the whole job, or
// std::_Exit. docs/distributed.md has more.
#pragma once

// MPI's C interface alone: its C++ bindings are another library.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <chrono>
#include <memory>

#include "normgrad/communicator.hpp"

namespace normgrad {

// Made by all ranks of `mpi` together. It works on a duplicate of it, on which errors are returned;
// the deadline holds for this call, too. `communicator` is changed only on success. Destroy it
// before MPI_Finalize.
//
// Device::kCuda: the memory of all calls is the GPU's. It passes through host memory, so every MPI
// will do; calls wait for their stream and cannot be captured.
NORMGRAD_EXPORT Status mpi_communicator(MPI_Comm mpi, std::chrono::duration<double> deadline,
                                        std::unique_ptr<Communicator>& communicator,
                                        Device device = Device::kCpu) noexcept;

}  // namespace normgrad
