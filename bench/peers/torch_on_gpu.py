"""The peers on an NVIDIA GPU, timed as `normgrad bench --device cuda` times NormGrad: the part of
bench/gpu_peers.py that runs in a process of its own, since an error of CUDA leaves a process useless.
docs/peers.md says how each peer is called and why."""
import math
import statistics
import types

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
DEVICE = "cuda"
REPLAYS = 31               # as normgrad bench
FLUSHED_BYTES = 256 << 20  # the same; four times the cache if that is more
EPS = 1e-5
LARGEST_ERROR = 2e-2       # of dx's norm: it only has to be the same operation


def statistics_of(operator, x):
    """mean (None for RMSNorm) and rstd, in the type of x."""
    axes = (0, 2, 3) if operator == "batch_norm" else 1
    mean = None if operator == "rms_norm" else x.mean(axes, keepdim=True)
    squares = (x if mean is None else x - mean).square().mean(axes, keepdim=True)
    return mean, (squares + EPS).rsqrt()


def make_data(torch, case):
    """Random operands. Parameters have the type of x, BatchNorm's float32; so have the statistics."""
    torch.manual_seed(sum(case.shape))
    dtype = getattr(torch, DTYPES[case.dtype])
    batch = case.operator == "batch_norm"
    # Images of height 1: PyTorch knows channels-last with four axes only.
    shape = (*case.shape[:2], 1, case.shape[2]) if batch else case.shape
    memory = torch.channels_last if case.layout == "channels_last" else torch.contiguous_format

    def normal(shape, dtype, center, width):
        return torch.randn(shape, dtype=dtype, device=DEVICE).mul_(width).add_(center)

    x, dy = (normal(shape, dtype, center, width).contiguous(memory_format=memory)
             for center, width in ((0.5, 2), (0.1, 1)))
    gamma = normal(shape[1], torch.float32 if batch else dtype, 1, 0.1)
    mean, rstd = statistics_of(case.operator, x.float())
    return types.SimpleNamespace(operator=case.operator, x=x, dy=dy, gamma=gamma,
                                 beta=torch.zeros_like(gamma), mean=mean, rstd=rstd)


def gradients(operator, x, dy, gamma, mean, rstd):
    """The formulas, for torch.compile in float32 and as the reference in float64."""
    x_hat = (x if mean is None else x - mean) * rstd
    if operator == "batch_norm":
        dgamma, dbeta = (each.sum((0, 2, 3), keepdim=True) for each in (dy * x_hat, dy))
        per_element = gamma.numel() / x.numel()
        inner = dy - dbeta * per_element - x_hat * (dgamma * per_element)
        return gamma.view(dbeta.shape) * rstd * inner, dgamma.flatten(), dbeta.flatten()
    g = dy * gamma
    inner = g - x_hat * (g * x_hat).mean(1, keepdim=True)
    if operator == "rms_norm":
        return rstd * inner, (dy * x_hat).sum(0)
    return rstd * (inner - g.mean(1, keepdim=True)), (dy * x_hat).sum(0), dy.sum(0)


# Each peer makes a function without arguments that computes dx, dgamma and, but for RMSNorm, dbeta.


def through_autograd(torch, forward, data, *parameters):
    inputs = [each.detach().requires_grad_() for each in (data.x, *parameters)]
    y = forward(*inputs)
    return lambda: torch.autograd.grad(y, inputs, data.dy, retain_graph=True)


def aten(torch, data, compile_mode):
    ops, cols = torch.ops.aten, data.x.shape[1:]
    if data.operator == "rms_norm":
        rms_norm = torch.nn.functional.rms_norm
        return through_autograd(torch, lambda x, gamma: rms_norm(x, cols, gamma, EPS), data, data.gamma)
    if data.operator == "layer_norm":
        _, mean, rstd = ops.native_layer_norm(data.x, cols, data.gamma, data.beta, EPS)
        return lambda: ops.native_layer_norm_backward(
            data.dy, data.x, cols, mean, rstd, data.gamma, data.beta, [True] * 3)
    mean, rstd = data.mean.flatten(), data.rstd.flatten()
    return lambda: ops.native_batch_norm_backward(
        data.dy, data.x, data.gamma, None, None, mean, rstd, True, EPS, [True] * 3)


