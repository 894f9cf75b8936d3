/* aclnnRmsNormGrad: the gradients of y = x_hat * gamma, x_hat = x * rstd, over the last dimensions
 * of x, those of gamma:
 *
 *   g      = dy * gamma
 *   dx     = rstd * (g - x_hat * mean(g * x_hat))     mean over those dimensions
 *   dgamma = sum of dy * x_hat over the other dimensions
 */
#ifndef ACLNNOP_ACLNN_RMS_NORM_GRAD_H
#define ACLNNOP_ACLNN_RMS_NORM_GRAD_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* dy, x and dxOut have one shape and one type: FLOAT, FLOAT16 or BF16; 1 to 8 dimensions. gamma has
 * the last dimensions of x and is FLOAT or of x's type. rstd is FLOAT with an element per row, in
 * any shape. dgammaOut is FLOAT in the shape of gamma. Strided views everywhere. */
ACLNN_API aclnnStatus aclnnRmsNormGradGetWorkspaceSize(
    const aclTensor *dy, const aclTensor *x, const aclTensor *rstd, const aclTensor *gamma,
    const aclTensor *dxOut, const aclTensor *dgammaOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

ACLNN_API aclnnStatus aclnnRmsNormGrad(void *workspace, uint64_t workspaceSize,
                                       aclOpExecutor *executor, aclrtStream stream);
}

#endif
