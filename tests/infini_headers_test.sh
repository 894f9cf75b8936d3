#!/usr/bin/env bash
# The InfiniCore headers compile alone, twice and in any order, as C11 and as C++11 to C++20,
# without a warning; also after a header that defines __C.
#
#   tests/infini_headers_test.sh [CC [CXX]]
set -euo pipefail
include=$(dirname "${BASH_SOURCE[0]}")/../dialects/infini/include
cc=${1:-cc}
cxx=${2:-c++}
flags=(-Wall -Wextra -pedantic -Werror -fsyntax-only -I "$include")

cd "$include"
headers=$(find . -name '*.h' | sed 's|^\./||' | LC_ALL=C sort)
[[ $headers == *infiniop.h* ]]
cd - >/dev/null

sources() {
  for header in $headers; do
    printf '#include "%s"\n#include "%s"\nint f(void);\n' "$header" "$header"
    printf '\0'
  done
  for header in $headers; do printf '#include "%s"\n' "$header"; done
  printf '#include <string.h>\nint f(void);\n\0'
  printf '#ifdef __cplusplus\n#define __C extern "C"\n#else\n#define __C\n#endif\n'
  printf '#include "infiniop.h"\n#include "infinirt.h"\n__C int f(void);\n__INFINI_C int g(void);\n\0'
}

failed=0
compile() {
  local source
  while IFS= read -r -d '' source; do
    if ! "$@" "${flags[@]}" - <<<"$source"; then
      printf 'failed: %s\n%s\n' "$*" "$source" >&2
      failed=1
    fi
  done < <(sources)
}
compile "$cc" -x c -std=c11
for standard in 11 14 17 20; do compile "$cxx" -x c++ -std=c++$standard; done
exit $failed
