/* aclnnBatchNormElemtBackward: the second half of a BatchNorm whose batch is spread over devices.
 * sumDy and sumDyXmu are the totals of what aclnnBatchNormReduceBackward made, n is the sum of
 * counter, x_hat = (input - mean) * invstd:
 *
 *   gradInput = weight * invstd * (gradOut - sumDy / n - x_hat * invstd * sumDyXmu / n)
 */
#ifndef ACLNNOP_ACLNN_BATCH_NORM_ELEMT_BACKWARD_H
#define ACLNNOP_ACLNN_BATCH_NORM_ELEMT_BACKWARD_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* Types and dimensions as in aclnnBatchNormBackward; channels are dimension 1. counter says how
 * many elements per channel each device had, in any shape of 1 to 8 dimensions: INT32, FLOAT or
 * FLOAT16. weight may be null: ones. */
ACLNN_API aclnnStatus aclnnBatchNormElemtBackwardGetWorkspaceSize(
    const aclTensor *gradOut, const aclTensor *input, const aclTensor *mean,
    const aclTensor *invstd, const aclTensor *weight, const aclTensor *sumDy,
    const aclTensor *sumDyXmu, aclTensor *counter, aclTensor *gradInput, uint64_t *workspaceSize,
    aclOpExecutor **executor);

ACLNN_API aclnnStatus aclnnBatchNormElemtBackward(void *workspace, uint64_t workspaceSize,
                                                  aclOpExecutor *executor, aclrtStream stream);
}

#endif
