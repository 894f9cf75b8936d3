"""The operators as PyTorch's dispatcher knows them, ``torch.ops.normgrad.*``: what
``torch.compile``, tensor subclasses and double backward meet.

A forward operator gives everything that its gradient takes; an ``h`` or running statistic that
does not exist is an empty tensor. A gradient operator gives a list of the wanted gradients only.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from . import _kernels, _sync

_library = torch.library.Library("normgrad", "DEF")


def _define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"normgrad::{name}", fake, lib=_library)


def _autograd(
    name: str, backward: Callable[..., Any], setup: Optional[Callable[..., None]] = None
) -> None:
    torch.library.register_autograd(
        f"normgrad::{name}", backward, setup_context=setup, lib=_library
    )


def _refuse_double_backward(name: str, instead: str) -> None:
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"normgrad: the gradient of {name} has no gradient of its own (double backward); "
            f"use torch.nn.functional.{instead} where second derivatives are needed"
        )

    _autograd(f"{name}_backward", backward)


def _nothing(x: Tensor) -> Tensor:
    return x.new_empty((0,))


def _present(gradients: tuple[Optional[Tensor], ...]) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def spread_out(wanted: list[bool], gradients: list[Tensor]) -> list[Optional[Tensor]]:
    """The wanted gradients in their places, None in the others."""
    present = iter(gradients)
    return [next(present) if want else None for want in wanted]


# LayerNorm


def _layer_norm(x, residual, gamma, beta, axes, eps, gamma_offset):  # type: ignore
    y, h, mean, rstd = _kernels.layer_norm(x, residual, gamma, beta, axes, eps, gamma_offset, True)
    return y, _nothing(x) if h is None else h, mean, rstd


def _layer_norm_fake(x, residual, gamma, beta, axes, eps, gamma_offset):  # type: ignore
    y, h, mean, rstd = _kernels.layer_norm_outputs(x, residual, axes, True)
    return y, _nothing(x) if h is None else h, mean, rstd


def _layer_norm_setup(ctx, inputs, output):  # type: ignore
    x, residual, gamma, _, ctx.axes, _, ctx.gamma_offset = inputs
    _, h, mean, rstd = output
    ctx.fused = residual is not None
    ctx.save_for_backward(h if ctx.fused else x, gamma, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd, *(() if ctx.fused else (h,)))
    ctx.set_materialize_grads(False)


def _layer_norm_autograd(ctx, dy, dh, *_):  # type: ignore
    x, gamma, mean, rstd = ctx.saved_tensors
    need = ctx.needs_input_grad
    if dy is None:
        return dh, dh if ctx.fused else None, None, None, None, None, None
    wanted = [need[0] or need[1], need[2], need[3]]
    dx, dgamma, dbeta = spread_out(
        wanted,
        torch.ops.normgrad.layer_norm_backward(
            dy, dh if wanted[0] else None, x, gamma, mean, rstd, ctx.axes, ctx.gamma_offset, wanted
        ),
    )
    return dx if need[0] else None, dx if need[1] else None, dgamma, dbeta, None, None, None


_define(
    "layer_norm(Tensor x, Tensor? residual, Tensor? gamma, Tensor? beta, int axes, float eps,"
    " float gamma_offset) -> (Tensor y, Tensor h, Tensor mean, Tensor rstd)",
    _layer_norm,
    _layer_norm_fake,
)
_define(
    "layer_norm_backward(Tensor dy, Tensor? dh, Tensor x, Tensor? gamma, Tensor mean, Tensor rstd,"
    " int axes, float gamma_offset, bool[3] wanted) -> Tensor[]",
    lambda *arguments: _present(_kernels.layer_norm_backward(*arguments)),
    lambda dy, dh, x, gamma, mean, rstd, axes, gamma_offset, wanted: _present(
        _kernels.rows_backward_outputs(x, gamma, axes, wanted)
    ),
)
_autograd("layer_norm", _layer_norm_autograd, _layer_norm_setup)
_refuse_double_backward("layer_norm", "layer_norm")


# RMSNorm


def _rms_norm(x, residual, gamma, axes, eps, gamma_offset):  # type: ignore
    y, h, rstd = _kernels.rms_norm(x, residual, gamma, axes, eps, gamma_offset, True)
    return y, _nothing(x) if h is None else h, rstd


def _rms_norm_fake(x, residual, gamma, axes, eps, gamma_offset):  # type: ignore
    y, h, rstd = _kernels.rms_norm_outputs(x, residual, axes, True)
    return y, _nothing(x) if h is None else h, rstd


def _rms_norm_setup(ctx, inputs, output):  # type: ignore
    x, residual, gamma, ctx.axes, _, ctx.gamma_offset = inputs
    _, h, rstd = output
    ctx.fused = residual is not None
    ctx.save_for_backward(h if ctx.fused else x, gamma, rstd)
    ctx.mark_non_differentiable(rstd, *(() if ctx.fused else (h,)))
    ctx.set_materialize_grads(False)


def _rms_norm_autograd(ctx, dy, dh, *_):  # type: ignore
    x, gamma, rstd = ctx.saved_tensors
    need = ctx.needs_input_grad
    if dy is None:
        return dh, dh if ctx.fused else None, None, None, None, None
    wanted = [need[0] or need[1], need[2]]
    dx, dgamma = spread_out(
        wanted,
        torch.ops.normgrad.rms_norm_backward(
            dy, dh if wanted[0] else None, x, gamma, rstd, ctx.axes, ctx.gamma_offset, wanted
        ),
    )
    return dx if need[0] else None, dx if need[1] else None, dgamma, None, None, None


_define(
    "rms_norm(Tensor x, Tensor? residual, Tensor? gamma, int axes, float eps, float gamma_offset)"
    " -> (Tensor y, Tensor h, Tensor rstd)",
    _rms_norm,
    _rms_norm_fake,
)
_define(
    "rms_norm_backward(Tensor dy, Tensor? dh, Tensor x, Tensor? gamma, Tensor rstd, int axes,"
    " float gamma_offset, bool[2] wanted) -> Tensor[]",
    lambda *arguments: _present(_kernels.rms_norm_backward(*arguments)),
    lambda dy, dh, x, gamma, rstd, axes, gamma_offset, wanted: _present(
        _kernels.rows_backward_outputs(x, gamma, axes, wanted)
    ),
)
_autograd("rms_norm", _rms_norm_autograd, _rms_norm_setup)
_refuse_double_backward("rms_norm", "rms_norm")


# BatchNorm. Operators with a gradient may not write to their inputs: the moved running statistics
# are outputs, and the caller copies them.


def _moved(x, running):  # type: ignore
    return _nothing(x) if running is None else running.clone()


def _batch_norm(x, gamma, beta, running_mean, running_var, frozen, momentum, eps):  # type: ignore
    if frozen:
        y, _, _ = _kernels.batch_norm(
            x, gamma, beta, running_mean, running_var, True, momentum, eps, False
        )
        return y, _nothing(x), _nothing(x), _nothing(x), _nothing(x)
    moved_mean, moved_var = _moved(x, running_mean), _moved(x, running_var)
    y, mean, rstd = _kernels.batch_norm(
        x,
        gamma,
        beta,
        None if running_mean is None else moved_mean,
        None if running_var is None else moved_var,
        False,
        momentum,
        eps,
        True,
    )
    return y, mean, rstd, moved_mean, moved_var


def _batch_norm_fake(x, gamma, beta, running_mean, running_var, frozen, momentum, eps):  # type: ignore
    y, mean, rstd = _kernels.batch_norm_outputs(x, not frozen)
    if frozen:
        return y, _nothing(x), _nothing(x), _nothing(x), _nothing(x)
    return y, mean, rstd, _moved(x, running_mean), _moved(x, running_var)


def _batch_norm_setup(ctx, inputs, output):  # type: ignore
    x, gamma, _, running_mean, running_var, ctx.frozen, _, ctx.eps = inputs
    _, mean, rstd, *moved = output
    if ctx.frozen:
        ctx.save_for_backward(x, gamma, running_mean, running_var)
    else:
        ctx.save_for_backward(x, gamma, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd, *moved)
    ctx.set_materialize_grads(False)


def _batch_norm_autograd(ctx, dy, *_):  # type: ignore
    if dy is None:
        return (None,) * 8
    x, gamma, mean, spread = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:3])
    gradients = spread_out(
        wanted,
        torch.ops.normgrad.batch_norm_backward(
            dy, x, gamma, mean, spread, ctx.frozen, ctx.eps, wanted
        ),
    )
    return (*gradients, None, None, None, None, None)


_define(
    "batch_norm(Tensor x, Tensor? gamma, Tensor? beta, Tensor? running_mean, Tensor? running_var,"
    " bool frozen, float momentum, float eps)"
    " -> (Tensor y, Tensor mean, Tensor rstd, Tensor running_mean, Tensor running_var)",
    _batch_norm,
    _batch_norm_fake,
)
_define(
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? gamma, Tensor mean, Tensor spread,"
    " bool frozen, float eps, bool[3] wanted) -> Tensor[]",
    lambda *arguments: _present(_kernels.batch_norm_backward(*arguments)),
    lambda dy, x, gamma, mean, spread, frozen, eps, wanted: _present(
        _kernels.batch_norm_backward_outputs(x, gamma, wanted)
    ),
)
_autograd("batch_norm", _batch_norm_autograd, _batch_norm_setup)
_refuse_double_backward("batch_norm", "batch_norm")


# SyncBatchNorm: the collective happens inside, in a group that is known by its name.


def _group(name):  # type: ignore
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def _sync_batch_norm(  # type: ignore
    x, gamma, beta, running_mean, running_var, momentum, eps, channels, first, group
):
    moved_mean, moved_var = _moved(x, running_mean), _moved(x, running_var)
    results = _sync.sync_batch_norm(
        x,
        gamma,
        beta,
        None if running_mean is None else moved_mean,
        None if running_var is None else moved_var,
        momentum,
        eps,
        channels,
        first,
        _group(group),
    )
    return *results, moved_mean, moved_var


def _sync_batch_norm_fake(  # type: ignore
    x, gamma, beta, running_mean, running_var, momentum, eps, channels, first, group
):
    outputs = _kernels.batch_norm_outputs(x, True)
    return *outputs, _moved(x, running_mean), _moved(x, running_var)


def _sync_batch_norm_setup(ctx, inputs, output):  # type: ignore
    x, gamma, _, _, _, _, ctx.eps, _, _, ctx.group = inputs
    _, mean, rstd, *moved = output
    ctx.save_for_backward(x, gamma, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd, *moved)
    ctx.set_materialize_grads(False)


def _sync_batch_norm_autograd(ctx, dy, *_):  # type: ignore
    if dy is None:
        return (None,) * 10
    wanted = list(ctx.needs_input_grad[:3])
    gradients = spread_out(
        wanted,
        torch.ops.normgrad.sync_batch_norm_backward(
            dy, *ctx.saved_tensors, ctx.eps, ctx.group, wanted
        ),
    )
    return (*gradients, None, None, None, None, None, None, None)


_define(
    "sync_batch_norm(Tensor x, Tensor? gamma, Tensor? beta, Tensor? running_mean,"
    " Tensor? running_var, float momentum, float eps, int channels, bool first, str group)"
    " -> (Tensor y, Tensor mean, Tensor rstd, Tensor running_mean, Tensor running_var)",
    _sync_batch_norm,
    _sync_batch_norm_fake,
)
_define(
    "sync_batch_norm_backward(Tensor dy, Tensor x, Tensor? gamma, Tensor mean, Tensor rstd,"
    " float eps, str group, bool[3] wanted) -> Tensor[]",
    lambda dy, x, gamma, mean, rstd, eps, group, wanted: _present(
        _sync.sync_batch_norm_backward(dy, x, gamma, mean, rstd, eps, _group(group), wanted)
    ),
    lambda dy, x, gamma, mean, rstd, eps, group, wanted: _present(
        _kernels.batch_norm_backward_outputs(x, gamma, wanted)
    ),
)
_autograd("sync_batch_norm", _sync_batch_norm_autograd, _sync_batch_norm_setup)
_refuse_double_backward("sync_batch_norm", "batch_norm")
