/* What compiled programs rely on: enum values, struct layout, the memory prefixes. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "infiniccl.h"
#include "infiniop.h"
#include "infiniop/normgrad.h"
#include "infinirt.h"

#define EQUAL(name, value) static_assert((name) == (value), #name)

EQUAL(INFINI_STATUS_SUCCESS, 0);
EQUAL(INFINI_STATUS_INTERNAL_ERROR, 1);
EQUAL(INFINI_STATUS_NOT_IMPLEMENTED, 2);
EQUAL(INFINI_STATUS_BAD_PARAM, 3);
EQUAL(INFINI_STATUS_NULL_POINTER, 4);
EQUAL(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, 5);
EQUAL(INFINI_STATUS_DEVICE_NOT_FOUND, 6);
EQUAL(INFINI_STATUS_DEVICE_NOT_INITIALIZED, 7);
EQUAL(INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED, 8);
EQUAL(INFINI_STATUS_BAD_TENSOR_DTYPE, 10);
EQUAL(INFINI_STATUS_BAD_TENSOR_SHAPE, 11);
EQUAL(INFINI_STATUS_BAD_TENSOR_STRIDES, 12);
EQUAL(INFINI_STATUS_INSUFFICIENT_WORKSPACE, 13);

EQUAL(INFINI_DEVICE_CPU, 0);
EQUAL(INFINI_DEVICE_NVIDIA, 1);
EQUAL(INFINI_DEVICE_CAMBRICON, 2);
EQUAL(INFINI_DEVICE_ASCEND, 3);
EQUAL(INFINI_DEVICE_METAX, 4);
EQUAL(INFINI_DEVICE_MOORE, 5);
EQUAL(INFINI_DEVICE_ILUVATAR, 6);
EQUAL(INFINI_DEVICE_KUNLUN, 7);
EQUAL(INFINI_DEVICE_HYGON, 8);
EQUAL(INFINI_DEVICE_SUGON, 8);
EQUAL(INFINI_DEVICE_QY, 9);
EQUAL(INFINI_DEVICE_ALI, 10);
EQUAL(INFINI_DEVICE_TYPE_COUNT, 11);

EQUAL(INFINI_DTYPE_INVALID, 0);
EQUAL(INFINI_DTYPE_BYTE, 1);
EQUAL(INFINI_DTYPE_BOOL, 2);
EQUAL(INFINI_DTYPE_I8, 3);
EQUAL(INFINI_DTYPE_I16, 4);
EQUAL(INFINI_DTYPE_I32, 5);
EQUAL(INFINI_DTYPE_I64, 6);
EQUAL(INFINI_DTYPE_U8, 7);
EQUAL(INFINI_DTYPE_U16, 8);
EQUAL(INFINI_DTYPE_U32, 9);
EQUAL(INFINI_DTYPE_U64, 10);
EQUAL(INFINI_DTYPE_F8, 11);
EQUAL(INFINI_DTYPE_F16, 12);
EQUAL(INFINI_DTYPE_F32, 13);
EQUAL(INFINI_DTYPE_F64, 14);
EQUAL(INFINI_DTYPE_C16, 15);
EQUAL(INFINI_DTYPE_C32, 16);
EQUAL(INFINI_DTYPE_C64, 17);
EQUAL(INFINI_DTYPE_C128, 18);
EQUAL(INFINI_DTYPE_BF16, 19);

EQUAL(INFINIRT_MEMCPY_H2H, 0);
EQUAL(INFINIRT_MEMCPY_H2D, 1);
EQUAL(INFINIRT_MEMCPY_D2H, 2);
EQUAL(INFINIRT_MEMCPY_D2D, 3);
EQUAL(INFINIRT_EVENT_COMPLETE, 0);
EQUAL(INFINIRT_EVENT_NOT_READY, 1);
EQUAL(INFINIRT_EVENT_DEFAULT, 0);
EQUAL(INFINIRT_EVENT_DISABLE_TIMING, 1);
EQUAL(INFINIRT_EVENT_BLOCKING_SYNC, 2);
EQUAL(INFINIRT_STREAM_CAPTURE_MODE_GLOBAL, 0);
EQUAL(INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1);
EQUAL(INFINIRT_STREAM_CAPTURE_MODE_RELAXED, 2);
EQUAL(INFINIRT_RESOURCE_FIELD_MEMORY_CAPACITY, 1 << 0);
EQUAL(INFINIRT_RESOURCE_FIELD_COMPUTE_UTILIZATION, 1 << 1);
EQUAL(INFINIRT_RESOURCE_FIELD_MEMORY_BANDWIDTH_UTILIZATION, 1 << 2);
EQUAL(INFINIRT_RESOURCE_FIELD_KERNEL_TIME_RATIO, 1 << 3);
EQUAL(INFINIRT_RESOURCE_FIELD_COMMUNICATION, 1 << 4);

EQUAL(INFINICCL_SUM, 0);
EQUAL(INFINICCL_PROD, 1);
EQUAL(INFINICCL_MAX, 2);
EQUAL(INFINICCL_MIN, 3);
EQUAL(INFINICCL_AVG, 4);

EQUAL(sizeof(infinicclReduceOp_t), 4);
EQUAL(sizeof(infinicclUniqueId_t), 128);
EQUAL(sizeof(infiniStatus_t), 4);
EQUAL(sizeof(infiniDevice_t), 4);
EQUAL(sizeof(infiniDtype_t), 4);
EQUAL(sizeof(infinirtDeviceResourceSnapshot_t), 80);
EQUAL(offsetof(infinirtDeviceResourceSnapshot_t, device_id), 4);
EQUAL(offsetof(infinirtDeviceResourceSnapshot_t, valid_fields), 8);
EQUAL(offsetof(infinirtDeviceResourceSnapshot_t, free_bytes), 24);
EQUAL(offsetof(infinirtDeviceResourceSnapshot_t, compute_utilization), 56);
EQUAL(offsetof(infinirtDeviceResourceSnapshot_t, communication_bytes), 72);

static int failures = 0;

static void expect(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "failed: %s; last error: %s\n", what, normgradGetLastError());
    ++failures;
  }
}
#define EXPECT(condition) expect(condition, #condition)

/* Objects begin with two 32-bit integers: device type and device id. */
static int is_cpu_0(const void *object) {
  static const int32_t cpu_0[2] = {INFINI_DEVICE_CPU, 0};
  return memcmp(object, cpu_0, sizeof(cpu_0)) == 0;
}

