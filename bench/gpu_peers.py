#!/usr/bin/env python3
"""NormGrad beside its peers on one NVIDIA GPU: who is faster, case by case.

Runs `normgrad bench --device cuda`, then the peers on the same cases: PyTorch's kernels (aten, cudnn),
torch.compile (inductor) and Liger-Kernel (liger). All are timed alike: replays of a CUDA graph, the L2
cache emptied before each, the median. A peer that is missing or fails is named and left out. Needs a
Python that has PyTorch for CUDA. The exit status says whether there was anything to compare, not who won.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import datetime
import itertools
import json
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import torch_on_gpu  # it imports torch only where it times

# From here on the share of copy speed tells how memory is used, not how long a launch takes.
LARGE_BYTES = {"layer_norm": 100e6, "rms_norm": 100e6, "batch_norm": 50e6}
ANSWER_SECONDS = 600  # a peer that compiles and tunes takes many
METHOD = (f"Medians of {torch_on_gpu.REPLAYS} graph replays in microseconds, the L2 cache emptied before "
          "each. copy: a device copy that moves as many bytes; share: copy / normgrad; ratio: fastest peer / "
          "normgrad, so more than 1 is a win.")
MEANS = ("Means are geometric; those of the share are over large cases: 100 MB for rows, 50 MB for "
         "BatchNorm, and more.")


@dataclasses.dataclass(frozen=True)
class Case:
    operator: str
    shape: tuple
    layout: str
    dtype: str
    bytes: int    # of all operands: what must be moved once
    ours: float   # microseconds
    copy: float   # those of a device copy that moves as many bytes

    @property
    def name(self):
        extents = "x".join(map(str, self.shape))
        layout = " channels_last" if self.layout == "channels_last" else ""
        return f"{self.operator} {extents}{layout} {self.dtype}"

    @property
    def share(self):
        return self.copy / self.ours


def run_normgrad(tool, shapes, dtypes):
    """The document that `normgrad bench --json` writes."""
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder, "normgrad.json")
        command = [tool, "bench", "--device", "cuda", "--dtype", ",".join(dtypes), "--json", results,
                   "--shapes", *shapes]
        try:
            # Its table would be a second one. A wrong case is exit status 1, and in the document.
            status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        except OSError as error:
            sys.exit(f"{tool}: {error.strerror}; --normgrad names the tool")
        try:
            return json.loads(results.read_text())
        except (OSError, ValueError):
            sys.exit(f"{tool} bench: no results, exit status {status}")


def read_cases(document):
    return [Case(entry["operator"], tuple(map(int, entry["shape"].split("x"))), entry["layout"],
                 entry["dtype"], entry["minimal_bytes"], entry["real_time"],
                 entry["minimal_bytes"] / entry["limit_bytes_per_second"] * 1e6)
            for entry in document["benchmarks"] if entry["implementation"] == "normgrad"]


class Worker:
    """torch_on_gpu.serve in another process."""

    def __init__(self, compile_mode):
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=torch_on_gpu.serve, args=(theirs, compile_mode))
        self.process.start()
        theirs.close()
        self.hello = self.receive()

    def receive(self):
        try:
            if self.pipe.poll(ANSWER_SECONDS):
                return self.pipe.recv()
            return "failed", f"no answer within {ANSWER_SECONDS} s"
        except (EOFError, OSError):
            return "failed", "its process ended"

    def time(self, peer, case):
        if self.hello[0] == "failed":  # without PyTorch or a GPU no peer is there
            return "missing", self.hello[1]
        self.pipe.send((peer, case))
        return self.receive()

    def close(self):
        self.pipe.close()
        self.process.join(5)
        self.process.kill()


def compile_peers(peers, cases, compile_mode, jobs):
    """Fills the compilers' caches on disk, by several processes side by side: compiling takes most of
    the time, and leaves the GPU idle. What they time meanwhile is thrown away."""
    compiled = [peer for peer in peers if peer in torch_on_gpu.COMPILED]

    def work(some):
        worker = Worker(compile_mode)
        for case, peer in itertools.product(some, compiled):
            if case.operator in torch_on_gpu.PEERS[peer][1] and worker.time(peer, case)[0] == "failed":
                worker.close()
                worker = Worker(compile_mode)
        worker.close()

    if compiled:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, [cases[job::jobs] for job in range(jobs)]))


def time_peers(peers, cases, compile_mode):
    """{case: {peer: microseconds}}, sentences about who was absent, and PyTorch's version."""
    times, missing, failed = {case: {} for case in cases}, {}, collections.Counter()
    worker = Worker(compile_mode)
    version = worker.hello[1] if worker.hello[0] == "ready" else "none"
    for number, case in enumerate(cases, 1):
        for peer in peers:
            if peer in missing or case.operator not in torch_on_gpu.PEERS[peer][1]:
                continue
            kind, answer = worker.time(peer, case)
            if kind == "timed":
                times[case][peer] = answer
            elif kind == "missing":
                missing[peer] = answer
            else:
                failed[f"{peer}: {answer}"] += 1
                worker.close()
                worker = Worker(compile_mode)
        figures = [f"{name} {time:.1f}" for name, time in {"normgrad": case.ours, **times[case]}.items()]
        print(f"[{number}/{len(cases)}] {case.name}: {', '.join(figures)}", file=sys.stderr)
    worker.close()
    return times, [f"{peer}: {why}" for peer, why in missing.items()] + [
        f"{why} (cases: {count})" for why, count in failed.items()], version


