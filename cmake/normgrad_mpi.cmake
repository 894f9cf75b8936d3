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
