"""normgrad.jax: values, gradients, jit, vmap, shard_map."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("normgrad._xla", reason="normgrad was built without jaxlib")

import jax.numpy as jnp  # noqa: E402

import normgrad  # noqa: E402
import normgrad.jax as nj  # noqa: E402

KEYS = jax.random.split(jax.random.key(0), 8)
X, WEIGHTS, RESIDUAL = (jax.random.normal(key, (4, 6, 16)) for key in KEYS[:3])
GAMMA, BETA = (jax.random.normal(key, (16,)) for key in KEYS[3:5])
CHANNELS = (jnp.arange(1.0, 7.0), jnp.ones(6))


def layer_norm(x, gamma, beta):  # type: ignore
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def rms_norm(x, gamma):  # type: ignore
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gamma


def batch_norm(x, gamma, beta):  # type: ignore
    mean = x.mean((0, 2), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2), keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * gamma[:, None] + beta[:, None]


def close(a, b, tolerance=2e-5):  # type: ignore
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert p.dtype == q.dtype
        np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance)


def gradients(function, arguments):  # type: ignore
    loss = lambda *a: (function(*a) * WEIGHTS).sum()  # noqa: E731
    return jax.grad(loss, tuple(range(len(arguments))))(*arguments)


@pytest.mark.parametrize(
    "ours, plain, arguments",
    [
        (nj.layer_norm, layer_norm, (X, GAMMA, BETA)),
        (nj.rms_norm, rms_norm, (X, GAMMA)),
        (lambda *a: nj.batch_norm(*a)[0], batch_norm, (X, *CHANNELS)),
        (
            lambda x, g, b: nj.batch_norm(
                x, g, b, jnp.full(6, 0.5), jnp.full(6, 2.0), training=False
            )[0],
            lambda x, g, b: (x - 0.5) / jnp.sqrt(2 + 1e-5) * g[:, None] + b[:, None],
            (X, *CHANNELS),
        ),
        (
            lambda x, r, g: sum(nj.add_rms_norm(x, r, g)),
            lambda x, r, g: rms_norm(x + r, g) + x + r,
            (X, RESIDUAL, GAMMA),
        ),
        (
            lambda x, r, g, b: sum(nj.add_layer_norm(x, r, g, b)),
            lambda x, r, g, b: layer_norm(x + r, g, b) + x + r,
            (X, RESIDUAL, GAMMA, BETA),
        ),
    ],
    ids=["layer_norm", "rms_norm", "batch_norm", "frozen", "add_rms_norm", "add_layer_norm"],
)
def test_values_and_gradients(ours, plain, arguments):  # type: ignore
    close(ours(*arguments), plain(*arguments))
    close(jax.jit(ours)(*arguments), plain(*arguments))
    want = gradients(plain, arguments)
    close(gradients(ours, arguments), want)
    close(jax.jit(lambda *a: gradients(ours, a))(*arguments), want)


def test_vmap():  # type: ignore
    close(jax.vmap(nj.layer_norm, (0, None, None))(X, GAMMA, BETA), layer_norm(X, GAMMA, BETA))
    many = jax.random.normal(KEYS[5], (4, 16))
    close(jax.vmap(nj.rms_norm)(X, many), jax.vmap(rms_norm)(X, many))
    close(jax.vmap(jax.vmap(nj.rms_norm, (0, None)), (0, None))(X, GAMMA), rms_norm(X, GAMMA))
    per_example = lambda f: jax.vmap(  # noqa: E731
        jax.grad(lambda x, g, w: (f(x, g) * w).sum(), (0, 1)), (0, None, 0)
    )(X, GAMMA, WEIGHTS)
    close(per_example(nj.rms_norm), per_example(rms_norm))
    close(jax.vmap(nj.rms_norm, 1, 1)(X), jnp.swapaxes(nj.rms_norm(jnp.swapaxes(X, 0, 1)), 0, 1))


def test_running_statistics_are_new_arrays():  # type: ignore
    mean, variance = jnp.zeros(6), jnp.ones(6)
    _, new_mean, new_variance = nj.batch_norm(X, *CHANNELS, mean, variance)
    close(new_mean, 0.1 * X.mean((0, 2)))
    close(new_variance, 0.9 + 0.1 * X.var((0, 2), ddof=1))
    close((mean, variance), (jnp.zeros(6), jnp.ones(6)), 0.0)
    normgrad.batch_norm(X, running_mean=mean, running_variance=variance)
    close((mean, variance), (jnp.zeros(6), jnp.ones(6)), 0.0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit(dtype):  # type: ignore
    x = X.astype(dtype)
    y = nj.layer_norm(x, GAMMA, BETA)
    assert y.dtype == dtype
    np.testing.assert_allclose(
        y.astype("float32"), layer_norm(x.astype("float32"), GAMMA, BETA), rtol=2.0**-7, atol=1e-3
    )
    dx, dgamma = jax.grad(lambda x, g: nj.rms_norm(x, g).astype("float32").sum(), (0, 1))(x, GAMMA)
    assert dx.dtype == dtype and dgamma.dtype == jnp.float32


def test_dlpack_front_end_takes_jax():  # type: ignore
    y, mean, rstd = normgrad.layer_norm(X, GAMMA, BETA, outputs=("y", "mean", "spread"))
    assert isinstance(y, jax.Array)
    dx, dgamma, dbeta = normgrad.layer_norm_backward(WEIGHTS, X, GAMMA, mean=mean, spread=rstd)
    close((dx, dgamma, dbeta), gradients(layer_norm, (X, GAMMA, BETA)))


def test_refusals():  # type: ignore
    with pytest.raises(normgrad.ArrayTypeError, match="x: expected float32"):
        nj.rms_norm(X.astype("int32"))
    with pytest.raises(Exception, match=r"gamma: expected 16 elements.*\(3\)"):
        nj.rms_norm(X, GAMMA[:3]).block_until_ready()
    with pytest.raises(normgrad.ArgumentError, match="out: expected none"):
        normgrad.rms_norm(X, out={"y": X})


def test_shard_map_example():  # type: ignore
    example = pathlib.Path(__file__).parents[2] / "examples/jax_shard_map.py"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, example], env={**os.environ, **flags}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "4 devices" in done.stdout
