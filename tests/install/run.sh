#!/usr/bin/env bash
# Installs a build, moves the installed tree elsewhere, and uses it as other projects would: a
# program for each API, built with CMake and with pkg-config, run without LD_LIBRARY_PATH.
#
#   tests/install/run.sh BUILD_DIR
set -euo pipefail

build=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
examples=$here/../../examples
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
unset LD_LIBRARY_PATH INFINI_ROOT ASCEND_HOME_PATH

# quietly COMMAND...: its output only when it fails.
quietly() {
  "$@" >"$temporary/log" 2>&1 || { cat "$temporary/log" >&2; echo "FAILED: $*" >&2; return 1; }
}

# Moved, because packages are.
quietly cmake --install "$build" --prefix "$temporary/first"
prefix=$temporary/second/prefix
mkdir "$temporary/second"
mv "$temporary/first" "$prefix"
if grep -rIl -e "$temporary/first" -e "$build" "$prefix"; then
  echo "FAILED: the files above name the build or the first prefix" >&2
  exit 1
fi

echo "CMake"
quietly cmake -S "$here/consumer" -B "$temporary/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DEXAMPLES="$examples"
quietly cmake --build "$temporary/consumer"
for consumer in c cpp aclnn graph; do "$temporary/consumer/${consumer}_consumer"; done

echo "pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name normgrad.pc)")
export PKG_CONFIG_PATH
# consume PACKAGE SOURCE COMPILER...: builds and runs an example.
consume() {
  local package=$1 source=$2 flags
  shift 2
  read -ra flags < <(pkg-config --cflags --libs "$package")
  quietly "$@" "$examples/$source" -o "$temporary/consumer_of_$package" "${flags[@]}"
  "$temporary/consumer_of_$package"
}
consume normgrad-infiniop layer_norm_infiniop.c cc -std=c11
consume normgrad batch_norm_cpp.cpp c++ -std=c++20
consume normgrad-aclnn layer_norm_aclnn.cpp c++ -std=c++11
consume normgrad-ge layer_norm_graph.cpp c++ -std=c++11

mpi_library=$(find "$prefix" -name libnormgrad_mpi.so)
if [[ -n $mpi_library ]]; then
  echo "MPI"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
  read -ra flags < <(pkg-config --cflags --libs normgrad-mpi)
  quietly mpicxx -std=c++20 "$examples/sync_batch_norm_mpi.cpp" -o "$temporary/consumer_of_mpi" "${flags[@]}"
  for consumer in consumer/mpi_consumer consumer_of_mpi; do
    mpirun --oversubscribe --bind-to none -n 2 "$temporary/$consumer" 5
  done
  # Not linked with MPI: libinfiniccl finds libnormgrad_mpi in the installed tree.
  consume normgrad-infiniccl all_reduce_infiniccl.c cc -std=c11
  for consumer in consumer/ccl_consumer consumer_of_normgrad-infiniccl; do
    mpirun --oversubscribe --bind-to none -n 2 "$temporary/$consumer"
  done
fi

echo "The README's program"
sed -n '/^```c$/,/^```$/p' "$here/../../README.md" | sed '1d;$d' >"$temporary/readme.c"
read -ra flags < <(pkg-config --cflags --libs normgrad-infiniop)
quietly cc -Wall -Wextra -Werror "$temporary/readme.c" -o "$temporary/readme" "${flags[@]}"
"$temporary/readme" | tee "$temporary/log"
grep -qx 'status 0, dx = 0.30429 -0.121716 -0.182574 0.121716' "$temporary/log"

echo "INFINI_ROOT"
root=$prefix/dialects/infini
quietly cc -std=c11 "$examples/layer_norm_infiniop.c" -o "$temporary/root_consumer" \
  -I"$root/include" -L"$root/lib" -linfiniop -linfinirt
LD_LIBRARY_PATH=$root/lib "$temporary/root_consumer"

echo "ASCEND_HOME_PATH"
root=$prefix/dialects/ascend
quietly c++ -std=c++11 "$examples/layer_norm_aclnn.cpp" -o "$temporary/root_consumer" \
  -I"$root/include" -I"$root/include/aclnn" -L"$root/lib64" -lascendcl -lnnopbase -lopapi_nn
LD_LIBRARY_PATH=$root/lib64 "$temporary/root_consumer" | tee "$temporary/log"
grep -q -- '-877.5.*-1747.5' "$temporary/log"
# Relative includes of a prototype, as samples have them, are found beside the graph headers.
printf '#include "%s/op_graph/layer_norm_grad_proto.h"\n' .. ../.. |
  quietly c++ -std=c++11 -x c++ -fsyntax-only -I"$root/include/graph" -I"$root/include/ge" \
    -I"$root/include" -

echo "The tool"
"$prefix/bin/normgrad" info --op layer_norm --shape 16384x4096 --dtype bf16 | tee "$temporary/log"
grep -q 'layer_norm *16384x4096 *bf16 *cpu:' "$temporary/log"
