/* A handle stands for one device. It may be shared by threads and destroyed before the descriptors
 * that were made with it. Its memory begins with {int32_t device; int32_t device_id;}. */
#ifndef INFINIOP_HANDLE_H
#define INFINIOP_HANDLE_H

#include "../infinicore.h"

struct InfiniopHandle;
typedef struct InfiniopHandle *infiniopHandle_t;

/* For the calling thread's current device (infinirtSetDevice).
 * NULL_POINTER: handle_ptr is null. DEVICE_TYPE_NOT_SUPPORTED: the device is not in this build. */
__INFINI_C __export infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr);

/* NULL: success. BAD_PARAM: not a live handle. */
__INFINI_C __export infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

#endif
