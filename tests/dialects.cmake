# The tests of the dialects.

# normgrad_symbols_test(DIALECT LIBRARIES...): each exports what dialects/DIALECT/symbols.txt says.
function(normgrad_symbols_test dialect)
  foreach(library ${ARGN})
    add_test(NAME symbols_${library} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/symbols_test.sh
      $<TARGET_FILE:${library}> ${PROJECT_SOURCE_DIR}/dialects/${dialect}/symbols.txt)
  endforeach()
endfunction()

set(infini infiniop infinirt)
set(acl opapi_nn nnopbase ascendcl)
set(ge ge_runner graph graph_base)

# InfiniOP.
foreach(name errors forward objects runtime values)
  normgrad_test(infini_${name} ${infini})
endforeach()
foreach(name nvidia nvidia_values)
  normgrad_device_test(infini_${name} ${infini})
endforeach()
add_executable(infini_abi_test infini_abi_test.c)
normgrad_target(infini_abi_test)
target_link_libraries(infini_abi_test PRIVATE ${infini} infiniccl)
add_test(NAME infini_abi COMMAND infini_abi_test)
normgrad_symbols_test(infini ${infini} infiniccl)

# infiniccl; what needs several processes is in mpi.cmake.
normgrad_test(infiniccl_absent infiniccl normgrad_comm)
normgrad_device_test(infiniccl_nvidia infiniccl infinirt)
set(absent ${CMAKE_CURRENT_BINARY_DIR}/absent)
file(WRITE ${absent}/libnccl.so.2 "")
file(WRITE ${absent}/libnormgrad_mpi.so.${PROJECT_VERSION_MAJOR} "")
set_tests_properties(infiniccl_absent PROPERTIES ENVIRONMENT LD_LIBRARY_PATH=${absent})

# aclnn.
normgrad_test(acl_runtime ascendcl)
foreach(name objects executor errors forward sibling_errors siblings values)
  normgrad_test(aclnn_${name} ${acl})
endforeach()
normgrad_device_test(acl_cuda ascendcl)
normgrad_device_test(aclnn_cuda ${acl})
target_link_libraries(aclnn_values_test PRIVATE ${infini})  # compares the two
normgrad_symbols_test(acl ${acl})

# Graph mode.
foreach(name objects graph compile errors operator_errors session_errors engine values)
  normgrad_test(ge_${name} ${ge})
endforeach()
normgrad_device_test(ge_cuda ${ge})
# The compiler's inner workings: what is computed, and where it is kept.
foreach(source arena compile infer program)
  target_sources(ge_compile_test PRIVATE ${PROJECT_SOURCE_DIR}/dialects/ge/runner/${source}.cpp)
endforeach()
target_include_directories(ge_compile_test PRIVATE ${PROJECT_SOURCE_DIR}/dialects/ge)
normgrad_symbols_test(ge ${ge})

# All at once.
foreach(name front_doors soak)
  normgrad_test(${name} ${infini} ${acl} ${ge})
endforeach()

list(APPEND threaded infini_objects acl_runtime aclnn_executor ge_graph)

# Headers that compile alone, with flags of their own: once is enough.
if(NOT NORMGRAD_SANITIZE)
  foreach(dialect infini acl ge)
    add_test(NAME ${dialect}_headers COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${dialect}_headers_test.sh)
  endforeach()
endif()
