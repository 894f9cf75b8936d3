"""normgrad.torch against PyTorch's float64 autograd: types, layouts, masks, fused sums."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as TF  # noqa: E402
from bounds import Reference  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import normgrad  # noqa: E402
import normgrad.nn  # noqa: E402
import normgrad.torch  # noqa: E402

F = normgrad.torch.functional
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MIXED = [(d, d) for d in DTYPES] + [(torch.bfloat16, torch.float32), (torch.float16, torch.float32)]


def data(shape, dtype, seed=0, scale=1.0, shift=0.3):  # type: ignore
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale + shift).to(dtype)


def parameter(size, dtype, seed):  # type: ignore
    return data((size,), dtype, seed).requires_grad_()


# Layouts of a (4, 6, 48) tensor, each from a contiguous one.
LAYOUTS = {
    "contiguous": lambda t: t,
    "rows strided": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "leading axes swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "columns strided": lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
    "every second column": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rms", [False, True])
def test_rows(dtype, parameters, layout, rms):  # type: ignore
    x = LAYOUTS[layout](data((4, 6, 48), dtype, 1)).detach().requires_grad_()
    dy = LAYOUTS[layout](data((4, 6, 48), dtype, 2))
    gamma, beta = parameter(48, parameters, 3), parameter(48, parameters, 4)
    if rms:
        y = F.rms_norm(x, (48,), gamma, 1e-5)
        dx, dgamma = torch.autograd.grad(y, (x, gamma), dy)
        dbeta = None
    else:
        y = F.layer_norm(x, (48,), gamma, beta)
        dx, dgamma, dbeta = torch.autograd.grad(y, (x, gamma, beta), dy)
    assert y.dtype == dx.dtype == dtype and dgamma.dtype == parameters
    assert y.is_contiguous()
    want = Reference(x, dy, gamma, None if rms else beta, rms=rms)
    want.check(y=y, dx=dx, dgamma=dgamma, dbeta=dbeta)


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("shape", [(16, 12), (5, 12, 9), (3, 12, 5, 7), (2, 12, 3, 4, 5)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, parameters, shape, channels_last, training):  # type: ignore
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = {"memory_format": formats[len(shape)]} if channels_last and len(shape) > 3 else {}
    x = data(shape, dtype, 1).contiguous(**layout).requires_grad_()
    dy = data(shape, dtype, 2).contiguous(**layout)
    gamma, beta = parameter(12, parameters, 3), parameter(12, parameters, 4)
    mean, variance = data((12,), torch.float32, 5), data((12,), torch.float32, 6).abs() + 0.5
    running = (mean.clone(), variance.clone())
    y = F.batch_norm(x, mean, variance, gamma, beta, training, 0.1, 1e-5)
    dx, dgamma, dbeta = torch.autograd.grad(y, (x, gamma, beta), dy)
    assert y.stride() == dx.stride() == x.stride()
    want = Reference(x, dy, gamma, beta, channels=True, running=None if training else running)
    want.check(y=y, dx=dx, dgamma=dgamma, dbeta=dbeta)
    if training:
        TF.batch_norm(x.detach().double(), *(t := [s.double() for s in running]), None, None, True)
        torch.testing.assert_close(mean, t[0].float(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(variance, t[1].float(), rtol=1e-6, atol=1e-7)
    else:
        assert torch.equal(mean, running[0]) and torch.equal(variance, running[1])


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_fused_add(dtype, parameters, rms, offset):  # type: ignore
    x, residual = (data((7, 5, 40), dtype, seed).requires_grad_() for seed in (1, 2))
    dy, dh = data((7, 5, 40), dtype, 3), data((7, 5, 40), dtype, 4)
    gamma, beta = parameter(40, parameters, 5), parameter(40, parameters, 6)
    if rms:
        y, h = F.add_rms_norm(x, residual, (40,), gamma, 1e-5, weight_offset=offset)
        inputs = (x, residual, gamma)
    else:
        y, h = F.add_layer_norm(x, residual, (40,), gamma, beta, weight_offset=offset)
        inputs = (x, residual, gamma, beta)
    assert torch.equal(h, (x + residual).detach())
    dx, dresidual, *rest = torch.autograd.grad((y, h), inputs, (dy, dh))
    assert torch.equal(dx, dresidual)
    want = Reference(h, dy, gamma, None if rms else beta, rms=rms, offset=offset, dh=dh)
    want.check(y=y, dx=dx, dgamma=rest[0], dbeta=None if rms else rest[1])


def test_fused_add_with_one_gradient_only():  # type: ignore
    x, residual = (data((3, 8), torch.float32, seed).requires_grad_() for seed in (1, 2))
    gamma = parameter(8, torch.float32, 3)
    y, h = F.add_rms_norm(x, residual, (8,), gamma)
    dx, dresidual, dgamma = torch.autograd.grad(h, (x, residual, gamma), h, allow_unused=True)
    assert torch.equal(dx, h) and torch.equal(dresidual, h) and dgamma is None


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_only_what_is_asked_for(wanted, monkeypatch):  # type: ignore
    """Each mask gives the gradients of the full call, and _core is asked for nothing else."""
    x, gamma, beta = data((9, 32), torch.float32, 1), data((32,), torch.float32, 2), torch.zeros(32)
    dy = data((9, 32), torch.float32, 3)
    for norm in ("layer", "batch"):
        run = {
            "layer": lambda x, g, b: F.layer_norm(x, (32,), g, b),
            "batch": lambda x, g, b: F.batch_norm(x, None, None, g, b, True),
        }[norm]
        full = [t.clone().requires_grad_() for t in (x, gamma, beta)]
        expected = torch.autograd.grad(run(*full), full, dy)
        some = [t.clone().requires_grad_(want) for t, want in zip((x, gamma, beta), wanted)]
        y = run(*some)
        assert y.requires_grad == any(wanted)
        if not any(wanted):
            continue
        name = f"_{norm}_norm_backward"
        kernel, asked = getattr(F._kernels, name), []
        monkeypatch.setattr(
            F._kernels, name, lambda **kw: (asked.append(kw), kernel(**kw))  # noqa: B023
        )
        y.backward(dy)
        assert [asked[0][key] is not None for key in ("dx", "dgamma", "dbeta")] == list(wanted)
        for tensor, gradient, want in zip(some, expected, wanted):
            assert (tensor.grad is not None) == want
            assert not want or torch.equal(tensor.grad, gradient)
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_batches(dtype):  # type: ignore
    gamma, beta = parameter(8, dtype, 1), parameter(8, dtype, 2)
    for shape, run in [
        ((0, 8), lambda x: F.layer_norm(x, (8,), gamma, beta)),
        ((3, 0, 8), lambda x: F.rms_norm(x, (8,), gamma)),
        ((0, 8, 4, 4), lambda x: F.batch_norm(x, None, None, gamma, beta, True)),
    ]:
        x = torch.empty(shape, dtype=dtype, requires_grad=True)
        gamma.grad = None
        y = run(x)
        y.sum().backward()
        assert y.shape == x.grad.shape == shape
        assert torch.equal(gamma.grad, torch.zeros(8, dtype=dtype))
    mean, variance = torch.ones(8), torch.full((8,), 2.0)
    F.batch_norm(torch.empty(0, 8, 4), mean, variance, None, None, True)
    assert torch.equal(mean, torch.ones(8)) and torch.equal(variance, torch.full((8,), 2.0))


def test_expanded_gradient():  # type: ignore
    """sum().backward() brings a dy with strides of 0."""
    x, gamma, beta = (parameter(64, torch.float32, seed) for seed in (1, 2, 3))
    rows = x.detach().expand(5, 64).clone().requires_grad_()
    F.layer_norm(rows, (64,), gamma, beta).sum().backward()
    Reference(rows, torch.ones(5, 64), gamma, beta).check(
        dx=rows.grad, dgamma=gamma.grad, dbeta=beta.grad
    )


def test_several_normalized_axes():  # type: ignore
    x = data((4, 3, 8, 5), torch.float32, 1).requires_grad_()
    gamma = data((8, 5), torch.float32, 2).requires_grad_()
    dy = data((4, 3, 8, 5), torch.float32, 3)
    y = F.layer_norm(x, (8, 5), gamma)
    dx, dgamma = torch.autograd.grad(y, (x, gamma), dy)
    want = Reference(x.flatten(2), dy.flatten(2), gamma.flatten())
    want.check(y=y.flatten(2), dx=dx.flatten(2), dgamma=dgamma.flatten())
    assert dgamma.shape == gamma.shape


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    cols=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    rms=st.booleans(),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 1000),
)
def test_any_rows(shape, cols, dtype, rms, order, seed):  # type: ignore
    """Any rank, any order of axes in memory, any number of columns."""
    shape = [*shape, cols]
    axes = list(range(len(shape)))
    order.shuffle(axes)
    back = [axes.index(axis) for axis in range(len(shape))]

    def arranged(tensor):  # type: ignore
        return tensor.permute(axes).contiguous().permute(back)

    x = arranged(data(shape, dtype, seed)).requires_grad_()
    dy = arranged(data(shape, dtype, seed + 1))
    gamma = parameter(cols, torch.float32, seed + 2)
    eps = 1e-2  # rows of one column have a variance of 0: r stays moderate
    y = F.rms_norm(x, (cols,), gamma, eps) if rms else F.layer_norm(x, (cols,), gamma, eps=eps)
    dx, dgamma = torch.autograd.grad(y, (x, gamma), dy)
    Reference(x, dy, gamma, eps=eps, rms=rms).check(y=y, dx=dx, dgamma=dgamma)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(2, 6), st.integers(1, 20), st.integers(1, 40)),
    dtype=st.sampled_from(DTYPES),
    swap=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_channels(shape, dtype, swap, seed):  # type: ignore
    def arranged(tensor):  # type: ignore
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if swap else tensor

    x = arranged(data(shape, dtype, seed)).detach().requires_grad_()
    dy = arranged(data(shape, dtype, seed + 1))
    gamma = parameter(shape[1], torch.float32, seed + 2)
    y = F.batch_norm(x, None, None, gamma, None, True, 0.1, 1e-2)
    dx, dgamma = torch.autograd.grad(y, (x, gamma), dy)
    Reference(x, dy, gamma, eps=1e-2, channels=True).check(y=y, dx=dx, dgamma=dgamma)


def test_large_mean():  # type: ignore
    """mean/std of 1e4: y holds, where E[x^2] - E[x]^2 would have lost every digit."""
    x = data((16, 256), torch.float32, 1, shift=1e4)
    y = F.layer_norm(x, (256,))
    Reference(x, x).check(y=y)


def test_same_bits():  # type: ignore
    x, dy = data((64, 96), torch.float32, 1), data((64, 96), torch.float32, 2)
    runs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        leaf, gamma = x.clone().requires_grad_(), parameter(96, torch.float32, 3)
        y = F.layer_norm(leaf, (96,), gamma)
        runs.append((y, *torch.autograd.grad(y, (leaf, gamma), dy)))
    for first, second in zip(*runs):
        assert torch.equal(first, second)
