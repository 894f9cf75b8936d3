"""PyTorch's front end: ``functional``, and ``patch``, which swaps the norms of a model."""

from __future__ import annotations

from types import TracebackType
from typing import Optional

import torch

from . import functional

__all__ = ["Patch", "functional", "patch"]


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
    """Swaps the LayerNorm, RMSNorm and BatchNorm modules of ``model`` for NormGrad's, in place.

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
