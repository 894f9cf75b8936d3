#!/usr/bin/env bash
# Dependencies point one way: dialects, tools -> include/normgrad -> src/comm -> src/ops -> backends.
# Looks at every #include and every device #if; prints the lines that break a rule.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

broken=0

# refuse RULE PATTERN PATH...: no line of the sources below PATH may match PATTERN.
refuse() {
  local rule=$1 pattern=$2 found
  shift 2
  found=$(grep -rnP --include='*.[ch]' --include='*.[ch]pp' --include='*.cu' --include='*.cuh' -- "$pattern" "$@" || true)
  [[ -n $found ]] || return 0
  printf '%s:\n%s\n' "$rule" "$found" >&2
  broken=1
}

include='^\s*#\s*include\s*["<](.*/)?'

refuse "The native API includes nothing but itself and the standard library; normgrad/mpi.hpp MPI" \
  '^\s*#\s*include\s*(<(?!mpi\.h>).*[./]|"(?!normgrad/))' include/normgrad
refuse "Only what is built where there is an MPI includes it" "$include(mpi\.h|normgrad/mpi\.hpp)" \
  dialects tools src/ops src/cpu src/cuda src/reference
refuse "The communicators know the native API, and of the operators no more than helpers" \
  "$include((cpu|cuda|reference)/|ops/(?!float16\.hpp|return_if_error\.hpp))" src/comm
refuse "A dialect knows the native API only" "$include(ops/.*\.hpp|(cpu|cuda|comm|reference)/)" dialects
refuse "The tool knows the native API, the reference and the dialects only" \
  "$include(ops|cpu|cuda|comm)/" tools
refuse "Operators reach a backend through its table only" \
  "$include(cpu|cuda|comm|reference)/" src/ops
for backend in cpu cuda; do
  [[ -d src/$backend ]] || continue
  refuse "A backend knows neither another backend nor what stands above it" \
    "$include((?!$backend/)(cpu|cuda)/|reference/|infini|acl)" "src/$backend"
done

# No dialect includes a header of another.
for dialect in dialects/*/; do
  for header in $(find dialects -path "${dialect%/}" -prune -o -path '*/include/*.h' -print |
    sed 's|.*/include/||' | sort -u); do
    refuse "${dialect%/} includes another dialect" "^\s*#\s*include\s*[\"<]\Q$header\E" "$dialect"
  done
done

# What a device or an instruction set can do is asked in its backend folder only.
devices='CUDA|__NVCC__|__HIP|__CCE|HWY_|__AVX|__SSE|__ARM|__aarch64__|__x86_64__'
refuse "A device #if outside its backend folder" "^\s*#\s*(el)?if.*($devices)" \
  include src/ops src/reference dialects tools

exit $broken
