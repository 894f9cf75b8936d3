"""The library's calls on tensors: results are allocated, then ``_core`` writes them."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch._prims_common import make_contiguous_strides_for

from .. import _core, _frameworks

try:  # how programs that torch.compile wrote allocate
    from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda
except ImportError:
    _empty_strided_cpu = _empty_strided_cuda = None

Optionals = tuple[Optional[Tensor], ...]


def _bind(function: Callable[..., None]) -> Callable[..., None]:
    """Before 2.10 tensors do not let ``_core`` look into them, and are described instead."""
    framework = _frameworks.Torch()
    if not framework.described:
        return function

    def described(**arguments: Any) -> None:
        x = arguments["x"]
        views = {
            name: framework.describe(value) if isinstance(value, Tensor) else value
            for name, value in arguments.items()
        }
        views["allocate"] = framework.allocate(x)
        function(**views, stream=framework.stream(x))

    return described


_layer_norm = _bind(_core.layer_norm)
_rms_norm = _bind(_core.rms_norm)
_batch_norm = _bind(_core.batch_norm)
_layer_norm_backward = _bind(_core.layer_norm_backward)
_rms_norm_backward = _bind(_core.rms_norm_backward)
_batch_norm_backward = _bind(_core.batch_norm_backward)


def _allocator(x: Tensor) -> Optional[Callable[[int], Tensor]]:
    """The caching allocator's memory belongs to the current stream: when the tensor goes, it is
    given out again in that stream's order."""
    if x.is_cpu:
        return None
    device = x.device
    return lambda size: torch.empty(size, dtype=torch.uint8, device=device)


def _empty_on(x: Tensor) -> Callable[..., Tensor]:
    """Makes a tensor of a shape, strides and a type where x is, in half of the time of
    ``torch.empty_like``: 1.1 instead of 2 us on a GPU, three times in a call."""
    if type(x) is Tensor and _empty_strided_cpu is not None:
        if x.is_cpu:
            return _empty_strided_cpu
        if x.is_cuda and x.get_device() == torch._C._cuda_getDevice():
            return _empty_strided_cuda
    device = x.device
    return lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype, device=device
    )


