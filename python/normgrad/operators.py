"""The operators on arrays of any framework that speaks DLPack: NumPy, PyTorch, JAX, CuPy.

Results are new arrays of the framework of ``x``. ``outputs`` names what to compute: a name gives
that array, a tuple of names gives a tuple; what is not asked for is not computed. ``out`` maps
names to arrays to write to instead, of any strides. On a GPU the work is queued on the framework's
current stream. None of these functions records gradients: see ``normgrad.torch`` and
``normgrad.jax`` for that.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, TypeVar, Union, overload

from . import _core, _frameworks
from .errors import ArgumentError

__all__ = [
    "layer_norm",
    "rms_norm",
    "batch_norm",
    "batch_norm_reduce",
    "batch_norm_elementwise",
    "layer_norm_backward",
    "rms_norm_backward",
    "batch_norm_backward",
    "batch_norm_reduce_backward",
    "batch_norm_elementwise_backward",
]

ArrayT = TypeVar("ArrayT")
Out = Optional[Mapping[str, Any]]

# Which outputs an operator has, and what each is like.
LIKE_X, ROWS_OR_CHANNELS, LIKE_GAMMA = "x", "statistics", "gamma"
SUMS, COUNT = "float64", "int64"  # what the steps of a BatchNorm hand to each other
OUTPUTS: dict[str, dict[str, str]] = {
    "layer_norm": dict(
        y=LIKE_X, h=LIKE_X, x_hat=LIKE_X, mean=ROWS_OR_CHANNELS, spread=ROWS_OR_CHANNELS
    ),
    "rms_norm": dict(y=LIKE_X, h=LIKE_X, spread=ROWS_OR_CHANNELS),
    "batch_norm": dict(y=LIKE_X, mean=ROWS_OR_CHANNELS, spread=ROWS_OR_CHANNELS),
    "batch_norm_reduce": dict(mean=SUMS, squares=SUMS, count=COUNT),
    "batch_norm_elementwise": dict(
        y=LIKE_X, saved_mean=ROWS_OR_CHANNELS, saved_spread=ROWS_OR_CHANNELS
    ),
    "layer_norm_backward": dict(dx=LIKE_X, dgamma=LIKE_GAMMA, dbeta=LIKE_GAMMA),
    "rms_norm_backward": dict(dx=LIKE_X, dgamma=LIKE_GAMMA),
    "batch_norm_backward": dict(dx=LIKE_X, dgamma=LIKE_GAMMA, dbeta=LIKE_GAMMA),
    "batch_norm_reduce_backward": dict(
        sum_dy=ROWS_OR_CHANNELS,
        sum_dy_xmu=ROWS_OR_CHANNELS,
        count=COUNT,
        dgamma=ROWS_OR_CHANNELS,
        dbeta=ROWS_OR_CHANNELS,
    ),
    "batch_norm_elementwise_backward": dict(dx=LIKE_X),
}


def output_like(
    op: str, name: str, x: Any, gamma: Any, scalars: Mapping[str, Any], dtype: Any
) -> tuple[tuple[int, ...], str]:
    """Shape and type of an output that the caller did not bring; ``dtype`` tells an array's."""
    kinds = OUTPUTS[op]
    if name not in kinds:
        raise ArgumentError(f"outputs: expected names out of {', '.join(kinds)}, got '{name}'")
    shape = tuple(x.shape)
    if kinds[name] == LIKE_X:
        return shape, dtype(x)
    if kinds[name] == COUNT:
        return (1,), COUNT
    channels = "channel_axis" in scalars
    axis = scalars["channel_axis"] if channels else scalars["normalized_axes"]
    if not 0 <= axis <= len(shape) - channels:  # the library says the same of its own checks
        what = "channel_axis" if channels else "normalized_axes"
        raise ArgumentError(f"{what}: expected one of the {len(shape)} axes of x, got {axis}")
    if kinds[name] == SUMS:
        return shape[axis : axis + 1], SUMS
    if kinds[name] == ROWS_OR_CHANNELS:
        return (shape[axis : axis + 1] if channels else shape[: len(shape) - axis]), "float32"
    if gamma is not None:
        return tuple(gamma.shape), dtype(gamma)
    return (shape[axis : axis + 1] if channels else shape[len(shape) - axis :]), "float32"


