/* aclnnRmsNorm over the last dimensions of x, those of gamma:
 *
 *   rstd = 1 / sqrt(mean(x^2) + epsilon)     mean over those dimensions
 *   y    = x * rstd * gamma
 *
 * rstdOut is what aclnnRmsNormGrad takes. A mean(x^2) + epsilon of exactly 0 gives rstd = 0.
 */
#ifndef ACLNNOP_ACLNN_RMS_NORM_H
#define ACLNNOP_ACLNN_RMS_NORM_H

#include "aclnn/aclnn_base.h"
#include "aclnn_util.h"

extern "C" {

/* x and yOut have one shape and one type: FLOAT, FLOAT16 or BF16; 1 to 8 dimensions. gamma has the
 * last dimensions of x and is FLOAT or of x's type. rstdOut is FLOAT with an element per row, in
 * any shape. Strided views everywhere. */
ACLNN_API aclnnStatus aclnnRmsNormGetWorkspaceSize(const aclTensor *x, const aclTensor *gamma,
                                                   double epsilon, const aclTensor *yOut,
                                                   const aclTensor *rstdOut,
                                                   uint64_t *workspaceSize,
                                                   aclOpExecutor **executor);

/* Overwrites the outputs. yOut may be exactly x, in the same layout; nothing else may overlap an
 * output. */
ACLNN_API aclnnStatus aclnnRmsNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                   aclrtStream stream);
}

#endif
