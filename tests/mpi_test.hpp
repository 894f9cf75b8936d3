// What tests that run under mpirun share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "normgrad/mpi.hpp"

namespace normgrad {

// A communicator over all ranks. Tests that fail on one rank end on the others at the deadline.
inline std::unique_ptr<Communicator> world(double deadline = 5) {
  std::unique_ptr<Communicator> communicator;
  const Status status =
      mpi_communicator(MPI_COMM_WORLD, std::chrono::duration<double>(deadline), communicator);
  if (!status.ok()) throw Error(status);
  return communicator;
}

inline double seconds() { return MPI_Wtime(); }

}  // namespace normgrad
