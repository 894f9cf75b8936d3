"""Norm layers in PyTorch: forward and backward with torch's modules and with NormGrad's, and what a
call costs the host.

    python bench/python_layers.py [--device cuda] [--json FILE]

Layers of Llama-3-8B (a sequence of 8192 tokens) and of ResNet-50 (a batch of 32), through the
modules and autograd as a training step would. Both are timed in turns in one run; the figures are
medians. Host time: of a call whose work is next to nothing (8 rows of 64).
"""

import argparse
import copy
import json
import statistics
import time
from functools import partial

import torch

import normgrad
import normgrad.nn
import normgrad.torch
import normgrad.torch.functional as F


class AddNorm(torch.nn.Module):
    """h = x + residual and its RMSNorm, as between the blocks of a transformer, which go on with
    both. NormGrad has one operator for it."""

    def __init__(self, shape):
        super().__init__()
        self.residual = torch.nn.Parameter(torch.randn(shape))
        self.norm = torch.nn.RMSNorm(shape[-1])

    def forward(self, x):
        if isinstance(self.norm, normgrad.nn.RMSNorm):
            return F.add_rms_norm(
                x, self.residual, self.norm.normalized_shape, self.norm.weight, self.norm.eps
            )
        h = x + self.residual
        return self.norm(h), h


LAYERS = {
    "Llama-3-8B RMSNorm 8192x4096": lambda: (torch.nn.RMSNorm(4096), (8192, 4096)),
    "Llama-3-8B x + residual, RMSNorm": lambda: (AddNorm((8192, 4096)), (8192, 4096)),
    "GPT LayerNorm 8192x4096": lambda: (torch.nn.LayerNorm(4096), (8192, 4096)),
    "ResNet-50 BatchNorm 32x64x112x112": lambda: (torch.nn.BatchNorm2d(64), (32, 64, 112, 112)),
    "ResNet-50 BatchNorm 32x256x56x56": lambda: (torch.nn.BatchNorm2d(256), (32, 256, 56, 56)),
    "ResNet-50 BatchNorm 32x512x28x28": lambda: (torch.nn.BatchNorm2d(512), (32, 512, 28, 28)),
    "ResNet-50 BatchNorm 32x1024x14x14": lambda: (torch.nn.BatchNorm2d(1024), (32, 1024, 14, 14)),
    "ResNet-50 BatchNorm 32x2048x7x7": lambda: (torch.nn.BatchNorm2d(2048), (32, 2048, 7, 7)),
}


def step_of(layer, x, dy):
    leaves = [x, *layer.parameters()]

    def step():
        y = layer(x)
        outputs = y if isinstance(y, tuple) else (y,)
        torch.autograd.grad(outputs, leaves, [dy] * len(outputs))

    return step


def time_once(step, device):
    """Microseconds, with caches full of something else."""
    if device == "cuda":
        torch.empty(2**28, dtype=torch.uint8, device="cuda").fill_(1)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # a millisecond, in which the host gets ahead
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1000
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e6


def compare_layer(make, dtype, device, repeats):
    layer, shape = make()
    theirs = layer.to(device, dtype)
    ours = copy.deepcopy(theirs)
    normgrad.torch.patch(ours)
    x, dy = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    x.requires_grad_()
    steps = step_of(theirs, x, dy), step_of(ours, x, dy)
    times = [], []
    for repeat in range(repeats + 3):
        for step, list_ in zip(steps, times):
            elapsed = time_once(step, device)
            if repeat >= 3:
                list_.append(elapsed)
    return [statistics.median(list_) for list_ in times]


def host_times(functions, rounds=200, calls=20):
    """Microseconds of the host per call of each: medians of rounds in turns. A GPU is done with
    such a call before the host has the next."""
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - begin) / calls * 1e6)
    return {name: statistics.median(list_) for name, list_ in times.items()}