def _call(
    op: str,
    arrays: dict[str, Any],
    scalars: dict[str, Any],
    outputs: Union[str, tuple[str, ...]],
    out: Out,
) -> Any:
    x = arrays["x"]
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    framework = _frameworks.of(x)
    if framework is None:
        from . import jax

        if out:
            raise ArgumentError("out: expected none, since JAX's arrays cannot be written to")
        if {SUMS, COUNT} & {OUTPUTS[op].get(name) for name in names} or "squares" in arrays:
            raise ArgumentError(
                f"x: expected no array of JAX, which has no float64 and int64 for {op}"
            )
        results = jax.call(op, arrays, scalars, names)
    else:
        operands = {}
        for name, array in arrays.items():
            if array is not None:
                framework.check(name, array)
                operands[name] = framework.operand(name, array, name.startswith("running"))
        given = dict(out or {})
        results = []
        for name in names:
            array = given.pop(name, None)
            shape, dtype = output_like(op, name, x, arrays.get("gamma"), scalars, framework.dtype)
            if array is None:
                array = framework.empty(shape, dtype, x)
            framework.check(name, array)
            operands[name] = framework.operand(name, array, True)
            results.append(array)
        if given:
            raise ArgumentError(
                f"out: expected arrays for {', '.join(names)}, got one for '{next(iter(given))}'"
            )
        if scalars.get("accumulate") and (
            missing := [
                name for name in names if name in ("dgamma", "dbeta") and name not in (out or {})
            ]
        ):
            raise ArgumentError(f"accumulate: expected '{missing[0]}' in out, to be added to")
        getattr(_core, op)(
            **operands, **scalars, allocate=framework.allocate(x), stream=framework.stream(x)
        )
    return results[0] if isinstance(outputs, str) else tuple(results)


@overload
def layer_norm(
    x: ArrayT,
    gamma: Optional[ArrayT] = ...,
    beta: Optional[ArrayT] = ...,
    *,
    residual: Optional[ArrayT] = ...,
    eps: float = ...,
    gamma_offset: float = ...,
    normalized_axes: int = ...,
    statistics: str = ...,
    outputs: str = ...,
    out: Out = ...,
) -> ArrayT: ...
@overload
def layer_norm(
    x: ArrayT,
    gamma: Optional[ArrayT] = ...,
    beta: Optional[ArrayT] = ...,
    *,
    residual: Optional[ArrayT] = ...,
    eps: float = ...,
    gamma_offset: float = ...,
    normalized_axes: int = ...,
    statistics: str = ...,
    outputs: tuple[str, ...],
    out: Out = ...,
) -> tuple[ArrayT, ...]: ...
def layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    residual: Any = None,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    statistics: str = "mean_rstd",
    outputs: Union[str, tuple[str, ...]] = "y",
    out: Out = None,
) -> Any:
    """LayerNorm over the last ``normalized_axes`` axes of ``x``::

        h     = x + residual              rounded to x's type; x itself without a residual
        x_hat = (h - mean(h)) / sqrt(variance(h) + eps)
        y     = x_hat * (gamma + gamma_offset) + beta

    Outputs: ``y``, ``h``, ``x_hat``, ``mean`` and ``spread``, which ``statistics`` defines:
    ``mean_rstd`` (1 / sqrt(variance + eps)), ``mean_variance`` (without eps) or ``x_hat_std``
    (sqrt(variance + eps)). Statistics are float32, one per row. ``y`` and ``h`` in ``out`` may be
    exactly ``x`` or ``residual``.
    """
    arrays = dict(x=x, residual=residual, gamma=gamma, beta=beta)
    scalars = dict(
        eps=eps, gamma_offset=gamma_offset, normalized_axes=normalized_axes, statistics=statistics
    )
    return _call("layer_norm", arrays, scalars, outputs, out)


