/* aclnnLayerNorm over the last dimensions of input, which normalizedShape lists:
 *
 *   mean = mean(input),  rstd = 1 / sqrt(mean((input - mean)^2) + eps)     over those dimensions
 *   out  = (input - mean) * rstd * weight + bias
 *
 * meanOut and rstdOut are what aclnnLayerNormBackward takes. A variance + eps of exactly 0 gives
 * rstd = 0.
 */
#ifndef ACLNNOP_ACLNN_LAYER_NORM_H
#define ACLNNOP_ACLNN_LAYER_NORM_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* FLOAT, FLOAT16 and BF16; strided views everywhere; 1 to 8 dimensions.
 *   input, out                         one shape, one type
 *   weightOptional, biasOptional       shape normalizedShape, FLOAT or as input; null means ones
 *                                      and zeros
 *   meanOutOptional, rstdOutOptional   an element per row in any shape, any of the types; null
 *                                      means not wanted
 * 161001: a null pointer; 161002: an argument that does not fit; 361001, 561101, 561103: no device,
 * no memory, a dead object. A refused call changes nothing. */
ACLNN_API aclnnStatus aclnnLayerNormGetWorkspaceSize(
    const aclTensor *input, const aclIntArray *normalizedShape, const aclTensor *weightOptional,
    const aclTensor *biasOptional, double eps, aclTensor *out, aclTensor *meanOutOptional,
    aclTensor *rstdOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Overwrites the outputs. out may be exactly input, in the same layout; nothing else may overlap an
 * output. */
ACLNN_API aclnnStatus aclnnLayerNorm(void *workspace, uint64_t workspaceSize,
                                     aclOpExecutor *executor, aclrtStream stream);
}

#endif