def compare_host(device):
    """Forward and backward through the modules and autograd, PyTorch's and NormGrad's."""
    functions = {}
    for name, theirs in (("LayerNorm", torch.nn.LayerNorm(64)), ("RMSNorm", torch.nn.RMSNorm(64))):
        theirs = theirs.to(device)
        ours = copy.deepcopy(theirs)
        normgrad.torch.patch(ours)
        x = torch.randn(8, 64, device=device, requires_grad=True)
        dy = torch.randn(8, 64, device=device)
        for label, layer in (("torch", theirs), ("normgrad", ours)):
            functions[f"{name} {label} forward"] = partial(layer, x)
            functions[f"{name} {label} backward"] = partial(
                torch.autograd.grad, layer(x), [x, *layer.parameters()], dy, retain_graph=True
            )
    return host_times(functions)


def backward_calls(device):
    """What autograd calls for one backward, and its parts. The kernel, with its launch, is a call
    of ``_core`` with all arrays at hand less one without results, which does everything else."""
    x, dy = (torch.randn(8, 64, device=device) for _ in range(2))
    parameters = torch.ones(64, device=device), torch.zeros(64, device=device)
    per_row, per_channel = x[:, 0].clone(), x[0].clone()
    results = dict(zip(("dx", "dgamma", "dbeta"), map(torch.empty_like, (x, *parameters))))
    workspace = torch.empty(1 << 24, dtype=torch.uint8, device=device)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *parameters)]
    layers = {
        "LayerNorm": (
            F.layer_norm(leaves[0], (64,), *leaves[1:]),
            normgrad._core.layer_norm_backward,
            dict(mean=per_row, spread=per_row),
        ),
        "RMSNorm": (
            F.rms_norm(leaves[0], (64,), leaves[1]),
            normgrad._core.rms_norm_backward,
            dict(spread=per_row),
        ),
        "BatchNorm": (
            F.batch_norm(leaves[0], None, None, *leaves[1:], training=True),
            normgrad._core.batch_norm_backward,
            dict(mean=per_channel, spread=per_channel),
        ),
    }
    functions = {}
    for name, (y, core, statistics_of_x) in layers.items():
        arrays = dict(dy=dy, x=x, gamma=parameters[0], **statistics_of_x)
        outputs = dict(results, allocate=lambda size: workspace)
        if name == "RMSNorm":
            del outputs["dbeta"]
        functions[f"{name} call"] = partial(y.grad_fn._forward_cls.backward, y.grad_fn, dy)
        functions[f"{name} with arrays"] = partial(core, **arrays, **outputs)
        functions[f"{name} checks"] = partial(core, **arrays)
    with torch.no_grad():
        times = host_times(functions)
    for name in layers:
        kernel = times.pop(f"{name} with arrays") - times.pop(f"{name} checks")
        times[f"{name} kernel"] = kernel
        times[f"{name} beyond the kernel"] = times[f"{name} call"] - kernel
    return times


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--repeats", type=int, default=0, help="default: 50 on a GPU, 7 else")
    arguments.add_argument("--json", help="also write the figures to this file")
    options = arguments.parse_args()
    device = options.device
    repeats = options.repeats or (50 if device == "cuda" else 7)
    figures = {"device": device, "torch": torch.__version__, "normgrad": normgrad.__version__}
    if device == "cuda":
        figures["name"] = torch.cuda.get_device_name()
    print(f"{'forward and backward, us':38}{'type':>9}{'torch':>10}{'normgrad':>10}{'ratio':>7}")
    for name, make in LAYERS.items():
        for dtype in (torch.float32, torch.bfloat16):
            theirs, ours = compare_layer(make, dtype, device, repeats)
            kind = str(dtype).removeprefix("torch.")
            figures[f"{name} {kind}"] = {"torch_us": theirs, "normgrad_us": ours}
            print(f"{name:38}{kind:>9}{theirs:10.1f}{ours:10.1f}{theirs / ours:7.2f}")
    for title, measure in (
        ("host", compare_host),
        ("one backward call of the host", backward_calls),
    ):
        figures[title] = measure(device)
        print(f"\n{title}, us")
        for name, value in figures[title].items():
            print(f"{name:38}{value:10.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
