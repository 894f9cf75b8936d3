"""normgrad.torch in PyTorch's world: operators, compile, modules, patch, autocast."""

from __future__ import annotations

import copy
import time

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as TF  # noqa: E402
from torch import nn  # noqa: E402

import normgrad  # noqa: E402
import normgrad.nn  # noqa: E402
import normgrad.torch  # noqa: E402

F = normgrad.torch.functional
ops = torch.ops.normgrad


def leaf(*shape, dtype=torch.float32):  # type: ignore
    return torch.randn(*shape).to(dtype).requires_grad_()


@pytest.fixture(autouse=True)
def seed():  # type: ignore
    torch.manual_seed(0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_opcheck_rows(fused, affine):  # type: ignore
    x, residual = leaf(4, 3, 16), leaf(4, 3, 16) if fused else None
    gamma, beta = (leaf(16), leaf(16)) if affine else (None, None)
    torch.library.opcheck(ops.layer_norm.default, (x, residual, gamma, beta, 1, 1e-5, 0.0))
    torch.library.opcheck(ops.rms_norm.default, (x, residual, gamma, 1, 1e-5, 1.0))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck_batch_norm(frozen, channels_last):  # type: ignore
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(3, 4, 5, 2).contiguous(memory_format=layout).requires_grad_()
    running = torch.zeros(4), torch.ones(4)
    torch.library.opcheck(
        ops.batch_norm.default, (x, leaf(4), leaf(4), *running, frozen, 0.1, 1e-5)
    )


def test_opcheck_gradients():  # type: ignore
    dy, x, row, col = torch.randn(6, 8), torch.randn(6, 8), torch.rand(6), torch.rand(8)
    for wanted in ([True, True, True], [False, True, False]):
        torch.library.opcheck(
            ops.layer_norm_backward.default, (dy, None, x, col, row, row, 1, 0.0, wanted)
        )
        torch.library.opcheck(
            ops.batch_norm_backward.default, (dy, x, col, col, col, False, 0.0, wanted)
        )
    torch.library.opcheck(
        ops.rms_norm_backward.default, (dy, dy, x, None, row, 1, 0.0, [True, True])
    )


def test_gradcheck_float64():  # type: ignore
    """float64 is PyTorch's own; the wiring (order of gradients, masks, fused sums) is ours."""
    double = dict(dtype=torch.float64)
    x, r, g, b = leaf(3, 6, **double), leaf(3, 6, **double), leaf(6, **double), leaf(6, **double)
    check = torch.autograd.gradcheck
    assert check(lambda x, g, b: F.layer_norm(x, (6,), g, b, weight_offset=1.0), (x, g, b))
    assert check(lambda x, r, g: F.add_rms_norm(x, r, (6,), g), (x, r, g))
    assert check(lambda x, g, b: F.batch_norm(x, None, None, g, b, True), (x, g, b))


@pytest.mark.filterwarnings("ignore:Input #")
def test_gradcheck_float32():  # type: ignore
    """Our kernels against finite differences: coarse steps, so that float32 can resolve them."""
    x, r, g, b = leaf(4, 12), leaf(4, 12), leaf(12), leaf(12)
    coarse = dict(eps=1e-2, atol=2e-3, rtol=2e-2, nondet_tol=0.0)
    check = torch.autograd.gradcheck
    assert check(lambda x, g, b: F.layer_norm(x, (12,), g, b), (x, g, b), **coarse)
    assert check(lambda x, r, g: F.add_layer_norm(x, r, (12,), g), (x, r, g), **coarse)
    assert check(lambda x, g: F.rms_norm(x, (12,), g), (x, g), **coarse)
    assert check(lambda x, r, g: F.add_rms_norm(x, r, (12,), g), (x, r, g), **coarse)
    assert check(lambda x, g, b: F.batch_norm(x, None, None, g, b, True), (x, g, b), **coarse)
    running = torch.zeros(12), torch.ones(12)
    assert check(lambda x, g, b: F.batch_norm(x, *running, g, b, False), (x, g, b), **coarse)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.layer_norm(x, (8,)),
        lambda x: F.rms_norm(x, (8,)),
        lambda x: F.batch_norm(x, None, None, None, None, True),
    ],
)
def test_double_backward_is_refused(run):  # type: ignore
    x = leaf(4, 8)
    (dx,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward.*torch.nn.functional"):
        dx.sum().backward()


class Network(nn.Module):
    """Shaped like a small ResNet with a transformer's norms behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1, bias=False),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 16, 3, padding=1, bias=False),
                nn.BatchNorm2d(16, momentum=None if last else 0.1),
            )
            for last in (False, True)
        )
        self.pooled = nn.BatchNorm1d(16)
        self.volume = nn.BatchNorm3d(4)
        self.norm = nn.LayerNorm(16)
        self.rms = nn.RMSNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        x = self.volume(x.unflatten(1, (4, 4))).flatten(1, 2)
        return self.head(self.rms(self.norm(self.pooled(x.mean((2, 3))))))


def train(model, batches, targets, steps=50):  # type: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in range(steps):
        index = step % len(batches)
        loss = TF.cross_entropy(model(batches[index]).flatten(0, -2), targets[index].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def norms_of(model):  # type: ignore
    return [m for m in model.modules() if type(m).__name__ in normgrad.nn.__all__]


def follows(model, batches, targets):  # type: ignore
    """50 steps of a patched copy beside the model: losses within 1e-4, norms swapped and back."""
    patched = copy.deepcopy(model)
    patch = normgrad.torch.patch(patched)
    assert len(patch) == len(norms_of(model)) > 0
    assert patched.state_dict().keys() == model.state_dict().keys()
    expected, got = train(model, batches, targets), train(patched, batches, targets)
    assert expected[-1] < expected[0]
    for step, (a, b) in enumerate(zip(expected, got)):
        assert abs(a - b) <= 1e-4 * abs(a), f"step {step}: {b} instead of {a}"
    assert all("normgrad" in type(m).__module__ for m in norms_of(patched))
    patch.undo()
    assert [type(m) for m in patched.modules()] == [type(m) for m in model.modules()]
    model.load_state_dict(patched.state_dict())
    with normgrad.torch.patch(patched):
        patched.load_state_dict(model.state_dict())


def test_patched_network_follows_torch():  # type: ignore
    batches = [torch.randn(8, 3, 8, 8) for _ in range(4)]
    follows(Network(), batches, [torch.randint(5, (8,)) for _ in batches])


def test_patched_transformer_follows_torch():  # type: ignore
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
    batches = [torch.randn(4, 10, 32) for _ in range(4)]
    follows(encoder, batches, [torch.randint(32, (4, 10)) for _ in batches])


def test_patched_network_compiles_without_a_break():  # type: ignore
    model = Network()
    patched = copy.deepcopy(model)
    normgrad.torch.patch(patched)
    # aot_eager: Dynamo and AOTAutograd with our operators in the graph; no C++ compiler needed.
    compiled = torch.compile(patched, fullgraph=True, backend="aot_eager")
    model.blocks[1][4].momentum = patched.blocks[1][4].momentum = (
        0.1  # None takes .item() in torch's, too
    )
    x = torch.randn(8, 3, 8, 8)
    for run in (model, compiled):
        run(x).square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), patched.parameters()):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4, msg=name)
    for (name, p), q in zip(model.named_buffers(), patched.named_buffers()):
        torch.testing.assert_close(q[1], p, rtol=1e-5, atol=1e-6, msg=name)
    model.eval(), patched.eval()
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_compiled_graph_has_our_operators():  # type: ignore
    seen = []

    def backend(graph, inputs):  # type: ignore
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    x, g = leaf(4, 8), leaf(8)
    torch.compile(lambda x: F.rms_norm(x, (8,), g), fullgraph=True, backend=backend)(x)
    assert any("normgrad" in name and "rms_norm" in name for name in seen)


def test_modules_have_torchs_constructors_and_state():  # type: ignore
    for name, arguments in {
        "LayerNorm": [(8,), ((4, 8), 1e-6, False)],
        "RMSNorm": [(8,), (8, 1e-6)],
        "BatchNorm1d": [(8,), (8, 1e-3, None, False, False)],
        "BatchNorm2d": [(8,)],
        "BatchNorm3d": [(8,)],
    }.items():
        for values in arguments:
            ours, theirs = getattr(normgrad.nn, name)(*values), getattr(nn, name)(*values)
            assert isinstance(ours, getattr(nn, name)) and repr(ours) == repr(theirs)
            ours.load_state_dict(theirs.state_dict())
            theirs.load_state_dict(ours.state_dict())


def test_batch_norm_modules_track_as_torch_does():  # type: ignore
    for options in ({}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}):
        ours, theirs = normgrad.nn.BatchNorm1d(6, **options), nn.BatchNorm1d(6, **options)
        for step in range(4):
            x = torch.randn(5, 6, 3)
            for module in (ours, theirs):
                module.train(step < 3)
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
        for mine, its in zip(ours.buffers(), theirs.buffers()):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


def test_autocast_as_torch():  # type: ignore
    x, g = torch.randn(4, 8), torch.ones(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for tensor in (x, x.bfloat16()):
            for ours, theirs in [
                (F.layer_norm(tensor, (8,), g, g), TF.layer_norm(tensor, (8,), g, g)),
                (F.rms_norm(tensor, (8,), g), TF.rms_norm(tensor, (8,), g.to(tensor.dtype))),
                (
                    F.batch_norm(tensor, None, None, g, g, True),
                    TF.batch_norm(tensor, None, None, g, g, True),
                ),
            ]:
                assert ours.dtype == theirs.dtype
                torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_eps_of_rms_norm_is_torchs():  # type: ignore
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.full((2, 8), 1e-3, dtype=dtype)
        torch.testing.assert_close(F.rms_norm(x, (8,)), TF.rms_norm(x, (8,)))


def test_running_statistics_bump_the_version():  # type: ignore
    mean, variance = torch.zeros(4), torch.ones(4)
    x = leaf(3, 4)
    y = F.batch_norm(x, mean, variance, None, None, False)
    F.batch_norm(x.detach(), mean, variance, None, None, True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_refusals_have_the_sentence():  # type: ignore
    x = torch.randn(4, 8)
    with pytest.raises(normgrad.ArgumentError, match="normalized_shape: expected the last axes"):
        F.layer_norm(x, (7,))
    with pytest.raises(normgrad.ArgumentError, match=r"gamma: expected 8 elements.*\(3\)"):
        F.layer_norm(x, (8,), torch.ones(3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        F.batch_norm(torch.randn(1, 8), None, None, None, None, True)
    with pytest.raises(ValueError, match="running_mean"):
        F.batch_norm(x, None, None)


def test_func_transforms_take_torchs_operators():  # type: ignore
    x, g = torch.randn(4, 8), torch.randn(8)
    loss = lambda f: lambda x: f(x, (8,), g).square().sum()  # noqa: E731
    torch.testing.assert_close(
        torch.func.grad(loss(F.layer_norm))(x), torch.func.grad(loss(TF.layer_norm))(x)
    )
    by_weight = lambda f: lambda g: f(x, (8,), g).square().sum()  # noqa: E731
    torch.testing.assert_close(
        torch.func.grad(by_weight(F.rms_norm))(g), torch.func.grad(by_weight(TF.rms_norm))(g)
    )
    torch.testing.assert_close(
        torch.vmap(lambda row: F.rms_norm(row, (8,)))(x), TF.rms_norm(x, (8,))
    )


def test_forward_mode_takes_torchs_operators():  # type: ignore
    x, tangent = torch.randn(4, 8), torch.randn(4, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        ours, theirs = (
            torch.autograd.forward_ad.unpack_dual(f(dual, (8,))).tangent
            for f in (F.layer_norm, TF.layer_norm)
        )
    torch.testing.assert_close(ours, theirs)


def test_tracers_see_our_operators():  # type: ignore
    """A mode that watches the dispatcher, with tensors of the plain type."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda x: F.layer_norm(x, (8,)))(torch.randn(2, 8))
    assert any("normgrad.layer_norm" in str(node.target) for node in traced.graph.nodes)
    x = torch.randn(3, 8)
    torch.testing.assert_close(traced(x), TF.layer_norm(x, (8,)))
    exported = torch.export.export(normgrad.nn.LayerNorm(8), (x,))
    assert any("normgrad.layer_norm" in str(node.target) for node in exported.graph.nodes)


def test_shapes_may_be_symbols():  # type: ignore
    g = leaf(16)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(x, residual):  # type: ignore
        y, h = F.add_layer_norm(x, residual, (16,), g)
        return F.rms_norm(y, (16,), g) + h

    for batch in (3, 5, 9):
        x = leaf(batch, 7, 16)
        run(x, 2 * x).sum().backward()
        plain = x.detach().clone().requires_grad_()
        h = plain + 2 * plain
        (TF.rms_norm(TF.layer_norm(h, (16,), g), (16,), g) + h).sum().backward()
        torch.testing.assert_close(x.grad, plain.grad, rtol=1e-4, atol=1e-4)


def test_inference_mode_and_no_grad():  # type: ignore
    x, g = leaf(4, 8), leaf(8)
    with torch.no_grad():
        assert not F.layer_norm(x, (8,), g).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(F.layer_norm(x, (8,), g), TF.layer_norm(x, (8,), g))


def test_host_time_of_a_backward_call():  # type: ignore
    """Below 10 us beyond the kernel, of what autograd calls: the best of many short runs, since
    machines are shared; a busy one gets 20 seconds to show a quiet moment."""
    leaves = [t.requires_grad_() for t in (torch.randn(4, 16), torch.ones(16), torch.zeros(16))]
    y = F.layer_norm(leaves[0], (16,), *leaves[1:])  # kept, and with it what the node has saved
    x, g, rows = torch.randn(4, 16), torch.ones(16), torch.ones(4)
    outputs = dict(dx=torch.empty(4, 16), dgamma=torch.empty(16), dbeta=torch.empty(16))
    arrays = dict(dy=x, x=x, gamma=g, mean=rows, spread=rows)

    def whole():  # type: ignore
        F._functions.LayerNorm.backward(y.grad_fn, x)

    def kernel():  # type: ignore
        normgrad._core.layer_norm_backward(**arrays, **outputs)

    def checks_only():  # type: ignore
        normgrad._core.layer_norm_backward(**arrays)

    best = {}
    overhead = 1.0
    end = time.perf_counter() + 20
    with torch.no_grad():
        while overhead >= 10e-6 and time.perf_counter() < end:
            for run in (whole, kernel, checks_only) * 100:
                start = time.perf_counter()
                for _ in range(20):
                    run()
                taken = (time.perf_counter() - start) / 20
                best[run] = min(best.get(run, taken), taken)
            overhead = best[whole] - (best[kernel] - best[checks_only])
    assert overhead < 10e-6, f"{overhead * 1e6:.1f} us"


def test_older_torch_describes_its_tensors(monkeypatch):  # type: ignore
    """Before 2.10 there is no __dlpack_c_exchange_api__: the same results, by the other way."""
    from normgrad import _frameworks

    monkeypatch.setattr(
        _frameworks.Torch, "__init__", lambda self: vars(self).update(torch=torch, described=True)
    )
    bound = F._kernels._bind(normgrad._core.layer_norm)
    assert bound is not normgrad._core.layer_norm
    x, g = torch.randn(3, 4, 8)[:, ::2].bfloat16(), torch.randn(8)
    y = torch.empty(3, 2, 8, dtype=torch.bfloat16)
    bound(x=x, gamma=g, y=y, allocate=None)
    assert torch.equal(y, F.layer_norm(x, (8,), g))


def test_nested_tensors_take_torchs_operators():  # type: ignore
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    y = F.layer_norm(x, (8,))
    assert y.is_nested and y.size(0) == 2
