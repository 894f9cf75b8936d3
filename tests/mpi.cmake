# Tests of several processes, with Open MPI's mpirun. One at a time: each starts more processes than
# there may be cores, and they watch the clock.

# As root, on fewer cores than ranks, one thread in each.
set(mpi_environment
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1)
set(mpi_run ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none)

# normgrad_mpi_program(NAME): tests/NAME_test.cpp, to run under mpirun.
function(normgrad_mpi_program name)
  add_executable(${name}_test ${name}_test.cpp mpi_main.cpp)
  normgrad_target(${name}_test)
  target_link_libraries(${name}_test PRIVATE
    normgrad normgrad_reference normgrad_mpi GTest::gtest MPI::MPI_C)
endfunction()

# normgrad_mpi_run(NAME PROGRAM RANKS [ARGUMENTS OF MPIRUN...])
function(normgrad_mpi_run name program ranks)
  add_test(NAME ${name} COMMAND ${mpi_run} -n ${ranks} ${ARGN} $<TARGET_FILE:${program}_test>)
  set_tests_properties(${name} PROPERTIES
    TIMEOUT 120 RESOURCE_LOCK mpi ENVIRONMENT "${mpi_environment}")
endfunction()

normgrad_mpi_program(mpi_communicator)
foreach(ranks 1 2 3 8)
  normgrad_mpi_run(mpi_communicator_${ranks} mpi_communicator ${ranks})
endforeach()