@overload
def rms_norm(
    x: ArrayT,
    gamma: Optional[ArrayT] = ...,
    *,
    residual: Optional[ArrayT] = ...,
    eps: float = ...,
    gamma_offset: float = ...,
    normalized_axes: int = ...,
    outputs: str = ...,
    out: Out = ...,
) -> ArrayT: ...
@overload
def rms_norm(
    x: ArrayT,
    gamma: Optional[ArrayT] = ...,
    *,
    residual: Optional[ArrayT] = ...,
    eps: float = ...,
    gamma_offset: float = ...,
    normalized_axes: int = ...,
    outputs: tuple[str, ...],
    out: Out = ...,
) -> tuple[ArrayT, ...]: ...
def rms_norm(
    x: Any,
    gamma: Any = None,
    *,
    residual: Any = None,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    outputs: Union[str, tuple[str, ...]] = "y",
    out: Out = None,
) -> Any:
    """RMSNorm over the last ``normalized_axes`` axes of ``x``::

        h = x + residual                  rounded to x's type; x itself without a residual
        r = 1 / sqrt(mean(h^2) + eps)
        y = h * r * (gamma + gamma_offset)

    Outputs: ``y``, ``h`` and ``spread``, which is r, one float32 per row.
    """
    arrays = dict(x=x, residual=residual, gamma=gamma)
    scalars = dict(eps=eps, gamma_offset=gamma_offset, normalized_axes=normalized_axes)
    return _call("rms_norm", arrays, scalars, outputs, out)


@overload
def batch_norm(
    x: ArrayT,
    gamma: Optional[ArrayT] = ...,
    beta: Optional[ArrayT] = ...,
    *,
    running_mean: Optional[ArrayT] = ...,
    running_variance: Optional[ArrayT] = ...,
    momentum: float = ...,
    eps: float = ...,
    frozen: bool = ...,
    channel_axis: int = ...,
    statistics: str = ...,
    outputs: str = ...,
    out: Out = ...,
) -> ArrayT: ...
@overload
def batch_norm(
    x: ArrayT,
    gamma: Optional[ArrayT] = ...,
    beta: Optional[ArrayT] = ...,
    *,
    running_mean: Optional[ArrayT] = ...,
    running_variance: Optional[ArrayT] = ...,
    momentum: float = ...,
    eps: float = ...,
    frozen: bool = ...,
    channel_axis: int = ...,
    statistics: str = ...,
    outputs: tuple[str, ...],
    out: Out = ...,
) -> tuple[ArrayT, ...]: ...
def batch_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    running_mean: Any = None,
    running_variance: Any = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    frozen: bool = False,
    channel_axis: int = 1,
    statistics: str = "mean_variance",
    outputs: Union[str, tuple[str, ...]] = "y",
    out: Out = None,
) -> Any:
    """BatchNorm per channel of ``x``, means over all axes but ``channel_axis``::

        x_hat = (x - mean(x)) / sqrt(variance(x) + eps)
        y     = x_hat * gamma + beta

    In training (not ``frozen``) the running statistics are moved where they lie::

        running_mean     += momentum * (mean - running_mean)
        running_variance += momentum * (variance * n / (n - 1) - running_variance)

    ``frozen`` takes them in the place of the batch's and writes nothing but ``y``. Outputs: ``y``,
    ``mean`` and ``spread``, which ``statistics`` defines: ``mean_variance`` (biased, without eps)
    or ``mean_rstd``. JAX's arrays cannot be moved: there the outputs ``running_mean`` and
    ``running_variance`` are the new ones.
    """
    arrays = dict(
        x=x, gamma=gamma, beta=beta, running_mean=running_mean, running_variance=running_variance
    )
    scalars = dict(
        eps=eps, momentum=momentum, frozen=frozen, channel_axis=channel_axis, statistics=statistics
    )
    return _call("batch_norm", arrays, scalars, outputs, out)


