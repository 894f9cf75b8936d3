"""``torch.nn.functional``'s normalizations with the same arguments, and fused ones.

float32, float16 and bfloat16 tensors of the CPU and of CUDA are computed by NormGrad; everything
else (float64, other devices and layouts, ``torch.func``, forward mode) by PyTorch's own operators.
Parameters may have another type than the input; the output has the input's, statistics are
float32. Under autocast LayerNorm and RMSNorm take float32 on CUDA if PyTorch's do.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import ArgumentError
from . import _functions, _kernels, _ops, _sync

__all__ = ["layer_norm", "rms_norm", "batch_norm", "add_layer_norm", "add_rms_norm"]

_DTYPES = frozenset((torch.float32, torch.float16, torch.bfloat16))
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_FLOAT32_EPS = torch.finfo(torch.float32).eps  # PyTorch's default in RMSNorm, of all three types
_is_transforming = torch._C._are_functorch_transforms_active
_is_transformed = torch._C._functorch.is_functorch_wrapped_tensor  # true beyond the transform, too
_modes = torch._C._len_torch_dispatch_stack


def _forward_mode() -> bool:
    return forward_ad._current_level >= 0


def _ours(x: Tensor) -> bool:
    return (
        x.dtype in _DTYPES
        and (x.is_cpu or x.is_cuda)
        and x.layout is torch.strided
        and not x.is_nested
        and (
            torch.compiler.is_compiling()
            or not (_is_transforming() or _is_transformed(x) or _forward_mode())
        )
    )


def _direct(x: Tensor) -> bool:
    """Whether the dispatcher may be passed by: eager mode, a tensor with memory of its own, and
    nobody who watches the dispatcher (make_fx, selective checkpoints, counters)."""
    return type(x) in _PLAIN and not torch.compiler.is_compiling() and _modes() == 0


def _recorded(*tensors: Optional[Tensor]) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


# CUDA's list of operators in float32, which newer versions have rms_norm on, too; the CPU's has none.
_IN_FLOAT32 = {
    name: torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA")
    for name in ("layer_norm", "rms_norm")
}


def _autocast(operator: str, *tensors: Any) -> Any:
    if tensors[0].is_cuda and torch.is_autocast_enabled("cuda") and _IN_FLOAT32[operator]:
        return tuple(None if tensor is None else tensor.float() for tensor in tensors)
    return tensors


def _axes(x: Tensor, normalized_shape: Sequence[int]) -> int:
    axes = len(normalized_shape)
    if axes == 0 or x.shape[-axes:] != tuple(normalized_shape):
        raise ArgumentError(
            f"normalized_shape: expected the last axes of the input, of shape {tuple(x.shape)}, "
            f"got {tuple(normalized_shape)}",
            "bad_shape",
        )
    return axes


def _offset(weight: Optional[Tensor], weight_offset: float) -> Optional[Tensor]:
    return weight if weight is None or weight_offset == 0 else weight + weight_offset


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    r"""LayerNorm over the last axes, :math:`y = \hat x (\gamma + o) + \beta` with
    :math:`\hat x = (x - \mathrm{mean}) / \sqrt{\mathrm{var} + \epsilon}`; o is ``weight_offset``.

    Its gradient, with :math:`g = dy (\gamma + o)` and means over the row:
    :math:`dx = r (g - \overline{g} - \hat x\, \overline{g \hat x})`,
    :math:`d\gamma = \sum dy\, \hat x`, :math:`d\beta = \sum dy`.
    """
    if not _ours(input):
        return F.layer_norm(input, normalized_shape, _offset(weight, weight_offset), bias, eps)
    axes = _axes(input, normalized_shape)
    x, gamma, beta = _autocast("layer_norm", input, weight, bias)
    if not _direct(x):
        return torch.ops.normgrad.layer_norm(x, None, gamma, beta, axes, eps, weight_offset)[0]
    if _recorded(x, gamma, beta):
        return _functions.layer_norm(x, None, gamma, beta, axes, eps, weight_offset)
    return _kernels.layer_norm(x, None, gamma, beta, axes, eps, weight_offset, False)[0]


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    r""":math:`h = x + \mathrm{residual}`, and LayerNorm of h: gives (y, h).

    The gradient that reaches h by other ways is added in the same pass:
    :math:`dx = d\mathrm{residual} = r (g - \overline{g} - \hat x\, \overline{g \hat x}) + dh`.
    """
    if not _ours(input):
        h = input + residual
        return F.layer_norm(h, normalized_shape, _offset(weight, weight_offset), bias, eps), h
    axes = _axes(input, normalized_shape)
    x, added, gamma, beta = _autocast("layer_norm", input, residual, weight, bias)
    if not _direct(x):
        return torch.ops.normgrad.layer_norm(x, added, gamma, beta, axes, eps, weight_offset)[:2]
    if _recorded(x, added, gamma, beta):
        return _functions.layer_norm(x, added, gamma, beta, axes, eps, weight_offset)
    y, h, *_ = _kernels.layer_norm(x, added, gamma, beta, axes, eps, weight_offset, False)
    return y, h


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    r"""RMSNorm over the last axes, :math:`y = x r (\gamma + o)` with
    :math:`r = 1 / \sqrt{\mathrm{mean}(x^2) + \epsilon}`; o is ``weight_offset``.

    Its gradient, with :math:`g = dy (\gamma + o)`, :math:`\hat x = x r` and means over the row:
    :math:`dx = r (g - \hat x\, \overline{g \hat x})`, :math:`d\gamma = \sum dy\, \hat x`.
    """
    if not _ours(input):
        return F.rms_norm(input, normalized_shape, _offset(weight, weight_offset), eps)
    axes = _axes(input, normalized_shape)
    x, gamma = _autocast("rms_norm", input, weight)
    if eps is None:
        eps = _FLOAT32_EPS
    if not _direct(x):
        return torch.ops.normgrad.rms_norm(x, None, gamma, axes, eps, weight_offset)[0]
    if _recorded(x, gamma):
        return _functions.rms_norm(x, None, gamma, axes, eps, weight_offset)
    return _kernels.rms_norm(x, None, gamma, axes, eps, weight_offset, False)[0]


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
    *,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    r""":math:`h = x + \mathrm{residual}`, and RMSNorm of h: gives (y, h).

    The gradient that reaches h by other ways is added in the same pass:
    :math:`dx = d\mathrm{residual} = r (g - \hat x\, \overline{g \hat x}) + dh`.
    """
    if not _ours(input):
        h = input + residual
        return F.rms_norm(h, normalized_shape, _offset(weight, weight_offset), eps), h
    axes = _axes(input, normalized_shape)
    x, added, gamma = _autocast("rms_norm", input, residual, weight)
    if eps is None:
        eps = _FLOAT32_EPS
    if not _direct(x):
        return torch.ops.normgrad.rms_norm(x, added, gamma, axes, eps, weight_offset)[:2]
    if _recorded(x, added, gamma):
        return _functions.rms_norm(x, added, gamma, axes, eps, weight_offset)
    y, h, _ = _kernels.rms_norm(x, added, gamma, axes, eps, weight_offset, False)
    return y, h


def batch_norm(
    input: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""BatchNorm per channel (axis 1), :math:`y = \hat x \gamma + \beta` with
    :math:`\hat x = (x - \mathrm{mean}) / \sqrt{\mathrm{var} + \epsilon}`; in training the
    statistics are the batch's and the running ones are moved towards them, else they are the
    running ones.

    Its gradient in training, with means over the channel:
    :math:`dx = \gamma r (dy - \overline{dy} - \hat x\, \overline{dy\, \hat x})`, else
    :math:`dx = \gamma r\, dy`; :math:`d\gamma = \sum dy\, \hat x`, :math:`d\beta = \sum dy`.
    """
    if not _ours(input):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    frozen = not training
    if training:
        if input.numel() == input.shape[1] and input.dim() > 1:
            raise ArgumentError(
                "input: expected more than 1 value per channel when training, got shape "
                f"{tuple(input.shape)}",
                "bad_shape",
            )
        if eps <= 0:
            raise ArgumentError(f"eps: expected a positive value when training, got {eps}")
    if not _direct(input):
        y, _, _, moved_mean, moved_var = torch.ops.normgrad.batch_norm(
            input, weight, bias, running_mean, running_var, frozen, momentum, eps
        )
        if training and running_mean is not None and running_var is not None:
            running_mean.copy_(moved_mean)
            running_var.copy_(moved_var)
        return y
    arguments = (input, weight, bias, running_mean, running_var, frozen, momentum, eps)
    if _recorded(input, weight, bias):
        y = _functions.batch_norm(*arguments)
    else:
        y = _kernels.batch_norm(*arguments, False)[0]
    if training and running_mean is not None and running_var is not None:
        torch.autograd.graph.increment_version(running_mean)  # written past autograd's eyes
        torch.autograd.graph.increment_version(running_var)
    return y


def sync_batch_norm(
    input: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    momentum: float,
    eps: float,
    channels: int,
    first: bool,
    group: Any,
) -> Tensor:
    """``batch_norm`` in training over all processes of ``group``, a process group: what
    ``normgrad.nn.SyncBatchNorm`` computes. ``first``: the processes compare their layers before."""
    gamma, beta = weight, bias
    options = (momentum, eps, channels, first)
    if not _direct(input):
        y, _, _, moved_mean, moved_var = torch.ops.normgrad.sync_batch_norm(
            input, gamma, beta, running_mean, running_var, *options, group.group_name
        )
        if running_mean is not None and running_var is not None:
            running_mean.copy_(moved_mean)
            running_var.copy_(moved_var)
        return y
    arguments = (input, gamma, beta, running_mean, running_var, *options, group)
    if _recorded(input, gamma, beta):
        y = _functions.sync_batch_norm(*arguments)
    else:
        y = _sync.sync_batch_norm(*arguments)[0]
    if running_mean is not None and running_var is not None:
        torch.autograd.graph.increment_version(running_mean)
        torch.autograd.graph.increment_version(running_var)
    return y
