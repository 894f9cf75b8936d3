"""The same on a GPU, with PyTorch, CuPy and JAX, where there is one."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU that PyTorch sees", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as TF  # noqa: E402
from bounds import Reference  # noqa: E402
from test_torch_values import DTYPES, LAYOUTS, MIXED, data  # noqa: E402

import normgrad  # noqa: E402
import normgrad.nn  # noqa: E402
import normgrad.torch  # noqa: E402

if not any(name.startswith("cuda") for name in normgrad._core.implementations()):
    pytest.skip("normgrad was built without CUDA", allow_module_level=True)

F = normgrad.torch.functional


def gradients(y, inputs, dy):  # type: ignore
    return [t.cpu() for t in torch.autograd.grad(y, inputs, dy.cuda())]


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("shape", [(64, 48), (5, 7, 1024), (3, 4097), (2, 33000)])
@pytest.mark.parametrize("rms", [False, True])
def test_rows(dtype, parameters, shape, rms):  # type: ignore
    cols = shape[-1]
    x, dy = data(shape, dtype, 1), data(shape, dtype, 2)
    gamma, beta = data((cols,), parameters, 3), data((cols,), parameters, 4)
    inputs = [t.cuda().requires_grad_() for t in ((x, gamma) if rms else (x, gamma, beta))]
    if rms:
        y = F.rms_norm(inputs[0], (cols,), inputs[1], 1e-5)
    else:
        y = F.layer_norm(inputs[0], (cols,), *inputs[1:])
    assert y.is_cuda
    dx, dgamma, *dbeta = gradients(y, inputs, dy)
    want = Reference(x, dy, gamma, None if rms else beta, rms=rms)
    want.check(y=y.cpu(), dx=dx, dgamma=dgamma, dbeta=None if rms else dbeta[0])


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cols", [48, 528])
@pytest.mark.parametrize("rms", [False, True])
def test_rows_that_are_not_contiguous(dtype, parameters, layout, cols, rms):  # type: ignore
    x, dy = (LAYOUTS[layout](data((4, 6, cols), dtype, seed).cuda()) for seed in (1, 2))
    gamma = data((cols,), parameters, 3)
    inputs = [x.requires_grad_(), gamma.cuda().requires_grad_()]
    y = F.rms_norm(x, (cols,), inputs[1], 1e-5) if rms else F.layer_norm(x, (cols,), inputs[1])
    dx, dgamma = gradients(y, inputs, dy)
    Reference(x.cpu(), dy.cpu(), gamma, rms=rms).check(y=y.cpu(), dx=dx, dgamma=dgamma)


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_batches(dtype):  # type: ignore
    gamma = torch.ones(8, dtype=dtype, device="cuda", requires_grad=True)
    for shape, run in [
        ((0, 8), lambda x: F.layer_norm(x, (8,), gamma)),
        ((3, 0, 8), lambda x: F.rms_norm(x, (8,), gamma)),
        ((0, 8), lambda x: F.add_rms_norm(x, x, (8,), gamma)[0]),
        ((0, 8, 4, 4), lambda x: F.batch_norm(x, None, None, gamma, None, True)),
    ]:
        x = torch.empty(shape, dtype=dtype, device="cuda", requires_grad=True)
        dx, dgamma = torch.autograd.grad(run(x).sum(), (x, gamma))
        assert dx.shape == shape
        assert torch.equal(dgamma, torch.zeros_like(gamma))


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("rms", [False, True])
def test_fused_add(dtype, parameters, rms):  # type: ignore
    x, residual, dy, dh = (data((7, 5, 640), dtype, seed) for seed in range(4))
    gamma = data((640,), parameters, 5)
    inputs = [t.cuda().requires_grad_() for t in (x, residual, gamma)]
    run = F.add_rms_norm if rms else F.add_layer_norm
    y, h = run(inputs[0], inputs[1], (640,), inputs[2], eps=1e-5)
    assert torch.equal(h.cpu(), x + residual)
    dx, dresidual, dgamma = (
        t.cpu() for t in torch.autograd.grad((y, h), inputs, (dy.cuda(), dh.cuda()))
    )
    assert torch.equal(dx, dresidual)
    want = Reference(x + residual, dy, gamma, rms=rms, dh=dh)
    want.check(y=y.cpu(), dx=dx, dgamma=dgamma)


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, parameters, layout, training):  # type: ignore
    x, dy = (data((8, 24, 14, 14), dtype, s).contiguous(memory_format=layout) for s in (1, 2))
    gamma, beta = data((24,), parameters, 3), data((24,), parameters, 4)
    running = [data((24,), torch.float32, 5), data((24,), torch.float32, 6).abs() + 0.5]
    inputs = [t.cuda().requires_grad_() for t in (x, gamma, beta)]
    moved = [t.cuda() for t in running]
    y = F.batch_norm(inputs[0], *moved, *inputs[1:], training)
    assert y.stride() == x.stride()
    dx, dgamma, dbeta = gradients(y, inputs, dy)
    want = Reference(
        x, dy, gamma, beta, channels=True, running=None if training else tuple(running)
    )
    want.check(y=y.cpu(), dx=dx, dgamma=dgamma, dbeta=dbeta)
    if training:
        exact = [t.double() for t in running]
        TF.batch_norm(x.double(), *exact, None, None, True)
        for got, expected in zip(moved, exact):
            torch.testing.assert_close(got.cpu(), expected.float(), rtol=1e-6, atol=1e-7)


def test_on_the_callers_stream():  # type: ignore
    """Work queued behind a long one on the same stream sees its result; no other stream waits."""
    stream = torch.cuda.Stream()
    x = torch.zeros(256, 4096, device="cuda")
    expected = TF.layer_norm(torch.arange(4096.0, device="cuda").expand(256, 4096), (4096,))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.copy_(torch.arange(4096.0, device="cuda").expand(256, 4096))
        y = F.layer_norm(x, (4096,))
        front_end = normgrad.layer_norm(x)
    stream.synchronize()
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(front_end, y)


def test_captured_in_a_graph():  # type: ignore
    x, g = torch.randn(64, 1000, device="cuda"), torch.randn(1000, device="cuda")
    rows = torch.ones(64, device="cuda")
    run = lambda: F._kernels.layer_norm_backward(  # noqa: E731
        x, None, x, g, rows, rows, 1, 0.0, [True, True, True]
    )
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    x.copy_(torch.randn(64, 1000, device="cuda"))
    graph.replay()
    for a, b in zip(captured, run()):
        assert torch.equal(a, b)


@pytest.fixture(scope="module")
def nccl():  # type: ignore
    """A group of this process alone: all that one GPU can form, with all of the layer's steps."""
    if not (dist.is_available() and dist.is_nccl_available()):
        pytest.skip("PyTorch was built without NCCL")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def synchronized(group, x, gamma, beta, running, first):  # type: ignore
    return F.sync_batch_norm(x, *running, gamma, beta, 0.1, 1e-5, x.shape[1], first, group)