def batch_norm_reduce(
    x: ArrayT,
    *,
    channel_axis: int = 1,
    outputs: tuple[str, ...] = ("mean", "squares", "count"),
    out: Out = None,
) -> tuple[ArrayT, ...]:
    """The first step of BatchNorm for a batch spread over processes, per channel of ``x``::

        mean = mean(x),  squares = sum of (x - mean)^2      of the part of this process, float64
        count = elements per channel                        one int64

    Gather all three from all processes, then call ``batch_norm_elementwise``.
    """
    return _call("batch_norm_reduce", dict(x=x), dict(channel_axis=channel_axis), outputs, out)


def batch_norm_elementwise(
    x: ArrayT,
    gamma: Optional[ArrayT] = None,
    beta: Optional[ArrayT] = None,
    *,
    mean: ArrayT,
    squares: ArrayT,
    count: ArrayT,
    running_mean: Optional[ArrayT] = None,
    running_variance: Optional[ArrayT] = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    statistics: str = "mean_variance",
    outputs: tuple[str, ...] = ("y", "saved_mean", "saved_spread"),
    out: Out = None,
) -> tuple[ArrayT, ...]:
    """The second step: what ``batch_norm`` does, with the moments of the whole batch.

    ``mean`` and ``squares`` are (P, C), ``count`` is (P): those of the P processes, of any strides.
    They are merged in float64, in an order that is a function of P alone. The outputs
    ``saved_mean`` and ``saved_spread`` are the whole batch's, as ``batch_norm``'s mean and spread.
    """
    arrays = dict(
        x=x,
        gamma=gamma,
        beta=beta,
        mean=mean,
        squares=squares,
        count=count,
        running_mean=running_mean,
        running_variance=running_variance,
    )
    scalars = dict(eps=eps, momentum=momentum, channel_axis=channel_axis, statistics=statistics)
    return _call("batch_norm_elementwise", arrays, scalars, outputs, out)


def layer_norm_backward(
    dy: ArrayT,
    x: ArrayT,
    gamma: Optional[ArrayT] = None,
    *,
    mean: Optional[ArrayT] = None,
    spread: ArrayT,
    dh: Optional[ArrayT] = None,
    eps: float = 0.0,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    statistics: str = "mean_rstd",
    accumulate: bool = False,
    outputs: tuple[str, ...] = ("dx", "dgamma", "dbeta"),
    out: Out = None,
) -> tuple[ArrayT, ...]:
    """The gradient of LayerNorm::

        g      = dy * (gamma + gamma_offset)
        dx     = r * (g - mean(g) - x_hat * mean(g * x_hat)) + dh      means over the row
        dgamma = sum of dy * x_hat over all rows
        dbeta  = sum of dy over all rows

    ``mean`` and ``spread`` are what ``layer_norm`` saved; with ``x_hat_std`` ``x`` is x_hat. ``eps``
    belongs to ``mean_variance`` alone. After a fused sum ``x`` is h, and ``dh`` the gradient that
    reached h by other ways. ``accumulate`` adds dgamma and dbeta to what is in ``out``. ``dx`` in
    ``out`` may be exactly ``dy``, ``x`` or ``dh``.
    """
    arrays = dict(dy=dy, x=x, gamma=gamma, mean=mean, spread=spread, dh=dh)
    scalars = dict(
        eps=eps,
        gamma_offset=gamma_offset,
        normalized_axes=normalized_axes,
        statistics=statistics,
        accumulate=accumulate,
    )
    return _call("layer_norm_backward", arrays, scalars, outputs, out)


def rms_norm_backward(
    dy: ArrayT,
    x: ArrayT,
    gamma: Optional[ArrayT] = None,
    *,
    spread: Optional[ArrayT] = None,
    dh: Optional[ArrayT] = None,
    eps: float = 0.0,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
    accumulate: bool = False,
    outputs: tuple[str, ...] = ("dx", "dgamma"),
    out: Out = None,
) -> tuple[ArrayT, ...]:
    """The gradient of RMSNorm, with x_hat = x * r::

        g      = dy * (gamma + gamma_offset)
        dx     = r * (g - x_hat * mean(g * x_hat)) + dh                means over the row
        dgamma = sum of dy * x_hat over all rows

    ``spread`` is r as ``rms_norm`` saved it; without it r = 1 / sqrt(mean(x^2) + eps) is made again.
    ``dh``, ``accumulate`` and ``out``: as in ``layer_norm_backward``.
    """
    arrays = dict(dy=dy, x=x, gamma=gamma, spread=spread, dh=dh)
    scalars = dict(
        eps=eps, gamma_offset=gamma_offset, normalized_axes=normalized_axes, accumulate=accumulate
    )
    return _call("rms_norm_backward", arrays, scalars, outputs, out)


