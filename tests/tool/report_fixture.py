"""Results of `normgrad bench` for the test of its report, and what follows from results."""
import math

IDENTITY = ("operator", "shape", "layout", "dtype", "omp_threads")
HOSTILE = "</script><b>&amp; {{script}} <!-- \"quoted\" 'CPU'"


def entry(case, threads, implementation, time, size, limit, limit_nt=0.0):
    """One measurement, as the command writes it; without a limit (None), also without a share."""
    operator, shape, layout, dtype = case.split()
    name = f"{operator}/{shape}/{layout}/{dtype}/threads:{threads}/{implementation}"
    speed = size / time * 1e6
    best = None if limit is None else max(limit, limit_nt)
    return {
        "name": name, "run_name": name, "run_type": "iteration", "repetitions": 1, "threads": 1,
        "iterations": 7, "real_time": time, "cpu_time": time, "time_unit": "us",
        "bytes_per_second": speed, "p10": time * 0.93, "p90": time * 1.21,
        "implementation": implementation, "operator": operator, "shape": shape, "layout": layout,
        "dtype": dtype, "omp_threads": threads, "minimal_bytes": size,
        "limit_bytes_per_second": best, "limit_plain_bytes_per_second": limit,
        "limit_nt_bytes_per_second": None if limit is None else limit_nt,
        "share_of_limit": None if best is None else speed / best,
    }


def fixture():
    """All that the page has to cope with: several peers or none, figures from tiny to huge."""
    f32, f16, bf16 = (f"layer_norm 8192x1024 rows {dtype}" for dtype in ("f32", "f16", "bf16"))
    tiny, huge = "layer_norm 1x64 rows f32", "layer_norm 32768x4096 rows f32"
    unlimited = "rms_norm 4096x1024 rows f32"
    first, last = (f"batch_norm 32x64x3136 channels_{which} f32" for which in ("first", "last"))
    return {
        "context": {
            "date": "2026-11-15T12:00:00+00:00", "host_name": "{{results}}", "cpu_model": HOSTILE,
            "num_cpus": 2, "normgrad_version": "0.1.0", "normgrad_implementation": "cpu:avx3",
            "library_build_type": "release", "peers": {"onednn": "3.11.0", "torch": "2.13.0"},
            "caches": [{"type": "Data", "level": 1, "size": 49152, "num_sharing": 1},
                       {"type": "Unified", "level": 2, "size": 2 << 20, "num_sharing": 1}],
            "wrong": ["rms_norm/3x3: <i>dx[7]</i>"],
        },
        "benchmarks": [
            entry(f32, 2, "normgrad", 2236.4, 100728832, 52.1e9, 64.4e9),
            entry(f32, 2, "onednn", 3180.7, 100728832, 52.1e9, 64.4e9),
            entry(f32, 2, "torch", 2686.2, 100728832, 52.1e9, 64.4e9),
            entry(bf16, 2, "normgrad", 999.6, 50401280, 52.1e9, 64.4e9),
            entry(bf16, 2, "onednn", 2797.0, 50401280, 52.1e9, 64.4e9),
            entry(f16, 2, "normgrad", 1403.0, 50401280, 52.1e9, 64.4e9),
            entry(f32, 1, "normgrad", 4400.0, 100728832, 26.1e9, 32.2e9),
            entry(f32, 1, "torch", 4100.0, 100728832, 26.1e9, 32.2e9),
            entry(tiny, 2, "normgrad", 1.23456e-7, 12, 5e17),
            entry(huge, 2, "normgrad", 9.8765e9, 9.9e12, 39e9, 41e9),
            entry(unlimited, 2, "normgrad", 877.5, 50380800, None),
            entry(unlimited, 2, "torch", 12500.0, 50380800, None),
            entry(first, 2, "normgrad", 300.0, 77072384, 50e9, 64e9),
            entry(last, 2, "normgrad", 1900.0, 77072384, 50e9, 64e9),
            entry(last, 2, "onednn", 1900.0, 77072384, 50e9, 64e9),
        ],
    }


def cases_of(document):
    """The entries by case, in order: [(identity, {implementation: entry})]."""
    cases = {}
    for one in document["benchmarks"]:
        cases.setdefault(tuple(one[key] for key in IDENTITY), {})[one["implementation"]] = one
    return list(cases.items())


def speed_up(entries):
    others = [one["real_time"] for name, one in entries.items() if name != "normgrad"]
    return min(others) / entries["normgrad"]["real_time"] if others else None


def geometric_mean(values):
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None
