/* aclnnAddLayerNormGrad: the gradients of y = x_hat * gamma + beta, x_hat = (h - mean) * rstd, of a
 * sum h = x1 + x2, over its last dimensions, those of gamma:
 *
 *   g      = dy * gamma
 *   dx     = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) + dsum     means over those dimensions
 *   dgamma = sum of dy * x_hat over the other dimensions
 *   dbeta  = sum of dy over the other dimensions
 *
 * h is rounded to its type. dsum is the gradient that reached h by other ways; dx is the gradient
 * of x1 and of x2.
 */
#ifndef ACLNNOP_ACLNN_ADD_LAYER_NORM_GRAD_H
#define ACLNNOP_ACLNN_ADD_LAYER_NORM_GRAD_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* dy, x1, x2, dsumOptional and dxOut have one shape and one type: FLOAT, FLOAT16 or BF16; 1 to 8
 * dimensions. gamma has the last dimensions of x1 and is FLOAT or of x1's type. rstd and mean are
 * FLOAT with an element per row, in any shape. dgammaOut and dbetaOut are FLOAT in the shape of
 * gamma. A null dsumOptional means zeros. Strided views everywhere. The sum lies in the workspace.
 */
ACLNN_API aclnnStatus aclnnAddLayerNormGradGetWorkspaceSize(
    const aclTensor *dy, const aclTensor *x1, const aclTensor *x2, const aclTensor *rstd,
    const aclTensor *mean, const aclTensor *gamma, const aclTensor *dsumOptional,
    const aclTensor *dxOut, const aclTensor *dgammaOut, const aclTensor *dbetaOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Overwrites the outputs. x1 and x2 are read before, so that outputs may lie there. dxOut may also
 * be exactly dy or dsumOptional, in the same layout; nothing else may overlap an output. */
ACLNN_API aclnnStatus aclnnAddLayerNormGrad(void *workspace, uint64_t workspaceSize,
                                            aclOpExecutor *executor, aclrtStream stream);
}

#endif
