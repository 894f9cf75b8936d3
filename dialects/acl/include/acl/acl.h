/* The whole API in one include. */
#ifndef ACL_ACL_H
#define ACL_ACL_H

#include "acl_mdl.h"
#include "acl_op.h"
#include "acl_rt.h"

#endif
