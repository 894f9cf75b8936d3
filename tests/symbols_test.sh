#!/usr/bin/env bash
# Compares the symbols that a shared library exports with the frozen list.
#
#   tests/symbols_test.sh LIB LIST            fails when they differ
#   tests/symbols_test.sh --update LIB LIST   rewrites the library's lines of LIST
#
# LIST has lines `library symbol`, sorted, for one library or several: `libnormgrad.so _ZN8normgrad…`.
set -euo pipefail
export LC_ALL=C

update=no
if [[ ${1:-} == --update ]]; then
  update=yes
  shift
fi
lib=$1
list=$2
name=$(basename "$lib" | sed 's/\.so\..*/.so/')

# The third column of nm is the symbol; version nodes (type A) and @VERSION suffixes are not part of it.
exported=$(nm -D --defined-only "$lib" | awk -v name="$name" '$2 != "A" { sub(/@.*/, "", $3); print name, $3 }' |
  sort -u)
if [[ $update == yes ]]; then
  others=$(grep -v "^$name " "$list" 2>/dev/null || true)
  printf '%s\n' "$others" "$exported" | sed '/^$/d' | sort -u >"$list"
elif ! diff <(grep "^$name " "$list") <(printf '%s\n' "$exported"); then
  echo "$name does not export what $list says (< the list, > the library)." >&2
  echo "If that is meant: tests/symbols_test.sh --update $lib $list" >&2
  exit 1
fi
