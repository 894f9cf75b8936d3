#!/usr/bin/env bash
# The graph mode headers compile alone, twice and in any order, as C++11 and C++20, without a
# warning; so does a program that includes them by their bare names and defines FAILED and SUCCESS
# afterwards.
#
#   tests/ge_headers_test.sh [CXX]
set -euo pipefail
include=$(cd "$(dirname "${BASH_SOURCE[0]}")/../dialects/ge/include" && pwd)
cxx=${1:-c++}
flags=(-Wall -Wextra -pedantic -Wshadow -Werror -fsyntax-only
  -I "$include/graph" -I "$include/ge" -I "$include")

headers=$(cd "$include" && find . -name '*.h' | sed 's|^\./||' | LC_ALL=C sort)
[[ $headers == *ge/ge_api.h* ]]

sources() {
  for header in $headers; do
    printf '#include "%s"\n#include "%s"\nint f();\n\0' "$header" "$header"
    # As programs name them: without the folder, which is on the path.
    printf '#include "%s"\nint f();\n\0' "${header#g*/}"
  done
  for header in $headers; do printf '#include "%s"\n' "$header"; done
  printf 'int f();\n\0'
  for header in $(printf '%s\n' $headers | tac); do printf '#include "%s"\n' "$header"; done
  printf 'int f();\n\0'
  for header in graph types tensor ge_error_codes ge_api_types ge_api array_ops ge_ir_build; do
    printf '#include "%s.h"\n' "$header"
  done
  printf '#include "../op_graph/layer_norm_grad_proto.h"\n'
  printf '#include "../op_graph/layer_norm_grad_v3_proto.h"\n#include "ops_proto_nn.h"\n'
  printf '#define FAILED -1\n#define SUCCESS 0\nusing namespace ge;\nint op = 0;\n'
  printf 'int f() { ge::op::LayerNormGrad a("a"); ge::op::LayerNormGradV3 b(std::string("b"));\n'
  printf 'return a.IsEmpty() || b.IsEmpty() ? FAILED : SUCCESS; }\n\0'
}

failed=0
for standard in 11 20; do
  while IFS= read -r -d '' source; do
    if ! "$cxx" -x c++ -std=c++$standard "${flags[@]}" - <<<"$source"; then
      printf 'failed with C++%s:\n%s\n' "$standard" "$source" >&2
      failed=1
    fi
  done < <(sources)
done
exit $failed
