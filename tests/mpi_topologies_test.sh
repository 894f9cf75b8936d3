#!/usr/bin/env bash
# Other algorithms and networks of MPI leave every bit as it is: the
# outputs of all ranks, hashed by sync_batch_norm_test.
#
#   tests/mpi_topologies_test.sh MPIRUN SYNC_BATCH_NORM_TEST
set -euo pipefail

# digest RANKS [ARGUMENTS OF MPIRUN...]
mpirun=$1
program=$2
digest() {
  local ranks=$1
  shift
  "$mpirun" --oversubscribe --bind-to none -n "$ranks" "$@" "$program" --gtest_filter='*Digest' |
    grep -ao 'digest [0-9a-f]*'
}

failed=0
for ranks in 3 8; do
  expected=$(digest $ranks)
  echo "$ranks ranks: $expected"
  while read -ra arguments; do
    got=$(digest $ranks "${arguments[@]}")
    [[ $got == "$expected" ]] || { echo "FAILED: ${arguments[*]}: $got" >&2; failed=1; }
  done <<END
--mca btl tcp,self
--mca coll_libnbc_iallgather_algorithm 1
--mca coll_libnbc_iallgather_algorithm 2
--mca btl_vader_single_copy_mechanism none --mca btl_vader_eager_limit 256
END
done
exit $failed
