#include "normgrad/world.hpp"

#include <dlfcn.h>

#include <new>
#include <string>

#include "comm/mpi_world.hpp"

namespace normgrad {
namespace {

// RTLD_GLOBAL: plugins of some MPIs look for MPI's own symbols in the program.
Status load(comm::MpiWorld*& world) {
  void* const library = dlopen(NORMGRAD_MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  if (library) world = reinterpret_cast<comm::MpiWorld*>(dlsym(library, comm::kMpiWorld));
  if (world) return {};
  return {Code::kUnsupportedDevice, "MPI: " NORMGRAD_MPI_LIBRARY " could not be loaded (" +
                                        std::string(dlerror()) +
                                        "); it is built where an MPI is found, and needs that MPI"};
}

}  // namespace

Status world_communicator(int size, int rank, std::chrono::duration<double> deadline,
                          std::unique_ptr<Communicator>& communicator) noexcept try {
  comm::MpiWorld* world = nullptr;
  if (Status bad = load(world); !bad.ok()) return bad;
  Status status;
  world(size, rank, deadline, communicator, status);
  return status;
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

}  // namespace normgrad
