"""Trains the convolutional net of images.py in several processes, each with a part of the batch, and
beside it in one process with the whole batch: with SyncBatchNorm the losses are the same.

    torchrun --nproc-per-node 2 examples/train/parallel.py

gloo on the CPU, nccl where every process has a GPU.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import images
import normgrad.torch


def train(model, optimizer, pictures, figures):
    loss = cross_entropy(model(pictures), figures)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=20)
    steps = arguments.parse_args().steps

    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpu = torch.cuda.device_count() >= here
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    # A process that dies or stops makes the others raise when this time is over.
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()

    task = images.Task()
    torch.manual_seed(1)
    whole = task.model().to(device)
    parts = task.model().to(device)
    parts.load_state_dict(whole.state_dict())
    normgrad.torch.patch(whole)
    normgrad.torch.convert_sync_batchnorm(parts)
    parts = DistributedDataParallel(parts, device_ids=[local] if gpu else None)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (whole, parts)]

    random = torch.Generator().manual_seed(2)
    worst = 0.0
    for step in range(steps):
        batch = [tensor.to(device) for tensor in task.batch(random)]
        loss = train(parts, optimizers[1], *(tensor.chunk(size)[rank] for tensor in batch))
        dist.all_reduce(loss)
        if rank == 0:
            together, alone = loss.item() / size, train(whole, optimizers[0], *batch).item()
            worst = max(worst, abs(together - alone) / alone)
            print(f"step {step + 1:3}   {size} processes {together:.6f}   one {alone:.6f}")
    if rank == 0:
        print(f"\nThe losses differ by {worst:.1e} of themselves at most.")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
