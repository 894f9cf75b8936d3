/* What NormGrad adds to infiniccl. */
#ifndef INFINICCL_NORMGRAD_H
#define INFINICCL_NORMGRAD_H

#include "infiniccl.h"

/* Why the last call of this thread that failed did so: which argument, what was expected, what
 * came.
 * "" if none has failed. Valid until the thread's next failure. */
__INFINI_C __export const char *normgradGetLastError(void);

/* infinirtStreamSynchronize for a stream with collectives on it: returns when all work on the
 * stream is done, and INFINI_STATUS_INTERNAL_ERROR when a rank failed or the deadline has passed.
 * On the CPU there is nothing to wait for. */
__INFINI_C __export infiniStatus_t normgradCommWait(infinicclComm_t comm, infinirtStream_t stream);

#endif