def _contiguous(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides."""
    shape = tuple(x.shape)
    return shape, x.stride() if x.is_contiguous() else make_contiguous_strides_for(shape)


def _rows(shape: tuple[int, ...], axes: int) -> tuple[int]:
    """One axis for all rows."""
    return (math.prod(shape[:-axes]),)


def layer_norm_outputs(
    x: Tensor, residual: Optional[Tensor], axes: int, save: bool
) -> tuple[Tensor, Any, Any, Any]:
    empty = _empty_on(x)
    shape, strides = _contiguous(x)
    rows = _rows(shape, axes)
    return (
        empty(shape, strides, x.dtype),
        None if residual is None else empty(shape, strides, x.dtype),
        empty(rows, (1,), torch.float32) if save else None,
        empty(rows, (1,), torch.float32) if save else None,
    )


def layer_norm(
    x: Tensor,
    residual: Optional[Tensor],
    gamma: Optional[Tensor],
    beta: Optional[Tensor],
    axes: int,
    eps: float,
    gamma_offset: float,
    save: bool,
) -> tuple[Tensor, Any, Any, Any]:
    y, h, mean, rstd = layer_norm_outputs(x, residual, axes, save)
    _layer_norm(
        x=x,
        residual=residual,
        gamma=gamma,
        beta=beta,
        y=y,
        h=h,
        mean=mean,
        spread=rstd,
        eps=eps,
        gamma_offset=gamma_offset,
        normalized_axes=axes,
        allocate=_allocator(x),
    )
    return y, h, mean, rstd


def rms_norm_outputs(
    x: Tensor, residual: Optional[Tensor], axes: int, save: bool
) -> tuple[Tensor, Any, Any]:
    empty = _empty_on(x)
    shape, strides = _contiguous(x)
    return (
        empty(shape, strides, x.dtype),
        None if residual is None else empty(shape, strides, x.dtype),
        empty(_rows(shape, axes), (1,), torch.float32) if save else None,
    )


def rms_norm(
    x: Tensor,
    residual: Optional[Tensor],
    gamma: Optional[Tensor],
    axes: int,
    eps: float,
    gamma_offset: float,
    save: bool,
) -> tuple[Tensor, Any, Any]:
    y, h, rstd = rms_norm_outputs(x, residual, axes, save)
    _rms_norm(
        x=x,
        residual=residual,
        gamma=gamma,
        y=y,
        h=h,
        spread=rstd,
        eps=eps,
        gamma_offset=gamma_offset,
        normalized_axes=axes,
        allocate=_allocator(x),
    )
    return y, h, rstd


def batch_norm_outputs(x: Tensor, save: bool) -> tuple[Tensor, Any, Any]:
    """y lies in memory as x does, so that channels_last stays channels_last."""
    empty, channels = _empty_on(x), (x.shape[1],)
    return (
        torch.empty_like(x),
        empty(channels, (1,), torch.float32) if save else None,
        empty(channels, (1,), torch.float32) if save else None,
    )


def batch_norm(
    x: Tensor,
    gamma: Optional[Tensor],
    beta: Optional[Tensor],
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    frozen: bool,
    momentum: float,
    eps: float,
    save: bool,
) -> tuple[Tensor, Any, Any]:
    """Moves the running statistics unless frozen; saves mean and rstd unless frozen."""
    y, mean, rstd = batch_norm_outputs(x, save and not frozen)
    _batch_norm(
        x=x,
        gamma=gamma,
        beta=beta,
        running_mean=running_mean,
        running_variance=running_var,
        y=y,
        mean=mean,
        spread=rstd,
        eps=eps,
        momentum=momentum,
        frozen=frozen,
        statistics="mean_rstd",
        allocate=_allocator(x),
    )
    return y, mean, rstd


def rows_backward_outputs(
    x: Tensor, gamma: Optional[Tensor], axes: int, wanted: list[bool]
) -> Optionals:
    """dx, dgamma and, if wanted has a third, dbeta."""
    empty = _empty_on(x)
    shape, strides = _contiguous(x)
    dx = empty(shape, strides, x.dtype) if wanted[0] else None
    shape, strides = shape[-axes:], strides[-axes:]
    dtype = torch.float32 if gamma is None else gamma.dtype
    dgamma = empty(shape, strides, dtype) if wanted[1] else None
    if len(wanted) == 2:
        return dx, dgamma
    return dx, dgamma, empty(shape, strides, dtype) if wanted[2] else None


def layer_norm_backward(
    dy: Tensor,
    dh: Optional[Tensor],
    x: Tensor,
    gamma: Optional[Tensor],
    mean: Tensor,
    rstd: Tensor,
    axes: int,
    gamma_offset: float,
    wanted: list[bool],
) -> Optionals:
    dx, dgamma, dbeta = rows_backward_outputs(x, gamma, axes, wanted)
    _layer_norm_backward(
        dy=dy,
        x=x,
        gamma=gamma,
        mean=mean,
        spread=rstd,
        dh=dh if dx is not None else None,
        dx=dx,
        dgamma=dgamma,
        dbeta=dbeta,
        gamma_offset=gamma_offset,
        normalized_axes=axes,
        allocate=_allocator(x),
    )
    return dx, dgamma, dbeta


def rms_norm_backward(
    dy: Tensor,
    dh: Optional[Tensor],
    x: Tensor,
    gamma: Optional[Tensor],
    rstd: Tensor,
    axes: int,
    gamma_offset: float,
    wanted: list[bool],
) -> Optionals:
    dx, dgamma = rows_backward_outputs(x, gamma, axes, wanted)
    _rms_norm_backward(
        dy=dy,
        x=x,
        gamma=gamma,
        spread=rstd,
        dh=dh if dx is not None else None,
        dx=dx,
        dgamma=dgamma,
        gamma_offset=gamma_offset,
        normalized_axes=axes,
        allocate=_allocator(x),
    )
    return dx, dgamma


def batch_norm_backward_outputs(
    x: Tensor, gamma: Optional[Tensor], wanted: list[bool]
) -> Optionals:
    empty, channels = _empty_on(x), (x.shape[1],)
    dtype = torch.float32 if gamma is None else gamma.dtype
    return (
        torch.empty_like(x) if wanted[0] else None,
        empty(channels, (1,), dtype) if wanted[1] else None,
        empty(channels, (1,), dtype) if wanted[2] else None,
    )


def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    gamma: Optional[Tensor],
    mean: Tensor,
    spread: Tensor,
    frozen: bool,
    eps: float,
    wanted: list[bool],
) -> Optionals:
    """``spread`` is the batch's rstd, or the running variance if frozen."""
    dx, dgamma, dbeta = batch_norm_backward_outputs(x, gamma, wanted)
    _batch_norm_backward(
        dy=dy,
        x=x,
        gamma=gamma,
        mean=mean,
        spread=spread,
        dx=dx,
        dgamma=dgamma,
        dbeta=dbeta,
        eps=eps if frozen else 0.0,
        frozen=frozen,
        statistics="mean_variance" if frozen else "mean_rstd",
        allocate=_allocator(x),
    )
    return dx, dgamma, dbeta
