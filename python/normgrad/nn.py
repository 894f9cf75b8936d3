"""PyTorch's normalization modules computed by NormGrad: same constructors, same state dicts."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ArgumentError, ArrayTypeError
from .torch import functional as F

__all__ = ["LayerNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"]


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``; see ``normgrad.torch.functional.layer_norm`` for the formulas."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``; see ``normgrad.torch.functional.rms_norm`` for the formulas."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class _BatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # a cumulative average
                momentum = 1.0 / float(self.num_batches_tracked)
        running_mean, running_var = self.running_mean, self.running_var
        if self.training and not self.track_running_stats:
            running_mean = running_var = None
        return F.batch_norm(
            input,
            running_mean,
            running_var,
            self.weight,
            self.bias,
            self.training or (running_mean is None and running_var is None),
            momentum,
            self.eps,
        )


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d``; see ``normgrad.torch.functional.batch_norm`` for the formulas."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d``; see ``normgrad.torch.functional.batch_norm`` for the formulas."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d``; see ``normgrad.torch.functional.batch_norm`` for the formulas."""


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.SyncBatchNorm``, for the CPU, too: in training the statistics are those of the batches of all
    processes of ``process_group`` (default: all processes), and so is the gradient of the input.
    The gradients of ``weight`` and ``bias`` are this process's own: ``DistributedDataParallel``
    averages them.

    CPU tensors with gloo, CUDA tensors with nccl; one message of ``16 C + 16`` bytes per process and
    direction. Processes may have batches of any sizes, and none. All of them get the same bits.
    In eval mode, in a group of one process and without ``torch.distributed`` it is a local
    BatchNorm. A process that fails makes the others raise within the timeout of the group, with
    outputs and running statistics unchanged.

    It is no subclass of ``torch.nn.SyncBatchNorm``, which ``DistributedDataParallel`` refuses to
    run on the CPU.
    """

    _agreed: Optional[str] = None  # the name of the group in which the layers were compared

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        **newer: Any,  # bias, since PyTorch 2.13
    ) -> None:
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device=device,
            dtype=dtype,
            **newer,
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] == 0:
            raise ArgumentError(
                f"input: expected two axes or more, and channels, got shape {tuple(input.shape)}",
                "bad_shape",
            )

    def forward(self, input: Tensor) -> Tensor:
        group = self._group() if self.training else None
        if group is None:
            return super().forward(input)
        self._check_input_dim(input)
        if not F._ours(input):
            raise ArrayTypeError(
                "input: expected a plain tensor of float32, float16 or bfloat16 on the CPU or CUDA, "
                f"got {input.dtype} on {input.device}; see torch.nn.SyncBatchNorm for others",
                "bad_dtype",
            )
        tracked = self.num_batches_tracked if self.track_running_stats else None
        momentum = 0.0 if self.momentum is None else self.momentum
        if tracked is not None and self.momentum is None:  # a cumulative average
            momentum = 1.0 / (float(tracked) + 1)
        y = F.sync_batch_norm(
            input,
            self.running_mean if self.track_running_stats else None,
            self.running_var if self.track_running_stats else None,
            self.weight,
            self.bias,
            momentum,
            self.eps,
            self.num_features,
            self._agreed != group.group_name,
            group,
        )
        self._agreed = group.group_name
        if tracked is not None:  # now, since the call may have failed
            tracked.add_(1)
        return y

    def _group(self) -> Any:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = dist.group.WORLD if self.process_group is None else self.process_group
        return group if dist.get_world_size(group) > 1 else None

    @classmethod
    def convert_sync_batchnorm(cls, module: Any, process_group: Any = None) -> Any:
        """``normgrad.torch.convert_sync_batchnorm``."""
        from .torch import convert_sync_batchnorm

        return convert_sync_batchnorm(module, process_group)
