"""BatchNorm over the processes of a group. Each direction is a step of the library, one collective,
and a step that uses what came: nothing is written before all messages are there.

A message is 2 + 2C words of 8 bytes: a tag, the elements per channel as int64, and two float64 per
channel (mean and squares, or sum_dy and sum_dy_xmu). The library merges messages in float64 in the
order of the ranks, so that all processes get the same bits.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _core
from ..errors import ArgumentError
from . import _kernels

_reduce = _kernels._bind(_core.batch_norm_reduce)
_elementwise = _kernels._bind(_core.batch_norm_elementwise)
_reduce_backward = _kernels._bind(_core.batch_norm_reduce_backward)
_elementwise_backward = _kernels._bind(_core.batch_norm_elementwise_backward)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LAYER, _FORWARD, _BACKWARD = range(3)
_MODES = ("its first call", "its forward pass", "its backward pass")

# all_gather_into_tensor has a new name since 2.13, and warns under the old one.
_all_gather: Any = getattr(dist, "all_gather_single", None) or getattr(
    dist, "all_gather_into_tensor", None
)


@functools.lru_cache(maxsize=None)
def _tag(channels: int, dtype: torch.dtype, eps: float, mode: int) -> int:
    """What all processes must agree on, in a word that an error can spell out."""
    (bits,) = struct.unpack("<I", struct.pack("<f", eps))
    return _DTYPES.index(dtype) << 60 | mode << 56 | (channels & 0xFFFFFF) << 32 | bits


def _spelled(tag: int) -> str:
    (eps,) = struct.unpack("<f", struct.pack("<I", tag & 0xFFFFFFFF))
    dtype, mode = tag >> 60 & 3, tag >> 56 & 15
    if tag < 0 or dtype >= len(_DTYPES) or mode >= len(_MODES):
        return "another call"
    name = str(_DTYPES[dtype]).removeprefix("torch.")
    return f"{tag >> 32 & 0xFFFFFF} channels of {name} with eps {eps:.6g} in {_MODES[mode]}"


def _gather(message: Tensor, group: Any) -> Tensor:
    """The one collective: the messages of all ranks, a row each."""
    ranks = dist.get_world_size(group)
    messages = message.new_empty(ranks * message.numel())
    _all_gather(messages, message, group=group)
    return messages.view(ranks, -1)


def _check(tags: Tensor, expected: int, own: int) -> None:
    """All ranks see the same tags, so that a difference is an error on each of them. On a GPU it is a
    kernel that looks, and the stream that fails: the host waits for nothing."""
    if tags.is_cuda:
        torch._assert_async(
            (tags == expected).all(), "normgrad: the ranks of a SyncBatchNorm differ"
        )
        others = {} if own == expected else {"this rank": own}
    else:
        ranks = enumerate(tags.tolist())
        others = {f"rank {rank}": tag for rank, tag in ranks if tag != expected}
    if others:
        came = "; ".join(f"{_spelled(tag)} on {rank}" for rank, tag in others.items())
        raise ArgumentError(
            f"process_group: expected {_spelled(expected)} on every rank, got {came}", "bad_shape"
        )


def _agree(x: Tensor, channels: int, eps: float, group: Any) -> None:
    """Before the first message of a layer, whose size depends on its channels: backends that get
    messages of different sizes end the process, hang, or give garbage."""
    own = _tag(x.shape[1], x.dtype, eps, _LAYER)
    tags = _gather(torch.tensor([own], dtype=torch.int64, device=x.device), group)
    _check(tags[:, 0].cpu(), _tag(channels, x.dtype, eps, _LAYER), own)


def _message(x: Tensor, channels: int, tag: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    message = torch.empty(2 + 2 * channels, dtype=torch.float64, device=x.device)
    head = message[:2].view(torch.int64)
    head[:1].fill_(tag)  # head[0] = tag would copy from the host, which a graph cannot capture
    return message, head[1:], message[2 : 2 + channels], message[2 + channels :]


def _parts(messages: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tags, counts and the two sums of all ranks, where they lie."""
    head = messages.view(torch.int64)
    return head[:, 0], head[:, 1], messages[:, 2 : 2 + channels], messages[:, 2 + channels :]


def sync_batch_norm(
    x: Tensor,
    gamma: Optional[Tensor],
    beta: Optional[Tensor],
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    momentum: float,
    eps: float,
    channels: int,
    first: bool,
    group: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the mean and rstd of the whole batch. An x with other channels than the layer is sent as
    such, so that no rank waits for this one."""
    if first:
        _agree(x, channels, eps, group)
    own = _tag(x.shape[1], x.dtype, eps, _FORWARD)
    expected = _tag(channels, x.dtype, eps, _FORWARD)
    message, count, mean, squares = _message(x, channels, own)
    allocate = _kernels._allocator(x)
    if own == expected:
        _reduce(x=x, mean=mean, squares=squares, count=count, allocate=allocate)
    tags, counts, means, all_squares = _parts(_gather(message, group), channels)
    _check(tags, expected, own)
    y, saved_mean, rstd = _kernels.batch_norm_outputs(x, True)
    _elementwise(
        x=x,
        gamma=gamma,
        beta=beta,
        mean=means,
        squares=all_squares,
        count=counts,
        running_mean=running_mean,
        running_variance=running_var,
        y=y,
        saved_mean=saved_mean,
        saved_spread=rstd,
        eps=eps,
        momentum=momentum,
        statistics="mean_rstd",
        allocate=allocate,
    )
    return y, saved_mean, rstd


def sync_batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    gamma: Optional[Tensor],
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    group: Any,
    wanted: list[bool],
) -> _kernels.Optionals:
    """dgamma and dbeta are those of this process. Without dx nothing is sent."""
    dx, dgamma, dbeta = _kernels.batch_norm_backward_outputs(x, gamma, wanted)
    allocate = _kernels._allocator(x)
    arguments = dict(dy=dy, x=x, mean=mean, spread=rstd, allocate=allocate)
    if dx is None:
        _reduce_backward(**arguments, dgamma=dgamma, dbeta=dbeta)
        return dx, dgamma, dbeta
    channels = x.shape[1]
    tag = _tag(channels, x.dtype, eps, _BACKWARD)
    message, count, sum_dy, sum_dy_xmu = _message(x, channels, tag)
    _reduce_backward(
        **arguments, sum_dy=sum_dy, sum_dy_xmu=sum_dy_xmu, count=count, dgamma=dgamma, dbeta=dbeta
    )
    tags, counts, sums_dy, sums_dy_xmu = _parts(_gather(message, group), channels)
    _check(tags, tag, tag)
    _elementwise_backward(
        **arguments, gamma=gamma, sum_dy=sums_dy, sum_dy_xmu=sums_dy_xmu, count=counts, dx=dx
    )
    return dx, dgamma, dbeta
