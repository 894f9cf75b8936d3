#!/usr/bin/env bash
# A rank is killed, or stopped, at a random moment of synchronized BatchNorm: the others return an
# error within the deadline and 2 s, outputs untouched, and the job ends.
#
#   tests/mpi_fault_test.sh MPIRUN PROGRAM REPETITIONS "WAY..." TRANSPORT...
#
# Each repetition is every way that PROGRAM knows to lose a rank, over the transports of Open MPI
# (vader is shared memory) in turns, with both ways to end.
set -uo pipefail

mpirun=$1
program=$2
repetitions=$3
read -ra ways <<<"$4"
transports=("${@:5}")
ranks=4
deadline=0.5
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# --enable-recovery: a rank that dies does not take the others down. mpirun answers 0 then, whatever
# happened, so the ranks' own words count. docs/distributed.md says why it is quiet, and why epoll.
failures=0
for ((i = 0; i < repetitions; ++i)); do
  for way in "${ways[@]}"; do
    transport=${transports[i % ${#transports[@]}]},self
    if ((i % 3 == 2)); then ending=abort; else ending=exit; fi
    delay=$((20 + RANDOM % 100)).$((RANDOM % 1000))
    start=$SECONDS
    timeout --kill-after=5 20 "$mpirun" --oversubscribe --bind-to none --enable-recovery --quiet \
      --mca opal_event_include epoll --mca btl "$transport" -n $ranks \
      "$program" $way $deadline $delay $ending >"$log" 2>&1
    status=$?
    right=$(grep -c 'as it should be' "$log")
    if ((right != ranks - 1 || status == 124 || status == 137)); then
      failures=$((failures + 1))
      echo "FAILED: $way after $delay ms over $transport, then $ending: $right of $((ranks - 1))" \
        "ranks answered as they should; mpirun: $status after $((SECONDS - start)) s" >&2
      cat "$log" >&2
    fi
  done
done
grep 'rank 0' "$log"
jobs=$((repetitions * ${#ways[@]}))
echo "$((jobs - failures)) of $jobs jobs as they should be"
((failures == 0))
