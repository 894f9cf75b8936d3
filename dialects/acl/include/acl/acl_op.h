/* Operators by name are not in the subset; the operators themselves are in aclnnop/. */
#ifndef ACL_ACL_OP_H
#define ACL_ACL_OP_H

#include "acl_base.h"

#endif
