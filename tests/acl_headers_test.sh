#!/usr/bin/env bash
# The headers of libascendcl, libnnopbase and libopapi_nn compile alone, twice and in any order, as
# C++11 to C++20 without a warning; those of the runtime, acl/, also as C11.
#
#   tests/acl_headers_test.sh [CC [CXX]]
set -euo pipefail
include=$(dirname "${BASH_SOURCE[0]}")/../dialects/acl/include
cc=${1:-cc}
cxx=${2:-c++}
# With the folders of headers as programs name them: some include "aclnn_base.h" without its folder.
flags=(-Wall -Wextra -pedantic -Werror -fsyntax-only -I "$include")
for folder in aclnn aclnnop; do
  [[ ! -d $include/$folder ]] || flags+=(-I "$include/$folder")
done

cd "$include"
all=$(find . -name '*.h' | sed 's|^\./||' | LC_ALL=C sort)
runtime=$(grep '^acl/' <<<"$all")
[[ $runtime == *acl/acl.h* ]]
cd - >/dev/null

sources() {
  for header in $1; do
    printf '#include "%s"\n#include "%s"\nint f(void);\n\0' "$header" "$header"
  done
  for header in $1; do printf '#include "%s"\n' "$header"; done
  printf '#include <string.h>\nint f(void);\n\0'
  for header in $(tac <<<"$1"); do printf '#include "%s"\n' "$header"; done
  printf 'int f(void);\n\0'
}

failed=0
compile() {
  local headers=$1 source
  shift
  while IFS= read -r -d '' source; do
    if ! "$@" "${flags[@]}" - <<<"$source"; then
      printf 'failed: %s\n%s\n' "$*" "$source" >&2
      failed=1
    fi
  done < <(sources "$headers")
}
compile "$runtime" "$cc" -x c -std=c11
for standard in 11 14 17 20; do compile "$all" "$cxx" -x c++ -std=c++$standard; done
exit $failed