int main(void) {
  infiniopHandle_t handle = NULL;
  infiniopTensorDescriptor_t data = NULL, vector = NULL;
  infiniopRMSNormDescriptor_t layer = NULL;
  infiniopRMSNormBackwardDescriptor_t desc = NULL;
  const size_t shape[] = {1, 2, 2};
  const float dy[] = {1, 2, 3, 4}, x[] = {1, 1, 1, 1}, w[] = {1, 1};
  float y[4], dx[4], dw[2];
  char workspace[4096];
  size_t size = 0;
  EXPECT(infiniopCreateHandle(&handle) == INFINI_STATUS_SUCCESS);
  EXPECT(is_cpu_0(handle));
  EXPECT(infiniopCreateTensorDescriptor(&data, 3, shape, NULL, INFINI_DTYPE_F32) == 0);
  EXPECT(infiniopCreateTensorDescriptor(&vector, 1, shape + 2, NULL, INFINI_DTYPE_F32) == 0);
  EXPECT(infiniopCreateRMSNormDescriptor(handle, &layer, data, data, vector, 3) ==
         INFINI_STATUS_SUCCESS);
  EXPECT(is_cpu_0(layer));
  EXPECT(infiniopGetRMSNormWorkspaceSize(layer, &size) == INFINI_STATUS_SUCCESS);
  EXPECT(size <= sizeof(workspace));
  EXPECT(infiniopRMSNorm(layer, workspace, size, y, x, w, NULL) == INFINI_STATUS_SUCCESS);
  EXPECT(y[0] == 0.5f && y[1] == 0.5f && y[2] == 0.5f && y[3] == 0.5f);
  EXPECT(infiniopDestroyRMSNormDescriptor(layer) == INFINI_STATUS_SUCCESS);
  EXPECT(infiniopCreateRMSNormBackwardDescriptor(handle, &desc, data, vector, data, data, vector) ==
         INFINI_STATUS_SUCCESS);
  EXPECT(is_cpu_0(desc));
  EXPECT(infiniopDestroyTensorDescriptor(data) == INFINI_STATUS_SUCCESS);
  EXPECT(infiniopDestroyTensorDescriptor(vector) == INFINI_STATUS_SUCCESS);
  EXPECT(infiniopGetRMSNormBackwardWorkspaceSize(desc, &size) == INFINI_STATUS_SUCCESS);
  EXPECT(size <= sizeof(workspace));
  EXPECT(infiniopRMSNormBackward(desc, workspace, size, dx, dw, dy, x, w, NULL) ==
         INFINI_STATUS_SUCCESS);
  EXPECT(dx[0] == -0.5f && dx[1] == 0.5f && dx[2] == -0.5f && dx[3] == 0.5f);
  EXPECT(dw[0] == 4 && dw[1] == 6);
  EXPECT(infiniopDestroyRMSNormBackwardDescriptor(desc) == INFINI_STATUS_SUCCESS);
  EXPECT(infiniopDestroyHandle(handle) == INFINI_STATUS_SUCCESS);
  return failures;
}
