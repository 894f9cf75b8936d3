"""PyTorch's front end: ``functional``, ``patch``, which swaps the norms of a model, and
``convert_sync_batchnorm`` for models that train in several processes."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, TypeVar

import torch

from . import functional

__all__ = ["Patch", "convert_sync_batchnorm", "functional", "patch"]

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


class Patch:
    """What ``patch`` did; ``undo`` takes it back, and so does the end of a ``with`` block."""

    def __init__(self, swapped: list[tuple[torch.nn.Module, type[torch.nn.Module]]]) -> None:
        self._swapped = swapped

    def __len__(self) -> int:
        """How many modules are swapped."""
        return len(self._swapped)

    def undo(self) -> None:
        for module, before in self._swapped:
            module.__class__ = before
        self._swapped = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.undo()


def patch(model: torch.nn.Module) -> Patch:
    """Swaps the LayerNorm, RMSNorm, BatchNorm and SyncBatchNorm modules of ``model`` for NormGrad's, in place.

    Only a module's class changes: parameters, buffers, hooks and state dict stay what they are.
    Subclasses of PyTorch's modules are left alone, since their ``forward`` may differ. Compile a
    model after patching it.
    """
    from .. import nn

    classes = {getattr(torch.nn, name): getattr(nn, name) for name in nn.__all__}
    swapped = [(module, type(module)) for module in model.modules() if type(module) in classes]
    for module, before in swapped:
        module.__class__ = classes[before]
    return Patch(swapped)


def convert_sync_batchnorm(model: ModuleT, process_group: Any = None) -> ModuleT:
    """Makes every BatchNorm of ``model`` a ``normgrad.nn.SyncBatchNorm``, in place, and gives the
    model back.

    BatchNorm1d, 2d, 3d and SyncBatchNorm of ``torch.nn`` and of ``normgrad.nn`` are swapped as
    ``patch`` does it: only a module's class changes. ``process_group``: whose processes share their
    batches; ``None`` is all of them, or the group that a SyncBatchNorm already has.
    """
    from .. import nn

    names = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
    classes = {getattr(library, name) for library in (torch.nn, nn) for name in names}
    for module in model.modules():
        if type(module) in classes:
            group = process_group or getattr(module, "process_group", None)
            module.__class__ = nn.SyncBatchNorm
            setattr(module, "process_group", group)
    return model
