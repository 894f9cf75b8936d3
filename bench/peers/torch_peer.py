"""PyTorch as a peer of `normgrad bench`; docs/peers.md has the protocol and the reasons."""

import ctypes
import json
import math
import sys
import time

INSTALL = "install PyTorch (pip install torch) or set NORMGRAD_PYTHON to a Python that has it"
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def load(path, shape, dtype):
    """The array of a file, in memory of its own."""
    return torch.from_file(path, size=math.prod(shape), dtype=dtype).clone().view(shape)


def save(path, tensor):
    open(path, "wb").close()  # from_file would keep the end of a larger file
    file = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    file.copy_(tensor.flatten())


# Each of the three takes a request and returns a function without arguments that computes dx,
# dgamma and dbeta (None for RMSNorm), and nothing else.


def layer_norm(case, dtype):
    rows, cols = case["shape"]
    x, dy = (load(case[name], (rows, cols), dtype) for name in ("x", "dy"))
    mean, rstd = (load(case[name], (rows, 1), torch.float32) for name in ("mean", "rstd"))
    gamma = load(case["gamma"], (cols,), torch.float32)
    beta = torch.zeros(cols)
    backward = torch.ops.aten.native_layer_norm_backward.default
    return lambda: backward(dy, x, [cols], mean, rstd, gamma, beta, [True, True, True])


def rms_norm(case, dtype):
    rows, cols = case["shape"]
    x, dy = (load(case[name], (rows, cols), dtype) for name in ("x", "dy"))
    gamma = load(case["gamma"], (cols,), torch.float32)
    if has_fused_rms_norm():
        fused = torch.ops.aten._fused_rms_norm_backward.default
        rstd = (x.float().square().mean(1, keepdim=True) + case["eps"]).rsqrt()
        return lambda: (*fused(dy, x, [cols], rstd, gamma, [True, True]), None)
    x.requires_grad_()
    gamma.requires_grad_()
    y = torch.nn.functional.rms_norm(x, (cols,), gamma, case["eps"])
    return lambda: (*torch.autograd.grad(y, (x, gamma), dy, retain_graph=True), None)


def has_fused_rms_norm():
    """PyTorch 2.13 has this operator for GPUs only."""
    name = "_fused_rms_norm_backward"
    return hasattr(torch.ops.aten, name) and torch._C._dispatch_has_kernel_for_dispatch_key(
        "aten::" + name, "CPU"
    )


def batch_norm(case, dtype):
    samples, channels, length = case["shape"]

    # Images of height 1: PyTorch knows channels-last with four axes only.
    def image(name):
        if case["layout"] == "channels_last":
            return load(case[name], (samples, 1, length, channels), dtype).permute(0, 3, 1, 2)
        return load(case[name], (samples, channels, 1, length), dtype)

    x, dy = image("x"), image("dy")
    gamma, mean, variance = (
        load(case[name], (channels,), torch.float32) for name in ("gamma", "mean", "variance")
    )
    rstd = (variance + case["eps"]).rsqrt()
    backward = torch.ops.aten.native_batch_norm_backward.default
    return lambda: backward(
        dy, x, gamma, None, None, mean, rstd, True, case["eps"], [True, True, True]
    )


OPERATORS = {"layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm}


class Peer:
    def hello(self, request):
        global torch
        try:
            import torch
        except ImportError as missing:
            return {"ok": False, "why": f"{sys.executable}: {missing}; {INSTALL}"}
        torch.set_num_threads(request["threads"])
        return {"name": "torch", "version": torch.__version__}

    def prepare(self, case):
        self.channels_last = case["layout"] == "channels_last"
        try:
            self.backward = OPERATORS[case["operator"]](case, getattr(torch, DTYPES[case["dtype"]]))
            self.outputs = self.backward()
        except (AttributeError, RuntimeError) as error:  # no such function; not for these types
            self.release(case)
            reason = str(error).strip().splitlines()[0]
            return {"ok": False, "why": f"PyTorch {torch.__version__}: {reason}"}
        return {"ok": True}

    def run(self, request):
        seconds = []
        for _ in range(1 + request["repeat"]):
            # Before the clock starts, so that the next outputs find the memory of the last ones.
            self.outputs = None
            start = time.perf_counter()
            self.outputs = self.backward()
            seconds.append(time.perf_counter() - start)
        return {"ok": True, "seconds": seconds[1:]}

    def check(self, request):
        dx, dgamma, dbeta = self.outputs
        save(request["dx"], dx.permute(0, 2, 3, 1) if self.channels_last else dx)
        save(request["dgamma"], dgamma)
        if dbeta is not None:
            save(request["dbeta"], dbeta)
        return {"ok": True}

    def release(self, request):
        self.backward = self.outputs = None
        ctypes.CDLL(None).malloc_trim(0)  # the environment told malloc to keep everything
        return {"ok": True}


def main():
    # What a library prints must not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    peer = Peer()
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(peer, request["do"])(request)
        print(json.dumps(answer), file=answers, flush=True)


main()
