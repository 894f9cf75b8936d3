"""normgrad.nn.SyncBatchNorm over gloo, 2 and 4 processes: values against PyTorch's float64 autograd on
the whole batch, what PyTorch's module can do, disagreement, and processes that die or stop."""

from __future__ import annotations

import copy
import os
import re
import signal
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as TF  # noqa: E402
from bounds import Reference  # noqa: E402
from ranks import Clock, Ranks  # noqa: E402
from torch import nn  # noqa: E402

import normgrad  # noqa: E402
import normgrad.nn  # noqa: E402
import normgrad.torch  # noqa: E402

if not dist.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CHANNELS = 5
REPETITIONS = 50 if os.environ.get("NORMGRAD_LONG") else 3
GROUPS: dict = {}  # in the processes: the group of each number of ranks


@pytest.fixture(scope="module")
def four():  # type: ignore
    with Ranks(4) as ranks:
        ranks.run(make_groups)
        yield ranks


def make_groups(rank):  # type: ignore
    GROUPS.update({4: dist.group.WORLD, 2: dist.new_group([0, 1])})


def data(shape, dtype, seed):  # type: ignore
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + 0.3).to(dtype)


def part_of(tensor, sizes, rank):  # type: ignore
    return tensor.split(list(sizes))[rank]


# Values


def batch(sizes, dtype, kind):  # type: ignore
    shape = (sum(sizes), CHANNELS) if kind == "rows" else (sum(sizes), CHANNELS, 3, 2)
    layout = torch.channels_last if kind == "channels last" else torch.contiguous_format
    return [data(shape, dtype, seed).contiguous(memory_format=layout) for seed in (1, 2)]


def layer(group, **options):  # type: ignore
    norm = normgrad.nn.SyncBatchNorm(CHANNELS, process_group=GROUPS[group], **options)
    if norm.affine:
        norm.weight.data, norm.bias.data = (data((CHANNELS,), torch.float32, s) for s in (3, 4))
    return norm


def train_once(rank, sizes, dtype, kind):  # type: ignore
    x, dy = (part_of(t, sizes, rank) for t in batch(sizes, dtype, kind))
    norm, leaf = layer(len(sizes)), x.clone().requires_grad_()
    y = norm(leaf)
    *_, mean, rstd = y.grad_fn.saved_tensors
    y.backward(dy)
    assert y.dtype == leaf.grad.dtype == dtype and y.stride() == leaf.grad.stride() == x.stride()
    return dict(
        y=y.detach(),
        dx=leaf.grad,
        dgamma=norm.weight.grad,
        dbeta=norm.bias.grad,
        common=[mean, rstd, norm.running_mean, norm.running_var, norm.num_batches_tracked],
    )


