"""JAX's front end: LayerNorm, RMSNorm and BatchNorm as XLA FFI calls with gradients, under ``jit``,
``grad``, ``vmap`` and ``shard_map``.

Under ``vmap`` every array gets the batch's axis, and the handler walks over it: one call of XLA.
Inside ``shard_map`` the gradients of parameters are those of the shard: ``psum`` them, as
examples/jax_shard_map.py does.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Optional

import jax
import numpy

from .errors import ArgumentError, ArrayTypeError, DeviceError
from .operators import output_like

try:
    from . import _xla
except ImportError as error:
    raise DeviceError(
        "normgrad.jax: this build has no XLA handlers; build it with NORMGRAD_JAX=1 pip install .",
        "unsupported_device",
    ) from error

__all__ = ["layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm", "batch_norm", "call"]

Array = jax.Array

jax.ffi.register_ffi_target("normgrad", _xla.cpu, platform="cpu")
jax.ffi.register_ffi_target("normgrad", _xla.cuda, platform="CUDA")

_DTYPES = ("float32", "float16", "bfloat16")
_AXIS = "channel_axis"


def call(
    op: str,
    arrays: Mapping[str, Optional[Array]],
    scalars: Mapping[str, Any],
    names: tuple[str, ...],
    like: Mapping[str, Array] = {},
) -> list[Array]:
    """One operator of ``normgrad.operators`` on JAX's arrays, without a gradient of its own.

    ``like`` gives outputs the shape and type of an array. In training the running statistics are
    never written to: the new ones are outputs.
    """
    given = {name: array for name, array in arrays.items() if array is not None}
    for name, array in given.items():
        if array.dtype.name not in _DTYPES and name != "count":
            raise ArrayTypeError(
                f"{name}: expected {', '.join(_DTYPES)}, got {array.dtype.name}", "bad_dtype"
            )
    if scalars.get("accumulate"):
        raise ArgumentError("accumulate: expected False, since JAX's arrays cannot be written to")
    x = given.pop("x")
    moved = {name: given[name] for name in given if name.startswith("running")}
    if scalars.get("frozen"):
        moved = {}
    like = {**moved, **like}
    outputs = (*names, *(name for name in moved if name not in names))
    results = [
        jax.ShapeDtypeStruct(
            *(
                (like[name].shape, like[name].dtype)
                if name in like
                else output_like(op, name, x, given.get("gamma"), scalars, _name)
            )
        )
        for name in outputs
    ]
    values = jax.ffi.ffi_call("normgrad", results, vmap_method="broadcast_all")(
        x,
        *given.values(),
        op=op,
        inputs=",".join(("x", *given)),
        outputs=",".join(outputs),
        statistics=scalars.get("statistics", "mean_rstd"),
        rank=numpy.int64(x.ndim),
        axis=numpy.int64(scalars[_AXIS if _AXIS in scalars else "normalized_axes"]),
        eps=numpy.float64(scalars.get("eps", 0.0)),
        gamma_offset=numpy.float64(scalars.get("gamma_offset", 0.0)),
        momentum=numpy.float64(scalars.get("momentum", 0.0)),
        frozen=bool(scalars.get("frozen", False)),
    )
    return list(values[: len(names)])


def _name(array: Array) -> str:
    return array.dtype.name


# LayerNorm and RMSNorm: with a residual the result is (y, h), without one y.


def _rows(op: str, scalars: dict[str, Any], x, residual, gamma, beta, save):  # type: ignore
    statistics = (("spread",) if op == "rms_norm" else ("mean", "spread")) if save else ()
    names = ("y",) if residual is None else ("y", "h")
    arrays = dict(x=x, residual=residual, gamma=gamma)
    if op == "layer_norm":
        arrays["beta"] = beta
    results = call(op, arrays, scalars, names + statistics)
    result = results[0] if residual is None else (results[0], results[1])
    h = x if residual is None else results[1]
    return result, (h, gamma, beta, *results[len(names) :])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rows_norm(op, scalars, x, residual, gamma, beta):  # type: ignore
    return _rows(op, dict(scalars), x, residual, gamma, beta, save=False)[0]


def _rows_forward(op, scalars, x, residual, gamma, beta):  # type: ignore
    return _rows(op, dict(scalars), x, residual, gamma, beta, save=True)


def _rows_backward(op, scalars, saved, gradient):  # type: ignore
    x, gamma, beta, *mean, spread = saved
    fused = isinstance(gradient, (tuple, list))
    dy, dh = gradient if fused else (gradient, None)
    given = dict(dx=x, dgamma=gamma, dbeta=beta)
    names = tuple(name for name, array in given.items() if array is not None)
    arrays = dict(x=x, dy=dy, gamma=gamma, spread=spread, dh=dh)
    if mean:
        arrays["mean"] = mean[0]
    options = dict(scalars, eps=0.0)  # rstd has it
    like = {name: given[name] for name in names}
    results = dict(zip(names, call(f"{op}_backward", arrays, options, names, like)))
    dx = results["dx"]
    return dx, dx if fused else None, results.get("dgamma"), results.get("dbeta")


_rows_norm.defvjp(_rows_forward, _rows_backward)


def _row_scalars(eps: float, gamma_offset: float, normalized_axes: int) -> Any:
    """Hashable, as jit wants it."""
    return (("eps", eps), ("gamma_offset", gamma_offset), ("normalized_axes", normalized_axes))


def layer_norm(
    x: Array,
    gamma: Optional[Array] = None,
    beta: Optional[Array] = None,
    *,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
) -> Array:
    """LayerNorm over the last ``normalized_axes`` axes, with its gradient::

    y  = x_hat * (gamma + gamma_offset) + beta,  x_hat = (x - mean) / sqrt(variance + eps)
    dx = r * (g - mean(g) - x_hat * mean(g * x_hat)),  g = dy * (gamma + gamma_offset)
    dgamma = sum of dy * x_hat,  dbeta = sum of dy
    """
    scalars = _row_scalars(eps, gamma_offset, normalized_axes)
    return _rows_norm("layer_norm", scalars, x, None, gamma, beta)


def add_layer_norm(
    x: Array,
    residual: Array,
    gamma: Optional[Array] = None,
    beta: Optional[Array] = None,
    *,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
) -> tuple[Array, Array]:
    """h = x + residual, and LayerNorm of h: gives (y, h). What reaches h by other ways, dh, is added
    to dx, which is the residual's gradient, too."""
    scalars = _row_scalars(eps, gamma_offset, normalized_axes)
    return _rows_norm("layer_norm", scalars, x, residual, gamma, beta)