@pytest.mark.parametrize("dtype, parameters", MIXED)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("samples", [8, 0])
def test_sync_batch_norm(nccl, dtype, parameters, layout, samples):  # type: ignore
    shape = (samples, 24, 14, 14)
    x, dy = (data(shape, dtype, s).contiguous(memory_format=layout) for s in (1, 2))
    gamma, beta = data((24,), parameters, 3), data((24,), parameters, 4)
    running = [torch.zeros(24).cuda(), torch.ones(24).cuda()]
    inputs = [t.cuda().requires_grad_() for t in (x, gamma, beta)]
    y = synchronized(nccl, *inputs, running, first=True)
    assert y.stride() == x.stride()
    dx, dgamma, dbeta = gradients(y, inputs, dy)
    if samples == 0:
        assert not dgamma.any() and not dbeta.any() and not running[0].any()
        return
    Reference(x, dy, gamma, beta, channels=True).check(y=y.cpu(), dx=dx, dgamma=dgamma, dbeta=dbeta)
    exact = [torch.zeros(24).double(), torch.ones(24).double()]
    TF.batch_norm(x.double(), *exact, None, None, True)
    for got, expected in zip(running, exact):
        torch.testing.assert_close(got.cpu(), expected.float(), rtol=1e-6, atol=1e-7)


def test_sync_batch_norm_in_a_group_of_one_is_local(nccl):  # type: ignore
    x = torch.randn(4, 6, 5, device="cuda")
    sync, local = normgrad.nn.SyncBatchNorm(6).cuda(), normgrad.nn.BatchNorm1d(6).cuda()
    assert torch.equal(sync(x), local(x))


