"""Where arrays come from: how each framework shows its memory to ``_core``, and makes results."""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional

from .errors import ArgumentError, ArrayTypeError, DeviceError

_CPU, _CUDA = 1, 2  # DLPack's numbers


class NumPy:
    """NumPy, with bfloat16 from ml_dtypes; by the array interface, since NumPy gives DLPack neither
    bfloat16 nor, before 2.1, read-only arrays."""

    def dtype(self, array: Any) -> str:
        return array.dtype.name

    def operand(self, name: str, array: Any, output: bool) -> Any:
        if type(array).__module__ != "numpy":
            return array
        interface = array.__array_interface__
        data, read_only = interface["data"]
        if output and read_only:
            raise ArgumentError(f"{name}: expected an array to write to, got a read-only one")
        if not array.dtype.isnative:
            raise ArrayTypeError(f"{name}: expected native byte order, got {array.dtype.str}")
        strides = interface["strides"]
        if strides is not None:
            size = array.itemsize
            if any(stride % size for stride in strides):
                raise ArgumentError(
                    f"{name}: expected strides of whole elements of {size} bytes, got {strides}",
                    "bad_strides",
                )
            strides = tuple(stride // size for stride in strides)
        return data, array.dtype.name, interface["shape"], strides, _CPU, 0

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        import numpy

        if dtype == "bfloat16":
            import ml_dtypes

            return numpy.empty(shape, ml_dtypes.bfloat16)
        return numpy.empty(shape, dtype)

    def check(self, name: str, array: Any) -> None:
        pass

    def allocate(self, like: Any) -> Optional[Callable[[int], Any]]:
        return None

    def stream(self, like: Any) -> Optional[int]:
        return None


class Torch:
    """PyTorch; from 2.10 on ``_core`` looks into tensors itself, before that they are described."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.described = not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")

    def dtype(self, array: Any) -> str:
        return str(array.dtype)[6:]

    def operand(self, name: str, array: Any, output: bool) -> Any:
        if not isinstance(array, self.torch.Tensor):
            return array
        return self.describe(array) if self.described else array

    def describe(self, tensor: Any) -> Any:
        device = tensor.device
        kind = {"cpu": _CPU, "cuda": _CUDA}.get(device.type, 0)
        return (
            tensor.data_ptr(),
            str(tensor.dtype)[6:],
            tuple(tensor.shape),
            tensor.stride(),
            kind,
            device.index or 0,
        )

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=like.device)

    def check(self, name: str, array: Any) -> None:
        if isinstance(array, self.torch.Tensor) and not (array.is_cpu or array.is_cuda):
            raise DeviceError(
                f"{name}: expected a tensor of the CPU or of CUDA, got one of {array.device}",
                "unsupported_device",
            )
        if getattr(array, "requires_grad", False) and self.torch.is_grad_enabled():
            raise ArgumentError(
                f"{name}: requires a gradient, which this function does not record; use "
                "normgrad.torch.functional, or torch.no_grad()"
            )

    def allocate(self, like: Any) -> Optional[Callable[[int], Any]]:
        if like.device.type == "cpu":
            return None
        held = []  # a description does not keep its tensor; this lives as long as the call

        def allocate(size: int) -> Any:
            held.append(self.torch.empty(size, dtype=self.torch.uint8, device=like.device))
            return self.operand("workspace", held[-1], True)

        return allocate

    def stream(self, like: Any) -> Optional[int]:
        if like.device.type == "cpu" or not self.described:
            return None  # _core asks the framework
        return self.torch.cuda.current_stream(like.device).cuda_stream


class ArrayApi:
    """Anything else with DLPack and the array API's namespace: CuPy, for one."""

    def namespace(self, array: Any) -> Any:
        if type(array).__module__.startswith("cupy"):
            return sys.modules["cupy"]
        return array.__array_namespace__()

    def dtype(self, array: Any) -> str:
        return str(array.dtype).rpartition(".")[2]

    def operand(self, name: str, array: Any, output: bool) -> Any:
        return array

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        xp = self.namespace(like)
        if xp.__name__ == "cupy":
            return xp.empty(shape, dtype=getattr(xp, dtype))
        return xp.empty(shape, dtype=getattr(xp, dtype), device=like.device)

    def check(self, name: str, array: Any) -> None:
        pass

    def allocate(self, like: Any) -> Optional[Callable[[int], Any]]:
        return lambda size: self.empty((size,), "uint8", like)

    def stream(self, like: Any) -> Optional[int]:
        xp = self.namespace(like)
        if xp.__name__ == "cupy":
            return xp.cuda.get_current_stream().ptr
        return None


_known: dict[str, Any] = {"numpy": NumPy()}


def of(array: Any) -> Any:
    """The framework of an array; for JAX ``None``, whose arrays take another way."""
    kind = type(array)
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("jax", "jaxlib"):
            return None
        if root == "torch" and root not in _known:
            _known[root] = Torch()
        if root in _known:
            return _known[root]
    if not hasattr(array, "__dlpack__"):
        raise ArrayTypeError(
            f"x: expected an array with __dlpack__, got {kind.__name__}", "bad_dtype"
        )
    return ArrayApi()