def rms_norm(
    x: Array,
    gamma: Optional[Array] = None,
    *,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
) -> Array:
    """RMSNorm over the last ``normalized_axes`` axes, with its gradient::

    y  = x_hat * (gamma + gamma_offset),  x_hat = x * r,  r = 1 / sqrt(mean(x^2) + eps)
    dx = r * (g - x_hat * mean(g * x_hat)),  g = dy * (gamma + gamma_offset)
    dgamma = sum of dy * x_hat
    """
    scalars = _row_scalars(eps, gamma_offset, normalized_axes)
    return _rows_norm("rms_norm", scalars, x, None, gamma, None)


def add_rms_norm(
    x: Array,
    residual: Array,
    gamma: Optional[Array] = None,
    *,
    eps: float = 1e-5,
    gamma_offset: float = 0.0,
    normalized_axes: int = 1,
) -> tuple[Array, Array]:
    """h = x + residual, and RMSNorm of h: gives (y, h), as ``add_layer_norm`` does."""
    scalars = _row_scalars(eps, gamma_offset, normalized_axes)
    return _rows_norm("rms_norm", scalars, x, residual, gamma, None)


# BatchNorm: the result is (y, running_mean, running_variance).


def _batch(scalars, x, gamma, beta, running_mean, running_variance, save):  # type: ignore
    options = dict(scalars)
    running = dict(running_mean=running_mean, running_variance=running_variance)
    moved = () if running_mean is None or options["frozen"] else tuple(running)
    statistics = ("mean", "spread") if save and not options["frozen"] else ()
    results = call(
        "batch_norm",
        dict(x=x, gamma=gamma, beta=beta, **running),
        dict(options, statistics="mean_rstd"),
        ("y", *moved, *statistics),
    )
    new = tuple(results[1:3]) if moved else (running_mean, running_variance)
    kept = (
        (running_mean, running_variance) if options["frozen"] else tuple(results[1 + len(moved) :])
    )
    return (results[0], *new), (x, gamma, beta, running_mean, running_variance, *kept)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _batch_norm(scalars, x, gamma, beta, running_mean, running_variance):  # type: ignore
    return _batch(scalars, x, gamma, beta, running_mean, running_variance, save=False)[0]


def _batch_norm_forward(scalars, x, gamma, beta, running_mean, running_variance):  # type: ignore
    return _batch(scalars, x, gamma, beta, running_mean, running_variance, save=True)


def _batch_norm_backward(scalars, saved, gradient):  # type: ignore
    x, gamma, beta, running_mean, running_variance, mean, spread = saved
    options = dict(scalars)
    frozen = options["frozen"]
    given = dict(dx=x, dgamma=gamma, dbeta=beta)
    names = tuple(name for name, array in given.items() if array is not None)
    results = call(
        "batch_norm_backward",
        dict(x=x, dy=gradient[0], gamma=gamma, mean=mean, spread=spread),
        dict(
            frozen=frozen,
            eps=options["eps"] if frozen else 0.0,
            channel_axis=options[_AXIS],
            statistics="mean_variance" if frozen else "mean_rstd",
        ),
        names,
        {name: given[name] for name in names},
    )
    values = dict(zip(names, results))
    none = (
        None if statistic is None else jax.numpy.zeros_like(statistic)
        for statistic in (running_mean, running_variance)
    )
    return values["dx"], values.get("dgamma"), values.get("dbeta"), *none


_batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def batch_norm(
    x: Array,
    gamma: Optional[Array] = None,
    beta: Optional[Array] = None,
    running_mean: Optional[Array] = None,
    running_variance: Optional[Array] = None,
    *,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
) -> tuple[Array, Optional[Array], Optional[Array]]:
    """BatchNorm per channel with its gradient: gives (y, running_mean, running_variance), the new
    running statistics::

        y  = x_hat * gamma + beta,  x_hat = (x - mean) / sqrt(variance + eps)
        dx = gamma * r * (dy - mean(dy) - x_hat * mean(dy * x_hat)),  gamma * r * dy if not training
        dgamma = sum of dy * x_hat,  dbeta = sum of dy

    Nothing flows back through the running statistics.
    """
    scalars = (
        ("frozen", not training),
        ("momentum", momentum),
        ("eps", eps),
        (_AXIS, channel_axis),
    )
    return _batch_norm(scalars, x, gamma, beta, running_mean, running_variance)
