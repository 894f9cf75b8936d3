# Turns the option NORMGRAD_MPI into NORMGRAD_HAS_MPI. AUTO: if an MPI for C is there; its C++ bindings
# are not used.
set(NORMGRAD_HAS_MPI FALSE)
if(NORMGRAD_MPI STREQUAL "OFF")
  return()
endif()
find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND)
  set(NORMGRAD_HAS_MPI TRUE)
elseif(NORMGRAD_MPI STREQUAL "ON")
  message(FATAL_ERROR "NORMGRAD_MPI=ON: expected an MPI for C, such as libopenmpi-dev, found none")
endif()

# How tests start programs of several processes: as root, on fewer cores than ranks, one thread in each. MPI
# leaves memory behind, and so do broken communicators, on purpose.
set(mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
  ASAN_OPTIONS=detect_leaks=0)
set(mpi_run ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none)
