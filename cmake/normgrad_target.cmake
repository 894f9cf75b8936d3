# normgrad_target(TARGET): the compile and link options that every target of this project shares.
#
# -ffp-contract=off: sums and products are fused only where the source says so, in every build.
# -Wno-restrict: g++ 12 warns of std::string's operator+ without cause (gcc bug 105651).
#
# --fmad=false is the same for CUDA. -Wno-parentheses: nvcc writes some of its own.
#
# Sources see a sanitizer as NORMGRAD_SANITIZE_ADDRESS, _UNDEFINED or _THREAD, with any compiler.
function(normgrad_target target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wshadow;-ffp-contract=off>
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wno-parentheses;--fmad=false;--expt-relaxed-constexpr>)
  if(NORMGRAD_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${NORMGRAD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${NORMGRAD_SANITIZE})
    string(TOUPPER "NORMGRAD_SANITIZE_${NORMGRAD_SANITIZE}" definitions)
    string(REPLACE "," ";NORMGRAD_SANITIZE_" definitions "${definitions}")
    target_compile_definitions(${target} PRIVATE ${definitions})
  endif()
endfunction()