def ratio_of(case, times):
    """How many times faster than the fastest peer; None without one."""
    return min(times[case].values()) / case.ours if times[case] else None


def case_table(times):
    """The first line of a table is its header."""
    peers = [each for each in torch_on_gpu.PEERS if any(each in of_case for of_case in times.values())]
    lines = [["case", "normgrad", "copy", "share", *peers, "winner", "ratio"]]
    for case, of_case in times.items():
        winner, ratio = "-", "-"
        if of_case:
            contestants = {"normgrad": case.ours, **of_case}
            winner, ratio = min(contestants, key=contestants.get), f"{ratio_of(case, times):.2f}"
        lines.append([case.name, f"{case.ours:.1f}", f"{case.copy:.1f}", f"{case.share:.2f}",
                      *[f"{of_case[peer]:.1f}" if peer in of_case else "-" for peer in peers],
                      winner, ratio])
    return lines


def summary_table(times):
    groups = {}
    for case in times:
        groups.setdefault((case.operator, case.dtype), []).append(case)
    lines = [["operator", "dtype", "won", "mean ratio", "large cases", "mean share", "least share"]]
    for (operator, dtype), cases in groups.items():
        ratios = [ratio_of(case, times) for case in cases if times[case]]
        large = [case for case in cases if case.bytes >= LARGE_BYTES[operator]]
        least = min(large, key=lambda case: case.share, default=None)
        lines.append([
            operator, dtype, f"{sum(ratio >= 1 for ratio in ratios)} of {len(ratios)}",
            f"{statistics.geometric_mean(ratios):.2f}" if ratios else "-", str(len(large)),
            f"{statistics.geometric_mean(case.share for case in large):.2f}" if large else "-",
            f"{least.share:.2f} ({'x'.join(map(str, least.shape))})" if large else "-"])
    return lines


def as_text(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "".join("  ".join(cell.rjust(width) if at else cell.ljust(width)
                             for at, (cell, width) in enumerate(zip(line, widths))).rstrip() + "\n"
                   for line in lines)


def as_markdown(lines):
    rows = ["| " + " | ".join(line) + " |\n" for line in lines]
    return "".join([rows[0], "|---" * len(lines[0]) + "|\n", *rows[1:]])


def report(times, facts, absences, tabulate):
    parts = ["# NormGrad beside its peers on a GPU\n",
             "".join(f"- {name}: {fact}\n" for name, fact in facts.items()),
             METHOD + "\n", tabulate(case_table(times)), MEANS + "\n", tabulate(summary_table(times))]
    if absences:
        parts.append("Not measured:\n\n" + "".join(f"- {why}\n" for why in absences))
    return "\n".join(parts)


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def facts_of(document, torch_version):
    return {
        "date": datetime.date.today().isoformat(),
        "device": document["context"].get("gpu", "unknown"),
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "PyTorch": torch_version,
        "commit": output_of("git", "-c", "safe.directory=*", "-C", str(ROOT), "describe", "--always",
                            "--dirty", "--exclude=*"),
    }


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")
    parser.add_argument("--normgrad", metavar="TOOL", default="normgrad",
                        help="the tool; the one on PATH if not given")
    parser.add_argument("--shapes", metavar="FILE", nargs="+",
                        default=sorted(map(str, ROOT.glob("bench/shapes/cuda/*.txt"))),
                        help="files of shapes; all of bench/shapes/cuda if not given")
    parser.add_argument("--dtype", metavar="NAMES", type=names, default=["bf16", "f32"],
                        help="element types, of bf16,f16,f32; bf16,f32 if not given")
    parser.add_argument("--peers", metavar="NAMES", type=names, default=list(torch_on_gpu.PEERS),
                        help=f"some of {','.join(torch_on_gpu.PEERS)}; all if not given")
    parser.add_argument("--compile-mode", metavar="MODE", default="max-autotune-no-cudagraphs",
                        help="torch.compile's; 'default' compiles faster and tunes less")
    parser.add_argument("--jobs", metavar="N", type=int, default=8,
                        help="processes that compile before the peers are timed; 8 if not given, 1: none")
    parser.add_argument("--output", metavar="FILE", help="writes the result as Markdown")
    options = parser.parse_args(arguments)
    for peer in options.peers:
        if peer not in torch_on_gpu.PEERS:
            parser.error(f"--peers: expected {', '.join(torch_on_gpu.PEERS)}; got '{peer}'")
    return options


def main(arguments=None):
    options = parse(arguments)
    document = run_normgrad(options.normgrad, options.shapes, options.dtype)
    cases = read_cases(document)
    if options.jobs > 1:
        compile_peers(options.peers, cases, options.compile_mode, options.jobs)
    times, absences, torch_version = time_peers(options.peers, cases, options.compile_mode)
    absences = [f"normgrad: {why}" for why in document["context"].get("wrong", [])] + absences
    facts = facts_of(document, torch_version)
    print(report(times, facts, absences, as_text), end="")
    if options.output:
        pathlib.Path(options.output).write_text(report(times, facts, absences, as_markdown))
    return 0 if any(times.values()) else "nothing to compare"


if __name__ == "__main__":
    sys.exit(main())
