"""Trains a small model twice, with PyTorch's norms and with NormGrad's, and compares the two.

    python examples/train/train.py text      # a transformer with LayerNorm
    python examples/train/train.py images    # a convolutional net with BatchNorm

Both start from the same parameters and see the same batches. The losses are plotted to a PNG file;
a table says how long a step took and how much memory the run needed. Wants torch, normgrad,
matplotlib and tqdm.
"""

import argparse
import importlib
import multiprocessing
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm


@dataclass
class Run:
    losses: list[float]
    milliseconds: float  # of a step, the median
    megabytes: float  # at most: of the GPU, or of the process


def train(task_name: str, ours: bool, steps: int, device: str) -> Run:
    task = importlib.import_module(task_name).Task()
    torch.backends.cudnn.allow_tf32 = False  # the runs should differ by roundings of float32 alone
    torch.manual_seed(1)
    random = torch.Generator().manual_seed(2)
    model = task.model().to(device)
    if ours:
        import normgrad.torch

        normgrad.torch.patch(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for _ in (bar := tqdm(range(steps), desc="NormGrad" if ours else "PyTorch ")):
        given, wanted = (tensor.to(device) for tensor in task.batch(random))
        start = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(given).flatten(0, -2), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
    memory = (
        torch.cuda.max_memory_allocated() / 2**20
        if device == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    )
    return Run(losses, 1000 * statistics.median(seconds), memory)


def plot(name: str, runs: dict[str, Run], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (label, run), style in zip(runs.items(), (dict(lw=4, alpha=0.4), dict(lw=1))):
        axes.plot(range(1, len(run.losses) + 1), run.losses, label=label, **style)
    axes.set(title=f"{name}: the same training with two norms", xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("task", choices=("text", "images"))
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--out", type=Path, help="the PNG file; default: TASK.png")
    options = arguments.parse_args()
    # A process each, so that neither's memory counts for the other.
    runs = {}
    for ours in (False, True):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            runs["NormGrad" if ours else "PyTorch"] = pool.apply(
                train, (options.task, ours, options.steps, options.device)
            )
    file = options.out or Path(f"{options.task}.png")
    plot(options.task, runs, file)
    print(f"\n{'norms':10}{'ms/step':>10}{'peak MB':>10}{'last loss':>12}")
    for label, run in runs.items():
        print(f"{label:10}{run.milliseconds:10.1f}{run.megabytes:10.0f}{run.losses[-1]:12.6f}")
    # Training amplifies roundings, so that in the long run no two runs are the same.
    losses = zip(*(run.losses[:50] for run in runs.values()))
    apart = max(abs(a - b) / abs(a) for a, b in losses)
    print(f"\nIn the first 50 steps the losses differ by {apart:.1e} of themselves at most; see {file}.")


if __name__ == "__main__":
    main()
