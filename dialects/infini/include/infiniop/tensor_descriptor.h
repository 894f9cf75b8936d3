/* A tensor descriptor: element type, shape and strides of a tensor, without its data. */
#ifndef INFINIOP_TENSOR_DESCRIPTOR_H
#define INFINIOP_TENSOR_DESCRIPTOR_H

#include "../infinicore.h"

struct InfiniopTensorDescriptor;
typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;

/* Strides are in elements, NULL: contiguous, the last dimension fastest. ndim 0 is a scalar. The
 * arrays are copied; operators copy what they need, so the descriptor may be destroyed as soon as
 * the operator descriptor exists. NULL_POINTER: desc_ptr is null, or shape with ndim > 0. */
__INFINI_C __export infiniStatus_t
infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr, size_t ndim,
                               const size_t *shape, const ptrdiff_t *strides, infiniDtype_t dtype);

/* NULL: success. BAD_PARAM: not a live tensor descriptor. */
__INFINI_C __export infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);

#endif
