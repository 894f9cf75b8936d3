"""The library's calls. Every output is an argument; what is absent is not computed.

An array is an object with DLPack, or a tuple (data, dtype, shape, strides, device_type, device_id)
with strides in elements or None for contiguous. ``allocate(bytes)`` gives the workspace of calls on
a GPU, ``stream`` is a CUDA stream; without it calls run on the current stream of x's framework if that
tells (``__dlpack_c_exchange_api__``), else on the legacy default stream.
"""

from typing import Any, Callable, Optional

_Array = Any
_Allocate = Optional[Callable[[int], Any]]

def layer_norm(
    x: _Array,
    *,
    residual: _Array = None,
    gamma: _Array = None,
    beta: _Array = None,
    y: _Array = None,
    h: _Array = None,
    x_hat: _Array = None,
    mean: _Array = None,
    spread: _Array = None,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    statistics: str = "mean_rstd",
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def rms_norm(
    x: _Array,
    *,
    residual: _Array = None,
    gamma: _Array = None,
    y: _Array = None,
    h: _Array = None,
    spread: _Array = None,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def batch_norm(
    x: _Array,
    *,
    gamma: _Array = None,
    beta: _Array = None,
    running_mean: _Array = None,
    running_variance: _Array = None,
    y: _Array = None,
    mean: _Array = None,
    spread: _Array = None,
    eps: float = 1e-5,
    momentum: float = 0.1,
    frozen: bool = False,
    channel_axis: int = 1,
    statistics: str = "mean_variance",
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def batch_norm_reduce(
    x: _Array,
    *,
    mean: _Array,
    squares: _Array,
    count: _Array = None,
    channel_axis: int = 1,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def batch_norm_elementwise(
    x: _Array,
    *,
    gamma: _Array = None,
    beta: _Array = None,
    mean: _Array,
    squares: _Array,
    count: _Array,
    running_mean: _Array = None,
    running_variance: _Array = None,
    y: _Array = None,
    saved_mean: _Array = None,
    saved_spread: _Array = None,
    eps: float = 1e-5,
    momentum: float = 0.1,
    channel_axis: int = 1,
    statistics: str = "mean_variance",
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def layer_norm_backward(
    dy: _Array,
    x: _Array,
    *,
    gamma: _Array = None,
    mean: _Array = None,
    spread: _Array,
    dh: _Array = None,
    dx: _Array = None,
    dgamma: _Array = None,
    dbeta: _Array = None,
    eps: float = 0.0,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    statistics: str = "mean_rstd",
    accumulate: bool = False,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def rms_norm_backward(
    dy: _Array,
    x: _Array,
    *,
    gamma: _Array = None,
    spread: _Array = None,
    dh: _Array = None,
    dx: _Array = None,
    dgamma: _Array = None,
    eps: float = 0.0,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    accumulate: bool = False,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def batch_norm_backward(
    dy: _Array,
    x: _Array,
    *,
    gamma: _Array = None,
    mean: _Array,
    spread: _Array,
    dx: _Array = None,
    dgamma: _Array = None,
    dbeta: _Array = None,
    eps: float = 0.0,
    frozen: bool = False,
    channel_axis: int = 1,
    statistics: str = "mean_variance",
    accumulate: bool = False,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def batch_norm_reduce_backward(
    dy: _Array,
    x: _Array,
    *,
    mean: _Array,
    spread: _Array,
    sum_dy: _Array = None,
    sum_dy_xmu: _Array = None,
    count: _Array = None,
    dgamma: _Array = None,
    dbeta: _Array = None,
    channel_axis: int = 1,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def batch_norm_elementwise_backward(
    dy: _Array,
    x: _Array,
    *,
    gamma: _Array = None,
    mean: _Array,
    spread: _Array,
    sum_dy: _Array,
    sum_dy_xmu: _Array,
    count: _Array,
    dx: _Array,
    channel_axis: int = 1,
    allocate: _Allocate = None,
    stream: Optional[int] = None,
) -> None: ...
def version() -> str: ...
def implementations() -> list[str]:
    """Best first: what NORMGRAD_IMPL may name."""

def cuda_device_count() -> int: ...
def describe_cuda_device(id: int) -> dict[str, Any]: ...
