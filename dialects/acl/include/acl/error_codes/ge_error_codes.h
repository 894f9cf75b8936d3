/* The codes of the graph engine. No function of the subset answers one of them. */
#ifndef ACL_ERROR_CODES_GE_ERROR_CODES_H
#define ACL_ERROR_CODES_GE_ERROR_CODES_H

#include <stdint.h>

#endif
