"""The direct way of eager mode: ``torch.autograd.Function`` around ``_kernels``, without the
dispatcher. With ``create_graph=True`` the gradients go through the operators, which refuse double
backward.

``layer_norm`` and its like below are ``Function.apply`` less its care for ``torch.func``, 7 of 24
microseconds: ``functional`` takes PyTorch's operators there."""

from __future__ import annotations

from typing import Any

import torch

from . import _kernels, _sync
from ._ops import spread_out


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, residual, gamma, beta, axes, eps, gamma_offset):  # type: ignore
        y, h, mean, rstd = _kernels.layer_norm(
            x, residual, gamma, beta, axes, eps, gamma_offset, True
        )
        ctx.save_for_backward(x if h is None else h, gamma, mean, rstd)
        ctx.axes, ctx.gamma_offset = axes, gamma_offset
        if h is None:
            return y
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    def backward(ctx: Any, dy, dh=None):  # type: ignore
        need = ctx.needs_input_grad
        if dy is None:
            return dh, dh, None, None, None, None, None
        x, gamma, mean, rstd = ctx.saved_tensors
        wanted = [need[0] or need[1], need[2], need[3]]
        arguments = (dy, dh, x, gamma, mean, rstd, ctx.axes, ctx.gamma_offset, wanted)
        if torch.is_grad_enabled():
            dx, dgamma, dbeta = spread_out(
                wanted, torch.ops.normgrad.layer_norm_backward(*arguments)
            )
        else:
            dx, dgamma, dbeta = _kernels.layer_norm_backward(*arguments)
        return dx if need[0] else None, dx if need[1] else None, dgamma, dbeta, None, None, None


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, residual, gamma, axes, eps, gamma_offset):  # type: ignore
        y, h, rstd = _kernels.rms_norm(x, residual, gamma, axes, eps, gamma_offset, True)
        ctx.save_for_backward(x if h is None else h, gamma, rstd)
        ctx.axes, ctx.gamma_offset = axes, gamma_offset
        if h is None:
            return y
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    def backward(ctx: Any, dy, dh=None):  # type: ignore
        need = ctx.needs_input_grad
        if dy is None:
            return dh, dh, None, None, None, None
        x, gamma, rstd = ctx.saved_tensors
        wanted = [need[0] or need[1], need[2]]
        arguments = (dy, dh, x, gamma, rstd, ctx.axes, ctx.gamma_offset, wanted)
        if torch.is_grad_enabled():
            dx, dgamma = spread_out(wanted, torch.ops.normgrad.rms_norm_backward(*arguments))
        else:
            dx, dgamma = _kernels.rms_norm_backward(*arguments)
        return dx if need[0] else None, dx if need[1] else None, dgamma, None, None, None


class BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore
        ctx: Any, x, gamma, beta, running_mean, running_var, frozen, momentum, eps
    ):
        y, mean, rstd = _kernels.batch_norm(
            x, gamma, beta, running_mean, running_var, frozen, momentum, eps, True
        )
        if frozen:
            mean, rstd = running_mean, running_var
        ctx.save_for_backward(x, gamma, mean, rstd)
        ctx.frozen, ctx.eps = frozen, eps
        return y

    @staticmethod
    def backward(ctx: Any, dy):  # type: ignore
        x, gamma, mean, spread = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        arguments = (dy, x, gamma, mean, spread, ctx.frozen, ctx.eps, wanted)
        if torch.is_grad_enabled():
            gradients = spread_out(wanted, torch.ops.normgrad.batch_norm_backward(*arguments))
        else:
            gradients = list(_kernels.batch_norm_backward(*arguments))
        return (*gradients, None, None, None, None, None)


class SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore
        ctx: Any, x, gamma, beta, running_mean, running_var, momentum, eps, channels, first, group
    ):
        y, mean, rstd = _sync.sync_batch_norm(
            x, gamma, beta, running_mean, running_var, momentum, eps, channels, first, group
        )
        ctx.save_for_backward(x, gamma, mean, rstd)
        ctx.eps, ctx.group = eps, group
        return y

    @staticmethod
    def backward(ctx: Any, dy):  # type: ignore
        x, gamma, mean, rstd = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        arguments = (dy, x, gamma, mean, rstd, ctx.eps)
        if torch.is_grad_enabled():
            gradients = spread_out(
                wanted,
                torch.ops.normgrad.sync_batch_norm_backward(
                    *arguments, ctx.group.group_name, wanted
                ),
            )
        else:
            gradients = list(_sync.sync_batch_norm_backward(*arguments, ctx.group, wanted))
        return (*gradients, None, None, None, None, None, None, None)


layer_norm, rms_norm, batch_norm, sync_batch_norm = (
    super(torch.autograd.Function, function).apply  # type: ignore[misc]
    for function in (LayerNorm, RMSNorm, BatchNorm, SyncBatchNorm)
)
