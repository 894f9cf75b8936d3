"""NormGrad: LayerNorm, RMSNorm and BatchNorm and their gradients, with the same bits every time.

The functions here take arrays of any framework that speaks DLPack. ``normgrad.torch`` and
``normgrad.nn`` are PyTorch's front ends, ``normgrad.jax`` is JAX's. ``python -m normgrad.env``
prints what a bug report needs.
"""

from __future__ import annotations

from . import _core
from .errors import ArgumentError, ArrayTypeError, DeviceError, Error, InternalError
from .operators import (
    batch_norm,
    batch_norm_backward,
    batch_norm_elementwise,
    batch_norm_elementwise_backward,
    batch_norm_reduce,
    batch_norm_reduce_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)

__version__: str = _core.version()

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "DeviceError",
    "Error",
    "InternalError",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_elementwise",
    "batch_norm_elementwise_backward",
    "batch_norm_reduce",
    "batch_norm_reduce_backward",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
]
