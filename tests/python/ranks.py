"""Processes that form a gloo group and run functions of the tests. Each is forked from a server that
has imported PyTorch already, so that a group costs a fraction of a second."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

# What the functions import sooner or later, seconds of it, and what is under test.
PRELOADED = ["torch._dynamo", "torch._functorch.aot_autograd", "normgrad.nn", "pytest", "ranks"]
PATIENCE = 240.0  # seconds; machines are shared, and this only ends a test that would never end


class Clock(threading.Thread):
    """The time that this process was awake, so that a paused machine counts as no time at all."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(0.02)
            now = time.monotonic()
            self.seconds += min(now - before, 0.5)
            before = now


def _serve(rank: int, size: int, port: int, connection: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE)
    )
    while True:
        function, arguments = pickle.loads(connection.recv_bytes())
        try:
            answer = True, function(rank, *arguments)
        except Exception:
            answer = False, traceback.format_exc()
        connection.send_bytes(pickle.dumps(answer))  # tensors by value


class Ranks:
    """``size`` processes; use it in a ``with`` block."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        self._connections, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, self._store.port, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self.processes.append(process)

    def start(self, rank: int, function: Callable[..., Any], *arguments: Any) -> None:
        self._connections[rank].send_bytes(pickle.dumps((function, arguments)))

    def result(self, rank: int) -> Any:
        if not self._connections[rank].poll(PATIENCE):
            raise TimeoutError(f"rank {rank} hangs")
        good, value = pickle.loads(self._connections[rank].recv_bytes())
        if not good:
            raise AssertionError(f"rank {rank}: {value}")
        return value

    def run(self, function: Callable[..., Any], *arguments: Any, ranks: Any = None) -> list[Any]:
        """``function(rank, *arguments)`` on all ranks, or on those; its results."""
        ranks = range(len(self.processes)) if ranks is None else ranks
        for rank in ranks:
            self.start(rank, function, *arguments)
        return [self.result(rank) for rank in ranks]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)  # also ends one that is stopped
            process.join()
