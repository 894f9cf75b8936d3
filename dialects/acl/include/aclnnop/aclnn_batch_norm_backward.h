/* aclnnBatchNormBackward: the gradients of y = x_hat * weight + bias per channel, with
 * x_hat = (input - mean) * r. In training mean = saveMean and r = saveInvstd are the batch's own:
 *
 *   gradInput  = weight * r * (gradOut - mean(gradOut) - x_hat * mean(gradOut * x_hat))
 *
 * otherwise mean = runningMean and r = 1 / sqrt(runningVar + eps) are constants:
 *
 *   gradInput  = weight * r * gradOut
 *
 * and in both gradWeight = sum of gradOut * x_hat, gradBias = sum of gradOut, over the channel.
 */
#ifndef ACLNNOP_ACLNN_BATCH_NORM_BACKWARD_H
#define ACLNNOP_ACLNN_BATCH_NORM_BACKWARD_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* FLOAT, FLOAT16 and BF16; strided views everywhere; 2 to 8 dimensions. Channels are dimension 1,
 * or the last one where the format of input is NHWC or NDHWC; there must be at least one.
 *   gradOut, input                  one shape, one type
 *   weight                          (channels), null means ones
 *   the two statistics in use       (channels); the other two may be null
 *   outputMask                      three entries: which of the outputs are wanted
 *   gradInput                       shape of input
 *   gradWeight, gradBias            (channels)
 * Outputs that are not wanted may be null. */
ACLNN_API aclnnStatus aclnnBatchNormBackwardGetWorkspaceSize(
    const aclTensor *gradOut, const aclTensor *input, const aclTensor *weight,
    const aclTensor *runningMean, const aclTensor *runningVar, const aclTensor *saveMean,
    const aclTensor *saveInvstd, bool training, double eps, const aclBoolArray *outputMask,
    aclTensor *gradInput, aclTensor *gradWeight, aclTensor *gradBias, uint64_t *workspaceSize,
    aclOpExecutor **executor);

ACLNN_API aclnnStatus aclnnBatchNormBackward(void *workspace, uint64_t workspaceSize,
                                             aclOpExecutor *executor, aclrtStream stream);
}

#endif
