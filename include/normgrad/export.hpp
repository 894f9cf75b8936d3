// NORMGRAD_EXPORT marks the symbols that the shared library shows; everything else is hidden.
#pragma once

#define NORMGRAD_EXPORT __attribute__((visibility("default")))
