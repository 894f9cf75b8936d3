/* The gradient of LayerNorm through InfiniOP: x_hat and std are what the forward pass left. */
#include <infiniop.h>
#include <infinirt.h>
#include <stdio.h>
#include <stdlib.h>

static void check(infiniStatus_t status) {
  if (status == INFINI_STATUS_SUCCESS) return;
  fprintf(stderr, "InfiniOP answered status %d\n", (int)status);
  exit(1);
}

static void show(const char *name, const float *got, const float *expected, int count) {
  printf("%-6s", name);
  for (int i = 0; i < count; ++i) printf(" %6.2f", got[i]);
  printf("\n");
  for (int i = 0; i < count; ++i) {
    if (got[i] == expected[i]) continue;
    fprintf(stderr, "%s[%d] is %g, not %g\n", name, i, got[i], expected[i]);
    exit(1);
  }
}

int main(void) {
  /* One batch of two rows of four; all of it float32. */
  const float dy[] = {1, 2, 3, 4, 4, 3, 2, 1}, gamma[] = {1, 1, 2, 2};
  const float x_hat[] = {1, -1, 1, -1, 1, 1, -1, -1}, std[] = {2, 0.5f};
  float dx[8], dgamma[4], dbeta[4];

  infiniopHandle_t handle;
  check(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  check(infiniopCreateHandle(&handle));

  const size_t shape[] = {1, 2, 4}; /* its tail {4} is the shape of gamma, its head {1, 2} of std */
  infiniopTensorDescriptor_t rows, columns, statistics;
  check(infiniopCreateTensorDescriptor(&rows, 3, shape, NULL, INFINI_DTYPE_F32));
  check(infiniopCreateTensorDescriptor(&columns, 1, shape + 2, NULL, INFINI_DTYPE_F32));
  check(infiniopCreateTensorDescriptor(&statistics, 2, shape, NULL, INFINI_DTYPE_F32));

  infiniopLayerNormBackwardDescriptor_t layer_norm;
  check(infiniopCreateLayerNormBackwardDescriptor(handle, &layer_norm, rows, columns, columns, rows,
                                                  columns, rows, statistics));
  size_t workspace_size;
  void *workspace;
  check(infiniopGetLayerNormBackwardWorkspaceSize(layer_norm, &workspace_size));
  check(infinirtMalloc(&workspace, workspace_size));
  check(infiniopLayerNormBackward(layer_norm, workspace, workspace_size, dx, dgamma, dbeta, dy,
                                  gamma, x_hat, std, NULL));

  show("dx", dx, (const float[]){-1.25f, -1.5f, 1.25f, 1.5f, 1, -1, 2, -2}, 8);
  show("dgamma", dgamma, (const float[]){5, 1, 1, -5}, 4);
  show("dbeta", dbeta, (const float[]){5, 5, 5, 5}, 4);

  check(infinirtFree(workspace));
  check(infiniopDestroyLayerNormBackwardDescriptor(layer_norm));
  check(infiniopDestroyTensorDescriptor(rows));
  check(infiniopDestroyTensorDescriptor(columns));
  check(infiniopDestroyTensorDescriptor(statistics));
  check(infiniopDestroyHandle(handle));
  return 0;
}