def same_bits(results):  # type: ignore
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("kind", ["rows", "planes", "channels last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(7, 0, 1000, 1), (1, 1, 0, 7), (1000, 7), (0, 7), (1, 1)])
def test_as_the_whole_batch_in_one_process(four, sizes, dtype, kind):  # type: ignore
    x, dy = batch(sizes, dtype, kind)
    gamma, beta = (data((CHANNELS,), torch.float32, seed) for seed in (3, 4))
    results = four.run(train_once, sizes, dtype, kind, ranks=range(len(sizes)))
    whole = {name: torch.cat([r[name] for r in results]) for name in ("y", "dx")}
    for name in ("dgamma", "dbeta"):
        whole[name] = sum(r[name].double() for r in results).float()
    Reference(x, dy, gamma, beta, channels=True).check(**whole)

    mean, variance = torch.zeros(CHANNELS).double(), torch.ones(CHANNELS).double()
    TF.batch_norm(x.double(), mean, variance, None, None, True)
    _, _, running_mean, running_var, tracked = results[0]["common"]
    torch.testing.assert_close(running_mean, mean.float(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(running_var, variance.float(), rtol=1e-6, atol=1e-7)
    assert tracked == 1
    same_bits([r["common"] for r in results])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_sample(four, dtype):  # type: ignore
    """One element per channel on all ranks together: x_hat is 0, and nothing flows back."""
    results = four.run(train_once, (0, 0, 1, 0), dtype, "rows")
    one = results[2]
    torch.testing.assert_close(one["y"], data((CHANNELS,), torch.float32, 4).to(dtype)[None])
    assert torch.equal(one["dx"], torch.zeros(1, CHANNELS, dtype=dtype))
    same_bits([r["common"] for r in results])
    assert all(tensor.isfinite().all() for tensor in one["common"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_at_all(four, dtype):  # type: ignore
    for result in four.run(train_once, (0, 0, 0, 0), dtype, "planes"):
        *_, running_mean, running_var, _ = result["common"]
        assert result["y"].shape == result["dx"].shape == (0, CHANNELS, 3, 2)
        assert torch.equal(running_mean, torch.zeros(CHANNELS))
        assert torch.equal(running_var, torch.ones(CHANNELS))
        for name in ("dgamma", "dbeta"):
            assert torch.equal(result[name], torch.zeros(CHANNELS))


def large_mean(rank):  # type: ignore
    x = (data((512, CHANNELS), torch.float32, 1) + 1e4).split(128)[rank]
    return layer(4, affine=False)(x)


def test_large_mean(four):  # type: ignore
    x = data((512, CHANNELS), torch.float32, 1) + 1e4
    Reference(x, x, channels=True).check(y=torch.cat(four.run(large_mean)))


# What PyTorch's module can do


def steps(rank, options):  # type: ignore
    norm, results = layer(4, **options), []
    for step in range(4):
        norm.train(step < 3)
        results.append(norm(data((8, CHANNELS, 3), torch.float32, step).split(2)[rank]).detach())
    return results, list(norm.buffers())


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False, "eps": 1e-2}],
)
def test_tracks_as_torchs_batch_norm(four, options):  # type: ignore
    """Three steps of training and one in eval mode, which without statistics is local."""
    results = four.run(steps, options)
    same_bits([buffers for _, buffers in results])
    theirs = nn.BatchNorm1d(CHANNELS, **options)
    if theirs.affine:
        theirs.weight.data, theirs.bias.data = (data((CHANNELS,), torch.float32, s) for s in (3, 4))
    for step in range(4):
        x = data((8, CHANNELS, 3), torch.float32, step)
        theirs.train(step < 3)
        local = step == 3 and not theirs.track_running_stats
        expected = torch.cat([theirs(p) for p in x.split(2)]) if local else theirs(x)
        got = torch.cat([ys[step] for ys, _ in results])
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for mine, its in zip(results[0][1], theirs.buffers()):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.BatchNorm1d(8, momentum=0.2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


def train(model, first, last):  # type: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(4):
        x = data((12, 3, 6, 6), torch.float32, step)[first:last]
        target = torch.arange(12)[first:last] % 4
        optimizer.zero_grad()
        loss = TF.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def train_in_parallel(rank, size, compiled):  # type: ignore
    model = normgrad.torch.convert_sync_batchnorm(Network(), GROUPS[size])
    if compiled:
        torch._dynamo.reset()
        model = torch.compile(model, fullgraph=True, backend="aot_eager")
    parallel = nn.parallel.DistributedDataParallel(model, process_group=GROUPS[size])
    own = 12 // size
    return train(parallel, own * rank, own * rank + own)


@pytest.mark.parametrize("size, compiled", [(4, False), (2, True)])
def test_data_parallel_training_is_that_of_one_process(four, size, compiled):  # type: ignore
    """The compiled model has the collectives in its graph, without a break."""
    results = four.run(train_in_parallel, size, compiled, ranks=range(size))
    losses, state = train(Network(), 0, 12)
    together = [sum(step) / size for step in zip(*(losses for losses, _ in results))]
    torch.testing.assert_close(together, losses, rtol=1e-5, atol=1e-6)
    same_bits([list(state.values()) for _, state in results])
    for (name, got), expected in zip(results[0][1].items(), state.values()):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, msg=name)


def kinds(model):  # type: ignore
    return [type(m) for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_convert_and_state_dicts():  # type: ignore
    for prepare in (lambda m: m, normgrad.torch.patch, nn.SyncBatchNorm.convert_sync_batchnorm):
        model = Network()
        before = model.state_dict()
        made = prepare(model)
        model = made if isinstance(made, nn.Module) else model
        weight = model.norm.weight
        assert normgrad.torch.convert_sync_batchnorm(model) is model
        assert kinds(model) == [normgrad.nn.SyncBatchNorm] * 2
        assert model.norm.weight is weight and model.last.momentum == 0.2
        assert model.norm.process_group is None
        theirs = nn.SyncBatchNorm.convert_sync_batchnorm(Network())
        for other in (Network(), theirs):
            other.load_state_dict(model.state_dict())
            model.load_state_dict(other.state_dict())
        assert model.state_dict().keys() == before.keys() == theirs.state_dict().keys()
    assert type(normgrad.nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3))) is (
        normgrad.nn.SyncBatchNorm
    )
    theirs = nn.SyncBatchNorm(3, process_group="theirs")
    with normgrad.torch.patch(theirs):
        assert type(theirs) is normgrad.nn.SyncBatchNorm
    assert type(theirs) is nn.SyncBatchNorm
    assert normgrad.torch.convert_sync_batchnorm(theirs).process_group == "theirs"
    assert normgrad.torch.convert_sync_batchnorm(theirs, "ours").process_group == "ours"
    copy.deepcopy(model)


def test_without_processes_it_is_a_batch_norm():  # type: ignore
    for options in ({}, {"momentum": None}, {"affine": False, "track_running_stats": False}):
        sync, plain = normgrad.nn.SyncBatchNorm(4, **options), normgrad.nn.BatchNorm2d(4, **options)
        for training in (True, True, False):
            x = torch.randn(3, 4, 5, 2)
            assert torch.equal(sync.train(training)(x), plain.train(training)(x))
        same_bits([list(sync.buffers()), list(plain.buffers())])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        normgrad.nn.SyncBatchNorm(4)(torch.randn(1, 4))
    with pytest.raises(ValueError, match="input: expected two axes"):
        normgrad.nn.SyncBatchNorm(4)(torch.randn(4))


def count_messages(rank):  # type: ignore
    sent, gather = [], normgrad.torch._sync._all_gather

    def counted(messages, message, group):  # type: ignore
        sent.append(message.numel() * message.element_size())
        gather(messages, message, group=group)

    normgrad.torch._sync._all_gather = counted
    try:
        norm, x = layer(2), torch.randn(4, CHANNELS, requires_grad=True)
        for _ in range(2):
            norm(x).sum().backward()
            sent.append("step")
        norm(x.detach()).sum().backward()
        sent.append("no dx")
        norm.eval()(x).sum().backward()
    finally:
        normgrad.torch._sync._all_gather = gather
    return sent


def test_one_message_each_way(four):  # type: ignore
    """16 C + 16 bytes; 8 more in the first call of a layer."""
    size = 16 * CHANNELS + 16
    for sent in four.run(count_messages, ranks=(0, 1)):
        assert sent == [8, size, size, "step", size, size, "step", size, "no dx"]


def double_backward(rank):  # type: ignore
    x = torch.randn(4, CHANNELS, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(2)(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        dx.sum().backward()


def test_double_backward_is_refused(four):  # type: ignore
    four.run(double_backward, ranks=(0, 1))


def check_operators(rank):  # type: ignore
    name, ops = GROUPS[2].group_name, torch.ops.normgrad
    x, running = torch.randn(3, 4, 2, requires_grad=True), (torch.zeros(4), torch.ones(4))
    gamma, beta = torch.randn(2, 4).requires_grad_().unbind()
    torch.library.opcheck(
        ops.sync_batch_norm.default, (x, gamma, beta, *running, 0.1, 1e-5, 4, False, name)
    )
    dy, statistics = torch.randn(3, 4, 2), (torch.rand(4), torch.rand(4))
    for wanted in ([True, True, True], [True, False, False]):
        torch.library.opcheck(
            ops.sync_batch_norm_backward.default,
            (dy, x.detach(), gamma.detach(), *statistics, 1e-5, name, wanted),
        )


def test_opcheck(four):  # type: ignore
    four.run(check_operators, ranks=(0, 1))


def refuse(rank):  # type: ignore
    with pytest.raises(normgrad.ArrayTypeError, match="float64.*torch.nn.SyncBatchNorm"):
        layer(2)(torch.randn(3, CHANNELS).double())


def test_float64_is_refused(four):  # type: ignore
    four.run(refuse, ranks=(0, 1))


# Disagreement


def disagree(rank, what):  # type: ignore
    """An error on every rank, which changes nothing, after which the group still works."""
    odd = rank == 1
    norm = normgrad.nn.SyncBatchNorm(6 if odd and what == "layer" else 4, process_group=GROUPS[2])
    x = torch.randn(3, norm.num_features, requires_grad=True)
    norm.eps = 1e-3 if odd and what == "eps" else 1e-5
    if what not in ("layer", "eps"):
        loss = norm(x).sum()
    if what == "dtype" and odd:
        x = x.bfloat16()
    if what == "channels" and odd:
        x = torch.randn(3, 7)
    before = [buffer.clone() for buffer in norm.buffers()]
    with pytest.raises(normgrad.ArgumentError) as caught:
        if what == "mode" and odd:
            loss.backward()
        else:
            norm(x)
    assert norm.weight.grad is None
    same_bits([before, list(norm.buffers())])
    again = normgrad.nn.SyncBatchNorm(4, process_group=GROUPS[2])
    again(torch.randn(3, 4))
    return str(caught.value)


@pytest.mark.parametrize(
    "what, sentence",
    [
        (
            "layer",
            r"expected 4 channels .* in its first call on every rank, got 6 channels .* rank 1",
        ),
        ("eps", "expected .* eps 1e-05 .* got .* eps 0.001 .* on rank 1"),
        ("dtype", "expected .* float32 .* in its forward pass .* got .* bfloat16 .* on rank 1"),
        ("channels", "expected 4 channels .* got 7 channels .* on rank 1"),
        ("mode", "expected .* in its forward pass .* got .* in its backward pass on rank 1"),
    ],
)
def test_disagreement_is_an_error_on_every_rank(four, what, sentence):  # type: ignore
    first, second = four.run(disagree, what, ranks=(0, 1))
    assert re.search(sentence, first), first
    assert second.startswith("process_group: expected"), second


# Failure

DEADLINE = 3.0
NORMS: list = []


def prepare(rank):  # type: ignore
    NORMS.extend((normgrad.nn.SyncBatchNorm(64), Clock()))
    x = torch.randn(4, 64, requires_grad=True)
    NORMS.append((x, NORMS[0](x).sum()))  # also a first call, and something to go back through
    # Not before: a machine that is busy elsewhere may take longer to connect them.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=DEADLINE))


def stranded(rank, backward, late):  # type: ignore
    """A call that cannot succeed: how long it took to say so."""
    norm, clock, (x, loss) = NORMS
    time.sleep(late)
    before = [buffer.clone() for buffer in norm.buffers()]
    start = clock.seconds
    with pytest.raises(RuntimeError):
        loss.backward() if backward else norm(x)
    taken = clock.seconds - start
    same_bits([before, list(norm.buffers())])
    assert x.grad is None and norm.weight.grad is None
    return taken


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_fails(how):  # type: ignore
    """Rank 2 is in the collective already, or never comes; rank 1 comes when rank 2 has failed."""
    for group in range(0, REPETITIONS, 3):  # three at a time: they wait most of the time
        runs = []
        for repetition in range(group, min(group + 3, REPETITIONS)):
            ranks = Ranks(3)
            runs.append((ranks, repetition % 2 == 1, repetition % 3 != 1))
        try:
            for ranks, *_ in runs:
                ranks.run(prepare)
            for ranks, backward, inside in runs:
                ranks.start(0, stranded, backward, 0.0)
                ranks.start(1, stranded, backward, 0.6)
                if inside:
                    ranks.start(2, stranded, backward, 0.0)
            time.sleep(0.3)
            for ranks, *_ in runs:
                os.kill(ranks.processes[2].pid, getattr(signal, how))
            for ranks, *_ in runs:
                for rank in (0, 1):
                    taken = ranks.result(rank)
                    assert taken < DEADLINE + 2, f"{taken:.1f} s"
        finally:
            for ranks, *_ in runs:
                ranks.__exit__()
