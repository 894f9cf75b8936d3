# normgrad_dialect(ROOT LIBDIR INCLUDES LIBRARIES...): what the libraries of a dialect share. They are
# installed in dialects/ROOT/LIBDIR of the prefix and find the core library from there; their headers
# are below include/, users include from the folders INCLUDES. exports.map says what they show. Their
# names carry no version because programs ask for exactly these.
function(normgrad_dialect root libdir includes)
  foreach(library ${ARGN})
    add_library(normgrad::${library} ALIAS ${library})
    normgrad_target(${library})
    foreach(folder ${includes})
      target_include_directories(${library} PUBLIC
        $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/${folder}>
        $<INSTALL_INTERFACE:dialects/${root}/${folder}>)
    endforeach()
    target_include_directories(${library} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_options(${library} PRIVATE
      LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/exports.map)
    set_target_properties(${library} PROPERTIES
      INSTALL_RPATH "$ORIGIN:$ORIGIN/../../../${CMAKE_INSTALL_LIBDIR}"
      LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/exports.map)
  endforeach()
  install(TARGETS ${ARGN} LIBRARY DESTINATION dialects/${root}/${libdir})
  install(DIRECTORY include/ DESTINATION dialects/${root}/include)
endfunction()