def test_sync_batch_norm_captured_in_a_graph(nccl):  # type: ignore
    x, dy, g = (torch.randn(shape, device="cuda") for shape in ((8, 24, 49), (8, 24, 49), (24,)))

    def run():  # type: ignore
        leaf = x.detach().requires_grad_()
        y = synchronized(nccl, leaf, g, None, (None, None), first=False)
        return y.detach(), *torch.autograd.grad(y, leaf, dy)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()  # NCCL connects
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    x.copy_(torch.randn(8, 24, 49, device="cuda"))
    graph.replay()
    for a, b in zip(captured, run()):
        assert torch.equal(a, b)


def test_ranks_that_differ_fail_on_the_stream():  # type: ignore
    """In a process of its own, whose GPU is lost to it afterwards."""
    program = """if True:
        import torch, normgrad.torch
        normgrad.torch._sync._check(torch.tensor([7, 8], device="cuda"), 7, 7)
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            raise SystemExit(3)
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 3, run.stderr


def test_autocast_as_torch():  # type: ignore
    x, g = torch.randn(4, 64, device="cuda", dtype=torch.float16), torch.ones(64, device="cuda")
    with torch.autocast("cuda"):
        for ours, theirs in [
            (F.layer_norm(x, (64,), g, g), TF.layer_norm(x, (64,), g, g)),
            (F.rms_norm(x, (64,), g), TF.rms_norm(x, (64,), g)),
            (
                F.batch_norm(x, None, None, g, g, True),
                TF.batch_norm(x, None, None, g, g, True),
            ),
        ]:
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_arrays_on_two_devices_are_refused():  # type: ignore
    with pytest.raises(normgrad.ArgumentError, match="gamma: expected an array on cuda:0 like x"):
        normgrad.layer_norm(torch.randn(4, 8, device="cuda"), torch.ones(8))


def test_cupy():  # type: ignore
    cupy = pytest.importorskip("cupy")
    x = cupy.random.default_rng(0).standard_normal((50, 300), dtype="float32")
    with cupy.cuda.Stream(non_blocking=True):
        y, mean, rstd = normgrad.layer_norm(x, outputs=("y", "mean", "spread"))
        dx, dgamma, _ = normgrad.layer_norm_backward(x, x, mean=mean, spread=rstd)
        cupy.cuda.get_current_stream().synchronize()
    assert isinstance(y, cupy.ndarray)
    as_torch = torch.from_numpy(cupy.asnumpy(x))
    want = Reference(as_torch, as_torch)
    got = {
        name: torch.from_numpy(cupy.asnumpy(a))
        for name, a in dict(y=y, dx=dx, dgamma=dgamma).items()
    }
    want.check(**got)


def test_jax():  # type: ignore
    jax = pytest.importorskip("jax")
    pytest.importorskip("normgrad._xla")
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("JAX sees no GPU")
    import numpy as np

    import normgrad.jax as nj

    x, dy = (jax.device_put(data((6, 40, 256), torch.float32, s).numpy(), device) for s in (1, 2))
    gamma = jax.device_put(data((256,), torch.float32, 3).numpy(), device)
    loss = lambda x, g: (nj.layer_norm(x, g) * dy).sum()  # noqa: E731
    dx, dgamma = jax.jit(jax.grad(loss, (0, 1)))(x, gamma)
    assert dx.devices() == {device}
    to_torch = lambda a: torch.from_numpy(np.array(a))  # noqa: E731
    want = Reference(*(to_torch(a) for a in (x, dy, gamma)))
    want.check(y=to_torch(nj.layer_norm(x, gamma)), dx=to_torch(dx), dgamma=to_torch(dgamma))
    per_row = jax.vmap(nj.layer_norm, (0, None))(x, gamma)
    np.testing.assert_array_equal(per_row, nj.layer_norm(x, gamma))
    y, mean, variance = nj.batch_norm(x, None, None, jax.numpy.zeros(40), jax.numpy.ones(40))
    np.testing.assert_allclose(mean, 0.1 * np.array(x).mean((0, 2)), rtol=1e-5, atol=1e-6)
