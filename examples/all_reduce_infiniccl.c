/* Data parallel training in small: every process has the gradient of its part of a batch, and all
 * need the sum. On CPUs, through infiniccl: mpirun -n 4 ./all_reduce_infiniccl */
#include <infiniccl.h>
#include <stdio.h>
#include <stdlib.h>

static void check(infiniStatus_t status) {
  if (status == INFINI_STATUS_SUCCESS) return;
  fprintf(stderr, "infiniccl answered status %d\n", (int)status);
  exit(1);
}

static int from_launcher(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

int main(void) {
  const int rank = from_launcher("OMPI_COMM_WORLD_RANK", 0);
  const int size = from_launcher("OMPI_COMM_WORLD_SIZE", 1);
  float gradient[4];
  for (int i = 0; i < 4; ++i) gradient[i] = (float)(rank + i);

  infinicclUniqueId_t id;
  infinicclComm_t comm;
  check(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  check(infinicclGetUniqueId(&id)); /* GPUs: rank 0 alone, and all others get a copy */
  check(infinicclCommInitRank(&comm, size, id, rank));
  check(infinicclAllReduce(gradient, gradient, 4, INFINI_DTYPE_F32, INFINICCL_SUM, comm, NULL));
  check(infinicclCommDestroy(comm));

  for (int i = 0; i < 4; ++i) {
    const float expected = (float)(size * (size - 1) / 2 + size * i);
    if (gradient[i] == expected) continue;
    fprintf(stderr, "rank %d: gradient[%d] is %g, not %g\n", rank, i, gradient[i], expected);
    return 1;
  }
  if (rank == 0)
    printf("%d processes agree on %g %g %g %g\n", size, gradient[0], gradient[1], gradient[2],
           gradient[3]);
  return 0;
}
