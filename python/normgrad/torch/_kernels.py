"""The library's calls on tensors: results are allocated, then ``_core`` writes them."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .. import _core, _frameworks

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


def _contiguous_like(x: Tensor) -> Tensor:
    if x.is_contiguous():
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _per_row(x: Tensor, axes: int) -> Tensor:
    """One axis for all rows: a third of the microseconds that a shape costs."""
    return torch.empty(x.shape[:-axes].numel(), dtype=torch.float32, device=x.device)


def _per_channel(x: Tensor) -> Tensor:
    return torch.empty(x.shape[1], dtype=torch.float32, device=x.device)


def _per_column(x: Tensor, gamma: Optional[Tensor], axes: int) -> Tensor:
    if gamma is not None:
        return _contiguous_like(gamma)
    return x.new_empty(x.shape[-axes:], dtype=torch.float32)


def layer_norm_outputs(
    x: Tensor, residual: Optional[Tensor], axes: int, save: bool
) -> tuple[Tensor, Any, Any, Any]:
    mean = _per_row(x, axes) if save else None
    return (
        _contiguous_like(x),
        None if residual is None else _contiguous_like(x),
        mean,
        None if mean is None else torch.empty_like(mean),
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
    return (
        _contiguous_like(x),
        None if residual is None else _contiguous_like(x),
        _per_row(x, axes) if save else None,
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
    mean = _per_channel(x) if save else None
    return torch.empty_like(x), mean, None if mean is None else torch.empty_like(mean)


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
    dx = _contiguous_like(x) if wanted[0] else None
    dgamma = _per_column(x, gamma, axes) if wanted[1] else None
    if len(wanted) == 2:
        return dx, dgamma
    return dx, dgamma, _per_column(x, gamma, axes) if wanted[2] else None


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
    def per_channel() -> Tensor:
        return _per_channel(x) if gamma is None else _contiguous_like(gamma)

    return (
        torch.empty_like(x) if wanted[0] else None,
        per_channel() if wanted[1] else None,
        per_channel() if wanted[2] else None,
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
