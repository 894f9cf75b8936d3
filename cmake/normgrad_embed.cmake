# normgrad_embed(TARGET FILE...): gives TARGET for each text FILE a FILE.inc, which is a string literal of
# that text: `constexpr std::string_view kText =`, `#include "FILE.inc"`, `;`.
function(normgrad_embed target)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}.embedded)
  foreach(file ${ARGN})
    file(READ ${file} text)
    cmake_path(GET file FILENAME name)
    file(CONFIGURE OUTPUT ${folder}/${name}.inc CONTENT "R\"normgrad(@text@)normgrad\"" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
