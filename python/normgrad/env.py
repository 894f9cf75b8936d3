"""``python -m normgrad.env``: what a bug report needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys

from . import _core


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> list[tuple[str, str]]:
    if not any(name.startswith("cuda") for name in _core.implementations()):
        return [("CUDA", "not usable: no device, or not in this build")]
    lines = []
    for index in range(_core.cuda_device_count()):
        facts = _core.describe_cuda_device(index)
        lines.append(
            (
                f"cuda:{index}",
                f"{facts['name']}, compute capability {facts['compute_capability']}, "
                f"{facts['multiprocessors']} multiprocessors, "
                f"{facts['total_bytes'] >> 20} MiB, driver {facts['driver']}, "
                f"runtime {facts['runtime']}",
            )
        )
    return lines


def describe() -> str:
    """One fact per line."""
    xla = importlib.util.find_spec("normgrad._xla")
    facts = [
        ("normgrad", _core.version()),
        ("implementations", ", ".join(_core.implementations())),
        ("XLA handlers", "in this build" if xla else "not in this build"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("system", platform.platform()),
        ("processor", f"{_processor()}, {len(os.sched_getaffinity(0))} usable cores"),
        *_devices(),
        *(
            (package, _version(package))
            for package in ("numpy", "ml_dtypes", "torch", "jax", "cupy")
        ),
        *(
            (name, value)
            for name, value in sorted(os.environ.items())
            if name.startswith(("NORMGRAD_", "OMP_", "GOMP_", "CUDA_"))
        ),
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:{width}}  {value}" for name, value in facts)


if __name__ == "__main__":
    sys.stdout.write(describe() + "\n")
