/* aclnnBatchNormReduceBackward: the first half of a BatchNorm whose batch is spread over devices.
 * Each device makes its sums, per channel; the program adds sumDy and sumDyXmu up over the devices
 * and hands the totals to aclnnBatchNormElemtBackward.
 *
 *   sumDy      = sum of gradOut
 *   sumDyXmu   = sum of gradOut * (input - mean)
 *   gradWeight = sumDyXmu * invstd,  gradBias = sumDy       of this device alone
 */
#ifndef ACLNNOP_ACLNN_BATCH_NORM_BACKWARD_REDUCE_H
#define ACLNNOP_ACLNN_BATCH_NORM_BACKWARD_REDUCE_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* Types and dimensions as in aclnnBatchNormBackward; channels are dimension 1. inputG asks for
 * sumDy and sumDyXmu, weightG for gradWeight, biasG for gradBias; outputs that are not asked for
 * may be null. mean and invstd are those of the whole batch. weight is checked and not used; it may
 * be null. */
ACLNN_API aclnnStatus aclnnBatchNormReduceBackwardGetWorkspaceSize(
    const aclTensor *gradOut, const aclTensor *input, const aclTensor *mean,
    const aclTensor *invstd, const aclTensor *weight, const bool inputG, const bool weightG,
    const bool biasG, aclTensor *sumDy, aclTensor *sumDyXmu, aclTensor *gradWeight,
    aclTensor *gradBias, uint64_t *workspaceSize, aclOpExecutor **executor);

ACLNN_API aclnnStatus aclnnBatchNormReduceBackward(void *workspace, uint64_t workspaceSize,
                                                   aclOpExecutor *executor, aclrtStream stream);
}

#endif
