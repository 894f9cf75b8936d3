/* An operator descriptor: one checked call, ready to compute. It is immutable: threads may share
 * it, each with its own workspace. Its memory begins with {int32_t device_type; int32_t
 * device_id;}. */
#ifndef INFINIOP_OPERATOR_DESCRIPTOR_H
#define INFINIOP_OPERATOR_DESCRIPTOR_H

#include "../infinicore.h"

struct InfiniopDescriptor;

/* NULL_POINTER: the second argument is null. BAD_PARAM: not a live operator descriptor. */
__INFINI_C __export infiniStatus_t
infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor *desc, infiniDevice_t *device_type);
__INFINI_C __export infiniStatus_t
infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor *desc, int *device_id);

#endif