def cudnn(torch, data, compile_mode):
    ops = torch.ops.aten
    _, mean, rstd, reserve = ops.cudnn_batch_norm(
        data.x, data.gamma, data.beta, None, None, True, 0.1, EPS)
    return lambda: ops.cudnn_batch_norm_backward(
        data.x, data.dy, data.gamma, None, None, mean, rstd, EPS, reserve)


def inductor(torch, data, compile_mode):
    def backward(x, dy, gamma, mean, rstd):
        dx, *sums = gradients(data.operator, x.float(), dy.float(), gamma.float(), mean, rstd)
        return dx.to(x.dtype), *[each.to(gamma.dtype) for each in sums]

    torch._dynamo.reset()
    compiled = torch.compile(backward, dynamic=False, fullgraph=True, mode=compile_mode)
    return lambda: compiled(data.x, data.dy, data.gamma, data.mean, data.rstd)


def liger(torch, data, compile_mode):
    from liger_kernel.ops import LigerLayerNormFunction, LigerRMSNormFunction
    if data.operator == "rms_norm":  # by default in place: dx takes the memory of dy
        return through_autograd(
            torch, lambda x, gamma: LigerRMSNormFunction.apply(x, gamma, EPS), data, data.gamma)
    return through_autograd(
        torch, lambda x, gamma, beta: LigerLayerNormFunction.apply(x, gamma, beta, EPS), data,
        data.gamma, data.beta)


ROWS = {"layer_norm", "rms_norm"}
PEERS = {"aten": (aten, ROWS | {"batch_norm"}), "cudnn": (cudnn, {"batch_norm"}),
         "inductor": (inductor, ROWS | {"batch_norm"}), "liger": (liger, ROWS)}


COMPILED = {"inductor", "liger"}  # on the spot; both keep the result on disk


def relative_error(data, dy, dx):
    """|dx - exact| / |exact| over some rows or channels."""
    if data.operator == "batch_norm":
        some = slice(None, None, math.ceil(dx.shape[1] / 4))
        x, dy, dx, gamma = data.x[:, some], dy[:, some], dx[:, some], data.gamma[some]
    else:
        some = slice(None, None, math.ceil(dx.shape[0] / 32))
        x, dy, dx, gamma = data.x[some], dy[some], dx[some], data.gamma
    x = x.double()
    exact = gradients(data.operator, x, dy.double(), gamma.double(),
                      *statistics_of(data.operator, x))[0]
    return ((dx - exact).norm() / exact.norm()).item()


def time_peer(torch, peer, case, compile_mode):
    """Microseconds."""
    data = make_data(torch, case)
    dy = data.dy.clone()
    call = PEERS[peer][0](torch, data, compile_mode)
    for _ in range(3):  # compiles, tunes, loads
        call()
    graph = torch.cuda.CUDAGraph()
    # On the stream of everything else: autograd's backward runs where its forward ran.
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        outputs = call()

    def refresh():
        for each in outputs:
            each.fill_(math.nan)
        data.dy.copy_(dy)  # last: a peer that works in place has dx there

    refresh()
    graph.replay()
    error = relative_error(data, dy, outputs[0])
    if not error <= LARGEST_ERROR:
        raise ValueError(f"its dx is off by {error:.1g} of its norm for {case.name}")
    cache = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    flushed = torch.zeros(max(FLUSHED_BYTES, 4 * cache) // 4, device=DEVICE)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    microseconds = []
    for _ in range(REPLAYS):
        refresh()
        flushed.sum()  # a read: what is in the cache then is clean
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        microseconds.append(start.elapsed_time(end) * 1e3)
    return statistics.median(microseconds)


def serve(pipe, compile_mode):
    """Says ("ready", PyTorch's version); then answers pairs of a peer and a case with ("timed",
    microseconds) or ("missing", why). ("failed", why) is its last word."""
    try:
        import torch
        torch.cuda.init()
        pipe.send(("ready", torch.__version__))
        with torch.cuda.stream(torch.cuda.Stream()):
            while True:
                peer, case = pipe.recv()
                try:
                    pipe.send(("timed", time_peer(torch, peer, case, compile_mode)))
                except ImportError as error:
                    pipe.send(("missing", str(error)))
                torch.cuda.empty_cache()
    except EOFError:  # nothing more to do
        pass
    except Exception as error:  # whatever a library throws
        first_line = (str(error).strip().splitlines() or [""])[0]
        pipe.send(("failed", f"{type(error).__name__}: {first_line[:200]}"))
