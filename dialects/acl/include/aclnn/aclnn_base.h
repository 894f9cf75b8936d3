/* The objects of aclnn/acl_meta.h, and the beginning and end of their use. */
#ifndef ACLNN_ACLNN_BASE_H
#define ACLNN_ACLNN_BASE_H

#include "aclnn/acl_meta.h"

#pragma GCC visibility push(default)
extern "C" {

/* Neither is required; both always succeed. The configuration is not read. */
aclnnStatus aclnnInit(const char *configPath);
aclnnStatus aclnnFinalize();
}
#pragma GCC visibility pop

#endif