def batch_norm_backward(
    dy: ArrayT,
    x: ArrayT,
    gamma: Optional[ArrayT] = None,
    *,
    mean: ArrayT,
    spread: ArrayT,
    eps: float = 0.0,
    frozen: bool = False,
    channel_axis: int = 1,
    statistics: str = "mean_variance",
    accumulate: bool = False,
    outputs: tuple[str, ...] = ("dx", "dgamma", "dbeta"),
    out: Out = None,
) -> tuple[ArrayT, ...]:
    """The gradient of BatchNorm::

        dx     = gamma * r * (dy - mean(dy) - x_hat * mean(dy * x_hat))
        dgamma = sum of dy * x_hat,  dbeta = sum of dy

    over all axes but ``channel_axis``; ``frozen``: dx = gamma * r * dy. ``mean`` and ``spread`` are
    what ``batch_norm`` saved, or the running statistics; ``eps`` belongs to ``mean_variance`` alone.
    """
    arrays = dict(dy=dy, x=x, gamma=gamma, mean=mean, spread=spread)
    scalars = dict(
        eps=eps,
        frozen=frozen,
        channel_axis=channel_axis,
        statistics=statistics,
        accumulate=accumulate,
    )
    return _call("batch_norm_backward", arrays, scalars, outputs, out)


def batch_norm_reduce_backward(
    dy: ArrayT,
    x: ArrayT,
    *,
    mean: ArrayT,
    spread: ArrayT,
    channel_axis: int = 1,
    outputs: tuple[str, ...] = ("sum_dy", "sum_dy_xmu", "dgamma", "dbeta"),
    out: Out = None,
) -> tuple[ArrayT, ...]:
    """The first step of BatchNorm's gradient for a batch spread over processes::

        sum_dy = sum of dy,  sum_dy_xmu = sum of dy * (x - mean)

    ``mean`` and ``spread`` (rstd) are those of the whole batch; dgamma and dbeta those of this
    process; ``count``, an output for those who ask, its elements per channel as one int64. Gather
    the sums from all processes, or add them up, then call ``batch_norm_elementwise_backward``.
    Sums are float32 unless ``out`` says float64.
    """
    arrays = dict(dy=dy, x=x, mean=mean, spread=spread)
    return _call(
        "batch_norm_reduce_backward", arrays, dict(channel_axis=channel_axis), outputs, out
    )


def batch_norm_elementwise_backward(
    dy: ArrayT,
    x: ArrayT,
    gamma: Optional[ArrayT] = None,
    *,
    mean: ArrayT,
    spread: ArrayT,
    sum_dy: ArrayT,
    sum_dy_xmu: ArrayT,
    count: ArrayT,
    channel_axis: int = 1,
    out: Out = None,
) -> ArrayT:
    """The second step::

        dx = gamma * r * (dy - sum_dy / n - x_hat * r * sum_dy_xmu / n),  n = sum of count

    ``sum_dy`` and ``sum_dy_xmu`` are (C), of the whole batch, or (P, C), of each process, which are
    added up in float64 in an order that is a function of P alone. ``count`` holds the elements per
    channel of each process, as int64, int32 or float32.
    """
    arrays = dict(
        dy=dy,
        x=x,
        gamma=gamma,
        mean=mean,
        spread=spread,
        sum_dy=sum_dy,
        sum_dy_xmu=sum_dy_xmu,
        count=count,
    )
    return _call(
        "batch_norm_elementwise_backward", arrays, dict(channel_axis=channel_axis), "dx", out
    )
