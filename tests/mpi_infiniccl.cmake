# infiniccl on several processes. The programs do not link with MPI: libinfiniccl loads it.

# The sanitizers stand between a library that loads another and the loader, which then does not know
# where the first lies; and MPI keeps memory to its end.
set(infiniccl_environment ${mpi_environment})
if(NORMGRAD_SANITIZE)
  list(APPEND infiniccl_environment
    LD_LIBRARY_PATH=$<TARGET_FILE_DIR:normgrad_mpi> ASAN_OPTIONS=detect_leaks=0)
endif()

normgrad_test(infiniccl_errors infiniccl)
add_dependencies(infiniccl_errors_test normgrad_mpi)
set_tests_properties(infiniccl_errors PROPERTIES ENVIRONMENT "${infiniccl_environment}")

add_executable(infiniccl_ranks_test infiniccl_ranks_test.cpp)
normgrad_target(infiniccl_ranks_test)
target_include_directories(infiniccl_ranks_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(infiniccl_ranks_test PRIVATE infiniccl GTest::gtest)
add_dependencies(infiniccl_ranks_test normgrad_mpi)
foreach(ranks 1 2 3 4)
  normgrad_mpi_run(infiniccl_ranks_${ranks} infiniccl_ranks ${ranks})
  set_tests_properties(infiniccl_ranks_${ranks} PROPERTIES
    ENVIRONMENT "${infiniccl_environment};NORMGRAD_COMM_DEADLINE=20")
endforeach()

# A rank dies or stalls.
add_executable(infiniccl_fault infiniccl_fault.cpp)
normgrad_target(infiniccl_fault)
target_link_libraries(infiniccl_fault PRIVATE infiniccl)
add_dependencies(infiniccl_fault normgrad_mpi)
normgrad_mpi_script(infiniccl_fault mpi_fault_test.sh $<TARGET_FILE:infiniccl_fault>
  3 "KILL STOP" tcp vader)
normgrad_mpi_script(infiniccl_fault_long mpi_fault_test.sh $<TARGET_FILE:infiniccl_fault>
  50 "KILL STOP" tcp vader)
set_tests_properties(infiniccl_fault infiniccl_fault_long PROPERTIES
  ENVIRONMENT "${infiniccl_environment}")
set_tests_properties(infiniccl_fault_long PROPERTIES LABELS long)
