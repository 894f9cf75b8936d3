# infiniccl on several processes. The programs do not link with MPI: libinfiniccl loads it.
normgrad_test(infiniccl_errors infiniccl)
add_dependencies(infiniccl_errors_test normgrad_mpi)
set_tests_properties(infiniccl_errors PROPERTIES ENVIRONMENT "${mpi_environment}")

add_executable(infiniccl_ranks_test infiniccl_ranks_test.cpp)
normgrad_target(infiniccl_ranks_test)
target_include_directories(infiniccl_ranks_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(infiniccl_ranks_test PRIVATE infiniccl GTest::gtest)
add_dependencies(infiniccl_ranks_test normgrad_mpi)
foreach(ranks 1 2 3 4)
  normgrad_mpi_run(infiniccl_ranks_${ranks} infiniccl_ranks ${ranks})
  set_property(TEST infiniccl_ranks_${ranks} APPEND PROPERTY ENVIRONMENT NORMGRAD_COMM_DEADLINE=20)
endforeach()

add_executable(infiniccl_fault infiniccl_fault.cpp)
normgrad_target(infiniccl_fault)
target_link_libraries(infiniccl_fault PRIVATE infiniccl)
add_dependencies(infiniccl_fault normgrad_mpi)
foreach(repetitions 3 50)
  add_test(NAME infiniccl_fault_${repetitions} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/mpi_fault_test.sh
    ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:infiniccl_fault> ${repetitions})
  set_tests_properties(infiniccl_fault_${repetitions} PROPERTIES
    TIMEOUT 1200 RESOURCE_LOCK mpi ENVIRONMENT "${mpi_environment}")
endforeach()
set_tests_properties(infiniccl_fault_50 PROPERTIES LABELS long)
