/* Allocators of the caller are not in the subset: operators take their workspace as an argument. */
#ifndef ACL_ACL_RT_ALLOCATOR_H
#define ACL_ACL_RT_ALLOCATOR_H

#include "acl_base.h"

#endif
