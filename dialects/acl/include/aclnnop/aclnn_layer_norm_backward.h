/* aclnnLayerNormBackward: the gradients of y = x_hat * weight + bias, x_hat = (input - mean) *
 * rstd, over the last dimensions of input, which normalizedShape lists:
 *
 *   g          = gradOut * weight
 *   gradInput  = rstd * (g - mean(g) - x_hat * mean(g * x_hat))     means over those dimensions
 *   gradWeight = sum of gradOut * x_hat over the other dimensions
 *   gradBias   = sum of gradOut over the other dimensions
 */
#ifndef ACLNNOP_ACLNN_LAYER_NORM_BACKWARD_H
#define ACLNNOP_ACLNN_LAYER_NORM_BACKWARD_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* FLOAT, FLOAT16 and BF16; strided views everywhere; 1 to 8 dimensions.
 *   gradOut, input                  one shape, one type
 *   mean, rstd                      one shape, an element per row; any of the types
 *   weightOptional, biasOptional    shape normalizedShape or null; weight FLOAT or as input, null
 *                                   means ones. bias is checked and not used
 *   outputMask                      three entries: which of the outputs are wanted
 *   gradInputOut                    shape of input; any of the types
 *   gradWeightOut, gradBiasOut      an element per column in any shape; any of the types
 * Outputs that are not wanted may be null. 161001: a null pointer; 161002: an argument that does
 * not fit; 361001, 561101, 561103: no device, no memory, a dead object. A refused call changes
 * nothing. */
ACLNN_API aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(
    const aclTensor *gradOut, const aclTensor *input, const aclIntArray *normalizedShape,
    const aclTensor *mean, const aclTensor *rstd, const aclTensor *weightOptional,
    const aclTensor *biasOptional, const aclBoolArray *outputMask, aclTensor *gradInputOut,
    aclTensor *gradWeightOut, aclTensor *gradBiasOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Overwrites the outputs. gradInputOut may be exactly gradOut or input, in the same layout; nothing
 * else may overlap an output. */
ACLNN_API aclnnStatus aclnnLayerNormBackward(void *workspace, uint64_t workspaceSize,
                                             aclOpExecutor *executor, aclrtStream stream);
}

#endif
