"""PyTorch's normalization modules computed by NormGrad: same constructors, same state dicts."""

from __future__ import annotations

import torch
from torch import Tensor

from .torch import functional as F

__all__ = ["LayerNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]


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
