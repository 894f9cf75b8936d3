#!/usr/bin/env bash
# Installs a build, moves the installed tree elsewhere, and uses it as other projects would: a C
# program through InfiniOP and a C++ program through the native API, built with CMake and with
# pkg-config, run without LD_LIBRARY_PATH.
#
#   tests/install/run.sh BUILD_DIR
set -euo pipefail

build=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
examples=$here/../../examples
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
unset LD_LIBRARY_PATH INFINI_ROOT

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
"$temporary/consumer/c_consumer"
"$temporary/consumer/cpp_consumer"

echo "pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name normgrad.pc)")
export PKG_CONFIG_PATH
read -ra flags < <(pkg-config --cflags --libs normgrad-infiniop)
quietly cc -std=c11 "$examples/layer_norm_infiniop.c" -o "$temporary/c_consumer" "${flags[@]}"
read -ra flags < <(pkg-config --cflags --libs normgrad)
quietly c++ -std=c++20 "$examples/batch_norm_cpp.cpp" -o "$temporary/cpp_consumer" "${flags[@]}"
"$temporary/c_consumer"
"$temporary/cpp_consumer"

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

echo "The tool"
"$prefix/bin/normgrad" info --op layer_norm --shape 16384x4096 --dtype bf16 | tee "$temporary/log"
grep -q 'layer_norm *16384x4096 *bf16 *cpu:' "$temporary/log"
