"""The operators on NumPy's arrays and other DLPack objects."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normgrad


def data(*shape, seed=0, dtype="float32"):  # type: ignore
    return np.random.default_rng(seed).normal(0.3, 1.0, shape).astype(dtype)


def layer_norm(x, gamma=1.0, beta=0.0, eps=1e-5):  # type: ignore
    x = np.asarray(x, "float64")
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x_hat = (x - mean) / np.sqrt(variance + eps)
    return x_hat * gamma + beta, x_hat, mean[..., 0], variance[..., 0]


def layer_norm_backward(dy, x, gamma=1.0, eps=1e-5, rms=False):  # type: ignore
    dy, x = np.asarray(dy, "float64"), np.asarray(x, "float64")
    mean = 0 if rms else x.mean(-1, keepdims=True)
    r = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    x_hat, g = (x - mean) * r, dy * gamma
    dx = g - (0 if rms else g.mean(-1, keepdims=True)) - x_hat * (g * x_hat).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return dx * r, (dy * x_hat).sum(rows), dy.sum(rows)


def close(a, b, tolerance=1e-5):  # type: ignore
    np.testing.assert_allclose(np.asarray(a, "float64"), b, rtol=tolerance, atol=tolerance)


def test_layer_norm_has_every_output():
    x, gamma, beta, residual = (
        data(5, 3, 16),
        data(16, seed=1),
        data(16, seed=2),
        data(5, 3, 16, seed=3),
    )
    names = ("y", "h", "x_hat", "mean", "spread")
    y, h, x_hat, mean, rstd = normgrad.layer_norm(x, gamma, beta, residual=residual, outputs=names)
    want = layer_norm(x + residual, gamma, beta)
    assert y.dtype == np.float32 and mean.shape == (5, 3) and np.array_equal(h, x + residual)
    close(y, want[0]), close(x_hat, want[1]), close(mean, want[2])
    close(rstd, 1 / np.sqrt(want[3] + 1e-5))
    variance = normgrad.layer_norm(x, outputs="spread", statistics="mean_variance")
    close(variance, layer_norm(x)[3])
    assert np.array_equal(
        normgrad.layer_norm(x, gamma - 1, beta, gamma_offset=1.0),
        normgrad.layer_norm(x, (gamma - 1) + 1, beta),
    )


def test_every_form_of_the_statistics_gives_the_gradient():
    x, dy, gamma = data(7, 24), data(7, 24, seed=1), data(24, seed=2)
    want = layer_norm_backward(dy, x, gamma)
    for form, eps in (("mean_rstd", 0.0), ("mean_variance", 1e-5)):
        mean, spread = normgrad.layer_norm(x, outputs=("mean", "spread"), statistics=form)
        got = normgrad.layer_norm_backward(
            dy, x, gamma, mean=mean, spread=spread, statistics=form, eps=eps
        )
        for a, b in zip(got, want):
            close(a, b)
    x_hat, std = normgrad.layer_norm(x, outputs=("x_hat", "spread"), statistics="x_hat_std")
    got = normgrad.layer_norm_backward(dy, x_hat, gamma, spread=std, statistics="x_hat_std")
    for a, b in zip(got, want):
        close(a, b)
    rstd = normgrad.rms_norm(x, gamma, outputs="spread")
    want = layer_norm_backward(dy, x, gamma, rms=True)
    for given_rstd, eps in ((rstd, 0.0), (None, 1e-5)):
        got = normgrad.rms_norm_backward(dy, x, gamma, spread=given_rstd, eps=eps)
        close(got[0], want[0]), close(got[1], want[1])


def test_outputs_choose_and_out_is_written():
    x, dy = data(6, 8), data(6, 8, seed=1)
    dgamma, dx = normgrad.rms_norm_backward(dy, x, eps=1e-5, outputs=("dgamma", "dx"))
    place = np.zeros((8, 6), "float32").T  # strided
    (result,) = normgrad.rms_norm_backward(dy, x, eps=1e-5, outputs=("dx",), out={"dx": place})
    assert result is place and np.array_equal(place, dx)
    again = dy.copy()
    normgrad.rms_norm_backward(again, x, eps=1e-5, outputs=("dx",), out={"dx": again})
    assert np.array_equal(again, dx)
    total = np.full(8, 2.0, "float32")
    normgrad.rms_norm_backward(
        dy, x, eps=1e-5, outputs=("dgamma",), out={"dgamma": total}, accumulate=True
    )
    close(total, dgamma + 2.0, 1e-6)
    y = x.copy()
    normgrad.layer_norm(y, out={"y": y})
    assert np.array_equal(y, normgrad.layer_norm(x))


def test_residual_gradient():
    x, dy, dh = data(6, 8), data(6, 8, seed=1), data(6, 8, seed=2)
    (plain,) = normgrad.rms_norm_backward(dy, x, eps=1e-5, outputs=("dx",))
    (fused,) = normgrad.rms_norm_backward(dy, x, eps=1e-5, dh=dh, outputs=("dx",))
    close(fused, plain.astype("float64") + dh, 1e-6)


def test_batch_norm_moves_running_statistics():
    x, gamma, beta = data(4, 5, 6), data(5, seed=1), data(5, seed=2)
    mean, variance = np.zeros(5, "float32"), np.ones(5, "float32")
    y = normgrad.batch_norm(x, gamma, beta, running_mean=mean, running_variance=variance)
    wide = np.moveaxis(x, 1, 0).reshape(5, -1).astype("float64")
    close(mean, 0.1 * wide.mean(1)), close(variance, 0.9 + 0.1 * wide.var(1, ddof=1))
    flat = (wide - wide.mean(1)[:, None]) / np.sqrt(wide.var(1) + 1e-5)[:, None]
    close(np.moveaxis(y, 1, 0).reshape(5, -1), flat * gamma[:, None] + beta[:, None])
    frozen = normgrad.batch_norm(x, running_mean=mean, running_variance=variance, frozen=True)
    close(frozen, (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5))
    last = normgrad.batch_norm(np.moveaxis(x, 1, -1), gamma, beta, channel_axis=2)
    close(np.moveaxis(last, -1, 1), y, 1e-6)


def test_batch_norm_forward_in_two_steps_is_one_step():
    x, gamma, beta = data(8, 3, 5), data(3, seed=1), data(3, seed=2)
    running = [np.zeros(3, "float32"), np.ones(3, "float32")]
    names = dict(zip(("running_mean", "running_variance"), running))
    y, mean, variance = normgrad.batch_norm(
        x, gamma, beta, outputs=("y", "mean", "spread"), **names
    )
    parts = [slice(0, 3), slice(3, 3), slice(3, 8)]
    messages = np.full((3, 8), np.nan)  # [tag, count, mean, squares], as processes would send them
    counts = messages.view("int64")[:, 1]
    for part, message in zip(parts, messages):
        out = dict(mean=message[2:5], squares=message[5:], count=message.view("int64")[1:2])
        normgrad.batch_norm_reduce(x[part], out=out)
    assert counts.tolist() == [15, 0, 25]
    for part in parts:
        moved = [np.zeros(3, "float32"), np.ones(3, "float32")]
        got, whole_mean, whole_variance = normgrad.batch_norm_elementwise(
            x[part],
            gamma,
            beta,
            mean=messages[:, 2:5],
            squares=messages[:, 5:],
            count=counts,
            running_mean=moved[0],
            running_variance=moved[1],
        )
        close(got, y[part], 1e-6), close(whole_mean, mean, 1e-6), close(
            whole_variance, variance, 1e-6
        )
        close(moved[0], running[0], 1e-6), close(moved[1], running[1], 1e-6)


def test_what_the_steps_refuse():
    x = data(4, 3)
    mean, squares, count = normgrad.batch_norm_reduce(x)
    assert mean.dtype == squares.dtype == "float64" and count.dtype == "int64" and count == [4]
    steps = dict(mean=mean[None], squares=squares[None], count=count)
    for wrong, message in [
        (
            dict(count=count.astype("float64")),
            "count: expected float32.*int64 or int32, got float64",
        ),
        (dict(mean=mean[None].astype("int64")), "mean: expected float32"),
        (dict(squares=squares[None, :2]), "squares: expected"),
    ]:
        with pytest.raises(normgrad.Error, match=message):
            normgrad.batch_norm_elementwise(x, **{**steps, **wrong})


def test_batch_norm_in_two_steps_is_one_step():
    x, dy, gamma = data(8, 3, 5), data(8, 3, 5, seed=1), data(3, seed=2)
    mean, rstd = normgrad.batch_norm(x, outputs=("mean", "spread"), statistics="mean_rstd")
    dx, dgamma, _ = normgrad.batch_norm_backward(
        dy, x, gamma, mean=mean, spread=rstd, statistics="mean_rstd"
    )
    sums, parts = 0, [slice(0, 3), slice(3, 8)]
    for part in parts:
        sum_dy, sum_dy_xmu, *_ = normgrad.batch_norm_reduce_backward(
            dy[part], x[part], mean=mean, spread=rstd
        )
        sums = sums + np.stack([sum_dy, sum_dy_xmu])
    for part in parts:
        got = normgrad.batch_norm_elementwise_backward(
            dy[part],
            x[part],
            gamma,
            mean=mean,
            spread=rstd,
            sum_dy=sums[0],
            sum_dy_xmu=sums[1],
            count=np.array([15, 25], "int32"),
        )
        close(got, dx[part])
    close(dgamma, sums[1] * rstd)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = data(4, 32).astype(ml_dtypes.bfloat16)
    y, mean = normgrad.layer_norm(x, outputs=("y", "mean"))
    assert y.dtype == ml_dtypes.bfloat16 and mean.dtype == np.float32
    close(y.astype("float32"), layer_norm(x.astype("float64"))[0], 2.0**-8)


def test_float16_and_mixed_types():
    x, gamma = data(4, 32, dtype="float16"), data(32, seed=1)
    dx, dgamma = normgrad.rms_norm_backward(x, x, gamma, eps=1e-5)
    assert dx.dtype == np.float16 and dgamma.dtype == np.float32


def test_read_only_inputs_are_fine_and_outputs_refused():
    x = data(4, 8)
    x.flags.writeable = False
    close(normgrad.layer_norm(x), layer_norm(x)[0])
    with pytest.raises(normgrad.ArgumentError, match="y: expected an array to write to"):
        normgrad.layer_norm(x, out={"y": x})


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    steps=st.lists(st.sampled_from([-2, -1, 1, 3]), min_size=5, max_size=5),
    axes=st.randoms(use_true_random=False),
)
def test_any_strides(shape, steps, axes):  # type: ignore
    """Views with negative and large steps and axes in any order equal their contiguous copies."""
    order = list(range(len(shape)))
    axes.shuffle(order)
    whole = data(*[3 * n for n in shape], seed=len(shape))
    view = whole[tuple(slice(None, None, step) for step in steps[: len(shape)])]
    view = view[tuple(slice(0, n) for n in shape)].transpose(order)
    copy = np.ascontiguousarray(view)
    assert np.array_equal(normgrad.layer_norm(view), normgrad.layer_norm(copy))
    a, b = (normgrad.rms_norm_backward(t, t, eps=1e-3) for t in (view, copy))
    assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


class OnlyDLPack:
    """An array of a framework nobody knows."""

    def __init__(self, array, versioned=True):  # type: ignore
        self.array, self.shape, self.dtype, self.device = array, array.shape, array.dtype, "cpu"
        self.versioned = versioned

    def __dlpack_device__(self):  # type: ignore
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments):  # type: ignore
        if not self.versioned and "max_version" in arguments:
            raise TypeError("max_version")
        return self.array.__dlpack__(**arguments)

    def __array_namespace__(self):  # type: ignore
        return np


@pytest.mark.parametrize("versioned", [False, True])
def test_any_dlpack_object(versioned):  # type: ignore
    x = data(4, 8)
    y = normgrad.layer_norm(OnlyDLPack(x, versioned), OnlyDLPack(data(8, seed=1), versioned))
    assert np.array_equal(y, normgrad.layer_norm(x, data(8, seed=1)))


@pytest.mark.parametrize(
    "call, kind, sentence",
    [
        (
            lambda x: normgrad.layer_norm(x.astype("float64")),
            TypeError,
            "x: expected float32.*float64",
        ),
        (
            lambda x: normgrad.layer_norm(x, x[0, :3]),
            ValueError,
            r"gamma: expected 8 elements.*\(3\)",
        ),
        (lambda x: normgrad.layer_norm(x, eps=-1.0), ValueError, "eps: expected a finite value"),
        (
            lambda x: normgrad.layer_norm(x, normalized_axes=3),
            ValueError,
            "normalized_axes: expected",
        ),
        (lambda x: normgrad.layer_norm(x, outputs="z"), ValueError, "outputs: expected.*'z'"),
        (lambda x: normgrad.layer_norm(x, statistics="std"), ValueError, "statistics: expected"),
        (lambda x: normgrad.layer_norm([1.0]), TypeError, "x: expected an array with __dlpack__"),
        (lambda x: normgrad.layer_norm(x, [1.0]), TypeError, "gamma: expected an array"),
        (lambda x: normgrad.layer_norm(x, out={"h": x}), ValueError, "out: expected.*'h'"),
        (lambda x: normgrad.layer_norm(x, x[0], out={"y": x[:, ::-1]}), ValueError, "y: overlaps"),
        (lambda x: normgrad.rms_norm_backward(x[:2], x), ValueError, "dy: expected shape"),
        (lambda x: normgrad.rms_norm_backward(x, x, accumulate=True), ValueError, "accumulate"),
        (lambda x: normgrad.batch_norm(x, channel_axis=2), ValueError, "channel_axis"),
        (lambda x: normgrad.batch_norm(x, frozen=True), ValueError, "running_mean"),
        (lambda x: normgrad.layer_norm(x.astype(">f4")), TypeError, "native byte order"),
    ],
)
def test_refusals(call, kind, sentence):  # type: ignore
    x = data(4, 8)
    before = x.copy()
    with pytest.raises(normgrad.Error, match=sentence) as caught:
        call(x)
    assert isinstance(caught.value, kind) and caught.value.code != "ok"
    assert np.array_equal(x, before)


def test_threads_share_plans():
    """Many threads, few shapes: every result is that of one thread."""
    inputs = [data(50 + i, 64, seed=i) for i in range(4)]
    expected = [normgrad.layer_norm(x) for x in inputs]
    wrong = []

    def work(index):  # type: ignore
        for _ in range(50):
            if not np.array_equal(normgrad.layer_norm(inputs[index]), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_shapes_than_the_cache_holds():
    x = data(1, 5000)
    for cols in range(1, 4500):
        y = normgrad.rms_norm(x[:, :cols])
    close(y, x[:, :4499] / np.sqrt((x[:, :4499].astype("float64") ** 2).mean() + 1e-5))


def test_package_is_whole():
    """What is loaded beside NumPy's and Python's own libraries comes from the package."""
    folder = pathlib.Path(normgrad.__file__).parent.resolve()
    for name in ("py.typed", "_core.pyi", "_xla.pyi"):
        assert (folder / name).exists()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {line.split()[-1] for line in maps if re.search("libnormgrad|libhwy|_core", line)}
    ours = {pathlib.Path(path) for path in loaded if "numpy" not in path}
    assert {path.name.partition(".")[0] for path in ours} >= {"libnormgrad", "_core"}
    assert {path.parent for path in ours} == {folder}


def test_stubs_say_what_is_there():
    """Names, order and defaults of every function of _core."""
    stub = pathlib.Path(normgrad.__file__).with_name("_core.pyi").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef)]
    public = {name for name in dir(normgrad._core) if not name.startswith("_")}
    assert {function.name for function in functions} == public
    for function in functions:
        ((signature, _, defaults),) = getattr(normgrad._core, function.name).__nb_signature__
        names = re.findall(r"(\w+): \w+", signature)
        arguments = function.args
        assert [a.arg for a in arguments.args + arguments.kwonlyargs] == names
        given = [ast.literal_eval(d) for d in arguments.kw_defaults if d is not None]
        assert given == list(defaults or [])


def test_env_says_what_a_report_needs():
    text = subprocess.run(
        [sys.executable, "-m", "normgrad.env"], check=True, capture_output=True, text=True
    ).stdout
    for fact in ("normgrad", "implementations", "cpu:", "Python", "processor", "numpy"):
        assert fact in text


def test_torch_tensors_that_need_gradients_are_refused():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(normgrad.ArgumentError, match="x: requires a gradient"):
        normgrad.layer_norm(x)
    y = normgrad.layer_norm(x.detach().bfloat16())
    assert isinstance(y, torch.Tensor) and y.dtype == torch.bfloat16
    with pytest.raises(normgrad.DeviceError, match="x: expected a tensor of the CPU or of CUDA"):
        normgrad.layer_norm(x.detach().to("meta"))
