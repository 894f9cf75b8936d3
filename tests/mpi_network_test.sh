#!/usr/bin/env bash
# Two hosts: network namespaces with names of their own, joined by veth pairs through a link in user
# space (slow_link.py). An MPI job with one rank on each runs the example over the link as it is, then
# with 50 ms of delay and 1 % loss each way: the trained parameters have the bits of one machine.
#
#   tests/mpi_network_test.sh MPIRUN EXAMPLE
#
# Needs root; 77, by which ctest knows a skip, otherwise.
set -euo pipefail

mpirun=$1
example=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
left=ngl$$ middle=ngm$$ right=ngr$$
temporary=$(mktemp -d)
link=
cleanup() {
  [[ -z $link ]] || kill "$link" 2>/dev/null || true
  for space in $left $middle $right; do ip netns del $space 2>/dev/null || true; done
  rm -rf "$temporary"
}
trap cleanup EXIT

if ! { ip netns add $left && ip netns add $middle && ip netns add $right; } 2>"$temporary/log"; then
  echo "SKIPPED: no network namespaces here: $(head -n 1 "$temporary/log")"
  exit 77
fi
# join SPACE INTERFACE ADDRESS: a veth pair from SPACE to the middle.
join() {
  ip -n "$1" link set lo up
  ip -n "$1" link add eth0 type veth peer name "$2" netns $middle
  ip -n "$1" address add "$3/24" dev eth0
  ip -n "$1" link set eth0 up
  ip -n $middle link set "$2" up
  ip netns exec "$1" "$here/slow_link.py" --plain eth0
  ip netns exec $middle "$here/slow_link.py" --plain "$2"
}
join $left to_left 10.77.0.1
join $right to_right 10.77.0.2

# How mpirun reaches the other host, in place of ssh: AGENT HOST COMMAND...
cat >"$temporary/agent" <<END
#!/bin/sh
shift
exec ip netns exec $right unshare --uts sh -c 'hostname right; exec sh -c "\$0"' "\$*"
END
chmod +x "$temporary/agent"

# over_link DELAY LOSS STEPS: the parameters that the example ends with.
over_link() {
  ip netns exec $middle "$here/slow_link.py" to_left to_right "$1" "$2" >"$temporary/link" &
  link=$!
  until grep -q ready "$temporary/link"; do sleep 0.1; done
  ip netns exec $left unshare --uts sh -c 'hostname left; exec "$@"' sh \
    timeout 300 "$mpirun" -n 2 --host 10.77.0.1,10.77.0.2 --bind-to none \
    --mca plm_rsh_agent "$temporary/agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
    "$example" "$3" >"$temporary/output" 2>&1 || { cat "$temporary/output" >&2; return 1; }
  kill $link
  wait $link || true
  link=
  grep carried "$temporary/link" >&2
  if [[ $2 != 0 ]] && grep -q 'dropped 0$' "$temporary/link"; then
    echo "the link lost nothing" >&2
    return 1
  fi
  parameters "$temporary/output"
}
parameters() { grep -o 'parameters [0-9a-f]*' "$1"; }

steps=20
"$mpirun" --oversubscribe --bind-to none -n 2 "$example" $steps >"$temporary/output"
expected=$(parameters "$temporary/output")
echo "one machine: $expected"
for way in "0 0" "0.05 0.01"; do
  start=$SECONDS
  # shellcheck disable=SC2086  # two words
  got=$(over_link $way $steps)
  echo "two hosts, delay and loss $way: $got ($((SECONDS - start)) s)"
  [[ $got == "$expected" ]]
done
