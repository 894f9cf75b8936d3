# Tests of several processes, with Open MPI's mpirun. One at a time: each starts more processes than
# there may be cores, and they watch the clock.

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
add_test(NAME mpi_communicator_long COMMAND ${mpi_run} -n 2 $<TARGET_FILE:mpi_communicator_test>
  --gtest_also_run_disabled_tests --gtest_filter=*MoreThan*)
set_tests_properties(mpi_communicator_long PROPERTIES
  LABELS long TIMEOUT 300 RESOURCE_LOCK mpi ENVIRONMENT "${mpi_environment}")

normgrad_mpi_program(sync_batch_norm)
foreach(ranks 1 2 3 4 8)
  normgrad_mpi_run(sync_batch_norm_${ranks} sync_batch_norm ${ranks})
endforeach()

# normgrad_mpi_script(NAME SCRIPT ARGUMENTS...)
function(normgrad_mpi_script name script)
  add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${script} ${MPIEXEC_EXECUTABLE} ${ARGN})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT 900 RESOURCE_LOCK mpi ENVIRONMENT "${mpi_environment}")
endfunction()

# A rank dies or stalls.
add_executable(mpi_fault mpi_fault.cpp)
normgrad_target(mpi_fault)
target_link_libraries(mpi_fault PRIVATE normgrad_mpi)
normgrad_mpi_script(mpi_fault mpi_fault_test.sh $<TARGET_FILE:mpi_fault>
  3 "KILL STOP GONE" tcp vader)
normgrad_mpi_script(mpi_fault_long mpi_fault_test.sh $<TARGET_FILE:mpi_fault>
  50 "KILL STOP GONE" tcp vader)
set_tests_properties(mpi_fault_long PROPERTIES LABELS long)

# Other algorithms and networks.
normgrad_mpi_script(mpi_topologies mpi_topologies_test.sh $<TARGET_FILE:sync_batch_norm_test>)
normgrad_mpi_run(mpi_communicator_tcp mpi_communicator 4
  --mca btl tcp,self --mca coll_libnbc_iallgather_algorithm 2)
normgrad_mpi_script(mpi_network mpi_network_test.sh $<TARGET_FILE:example_sync_batch_norm_mpi>)
set_tests_properties(mpi_network PROPERTIES SKIP_RETURN_CODE 77)
