#!/usr/bin/env python3
"""bench/gpu_peers.py without a GPU: a recorded result of `normgrad bench`, and peers with made-up times."""
import contextlib
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import gpu_peers

# An entry as the tool wrote it on an H200.
RECORDED = json.loads("""{
 "name": "batch_norm/32x64x12544/channels_first/bf16/threads:16/normgrad",
 "family_index": 0, "per_family_instance_index": 0,
 "run_name": "batch_norm/32x64x12544/channels_first/bf16/threads:16/normgrad",
 "run_type": "iteration", "repetitions": 1, "repetition_index": 0, "threads": 1, "iterations": 31,
 "real_time": 60.864001512527466, "cpu_time": 60.864001512527466, "time_unit": "us",
 "bytes_per_second": 2532553039061.579, "p10": 60.095999389886856, "p90": 61.792001128196716,
 "implementation": "normgrad", "operator": "batch_norm", "shape": "32x64x12544",
 "layout": "channels_first", "dtype": "bf16", "omp_threads": 16, "minimal_bytes": 154141312,
 "limit_bytes_per_second": 4166377950656.0146, "limit_plain_bytes_per_second": 4166377950656.0146,
 "limit_nt_bytes_per_second": 0.0, "share_of_limit": 0.6078548487572563}""")


def entry(operator, shape, dtype, time, copy, size, **more):
    return {**RECORDED, "layout": "rows", "operator": operator, "shape": shape, "dtype": dtype,
            "real_time": time, "minimal_bytes": size, "limit_bytes_per_second": size / copy * 1e6, **more}


DOCUMENT = {
    "context": {"gpu": "NVIDIA H200, driver 13.0", "wrong": ["rms_norm/8x8: dx[3] is wrong"]},
    "benchmarks": [
        RECORDED,
        entry("layer_norm", "16384x4096", "bf16", 120, 96, 402_677_760),
        entry("layer_norm", "16384x2048", "bf16", 100, 50, 201_351_168),
        entry("layer_norm", "8x4096", "bf16", 10, 5, 221_216),
        entry("layer_norm", "8x4096", "bf16", 1, 5, 221_216, implementation="another"),
        entry("batch_norm", "4x8x16", "f32", 8, 4, 6_304, layout="channels_last"),
    ],
}
TIMES = {  # microseconds; None: it fails
    "batch_norm 32x64x12544 bf16": {"aten": 121.728, "cudnn": 100.0, "inductor": None},
    "layer_norm 16384x4096 bf16": {"aten": 400.0, "inductor": 240.0},
    "layer_norm 16384x2048 bf16": {"aten": 300.0, "inductor": 200.0},
    "layer_norm 8x4096 bf16": {"aten": 9.0, "inductor": 5.0},
}


class FakeWorker:
    """Has no liger; fails where TIMES has no time, and is of no more use then."""
    started = asked_for_liger = 0

    def __init__(self, compile_mode):
        FakeWorker.started += 1
        self.hello, self.lost = ("ready", "2.11.0"), False

    def time(self, peer, case):
        assert not self.lost, "asked again after it failed"
        if peer == "liger":
            FakeWorker.asked_for_liger += 1
            return "missing", "No module named 'liger_kernel'"
        time = TIMES.get(case.name, {}).get(peer)
        self.lost = time is None
        return ("failed", "RuntimeError: no kernel") if self.lost else ("timed", time)

    def close(self):
        pass


def measured():
    with mock.patch.object(gpu_peers, "Worker", FakeWorker), contextlib.redirect_stderr(io.StringIO()):
        return gpu_peers.time_peers(list(gpu_peers.torch_on_gpu.PEERS), gpu_peers.read_cases(DOCUMENT),
                                    "default")


class GpuPeersTest(unittest.TestCase):
    def test_cases_are_those_of_normgrad(self):
        cases = gpu_peers.read_cases(DOCUMENT)
        self.assertEqual([case.name for case in cases], [*TIMES, "batch_norm 4x8x16 channels_last f32"])
        self.assertEqual(cases[0].shape, (32, 64, 12544))
        self.assertAlmostEqual(cases[0].share, RECORDED["share_of_limit"], delta=1e-12)
        self.assertAlmostEqual(cases[0].copy, 36.9965, delta=1e-4)

    def test_what_has_to_be_compiled_is(self):
        asked = []

        class Recorder(FakeWorker):
            def time(self, peer, case):
                asked.append((peer, case.name))
                return super().time(peer, case)

        cases = gpu_peers.read_cases(DOCUMENT)
        with mock.patch.object(gpu_peers, "Worker", Recorder):
            gpu_peers.compile_peers(["aten", "inductor", "liger"], cases, "default", 3)
        rows = [case for case in cases if case.operator != "batch_norm"]
        self.assertEqual(sorted(asked), sorted([("inductor", case.name) for case in cases] +
                                               [("liger", case.name) for case in rows]))

    def test_absent_peers_are_named_once(self):
        FakeWorker.started = FakeWorker.asked_for_liger = 0
        times, absences, version = measured()
        self.assertEqual([times[case] for case in times], [
            {"aten": 121.728, "cudnn": 100.0}, *list(TIMES.values())[1:], {}])
        self.assertEqual(sorted(absences), [
            "aten: RuntimeError: no kernel (cases: 1)", "cudnn: RuntimeError: no kernel (cases: 1)",
            "inductor: RuntimeError: no kernel (cases: 2)", "liger: No module named 'liger_kernel'"])
        self.assertEqual(version, "2.11.0")
        self.assertEqual(FakeWorker.started, 1 + 4)  # a new one after each failure
        self.assertEqual(FakeWorker.asked_for_liger, 1)

    def test_table(self):
        self.assertEqual(gpu_peers.case_table(measured()[0]), [
            ["case", "normgrad", "copy", "share", "aten", "cudnn", "inductor", "winner", "ratio"],
            ["batch_norm 32x64x12544 bf16", "60.9", "37.0", "0.61", "121.7", "100.0", "-", "normgrad", "1.64"],
            ["layer_norm 16384x4096 bf16", "120.0", "96.0", "0.80", "400.0", "-", "240.0", "normgrad", "2.00"],
            ["layer_norm 16384x2048 bf16", "100.0", "50.0", "0.50", "300.0", "-", "200.0", "normgrad", "2.00"],
            ["layer_norm 8x4096 bf16", "10.0", "5.0", "0.50", "9.0", "-", "5.0", "inductor", "0.50"],
            ["batch_norm 4x8x16 channels_last f32", "8.0", "4.0", "0.50", "-", "-", "-", "-", "-"]])

    def test_summary(self):
        # (2 * 2 * 0.5)^(1/3) = 1.26; (0.8 * 0.5)^(1/2) = 0.63, without the small case
        self.assertEqual(gpu_peers.summary_table(measured()[0])[1:], [
            ["batch_norm", "bf16", "1 of 1", "1.64", "1", "0.61", "0.61 (32x64x12544)"],
            ["layer_norm", "bf16", "2 of 3", "1.26", "2", "0.63", "0.50 (16384x2048)"],
            ["batch_norm", "f32", "0 of 0", "-", "0", "-", "-"]])

    def test_large_begins_at_100_MB_for_rows_and_50_for_batch_norm(self):
        sizes = [("layer_norm", 100_000_000), ("layer_norm", 99_999_999), ("rms_norm", 99_999_999),
                 ("batch_norm", 50_000_000), ("batch_norm", 49_999_999)]
        cases = gpu_peers.read_cases({"benchmarks": [entry(operator, "2x2", "f32", 2, 1, size)
                                                     for operator, size in sizes]})
        large = {line[0]: line[4] for line in gpu_peers.summary_table({case: {} for case in cases})[1:]}
        self.assertEqual(large, {"layer_norm": "1", "rms_norm": "0", "batch_norm": "1"})

    def test_formats(self):
        lines = [["case", "us"], ["a", "10.5"], ["long", "1.0"]]
        self.assertEqual(gpu_peers.as_text(lines), "case    us\na     10.5\nlong   1.0\n")
        self.assertEqual(gpu_peers.as_markdown(lines),
                         "| case | us |\n|---|---|\n| a | 10.5 |\n| long | 1.0 |\n")


class CommandTest(unittest.TestCase):
    """The whole script, with a stand-in for the tool that writes its arguments and the document."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "document.json").write_text(json.dumps(DOCUMENT))
        self.tool = self.write_tool('while [ "$1" != --json ]; do shift; done; cp document.json "$2"; exit 1')

    def write_tool(self, last):
        tool = self.folder / "normgrad"
        tool.write_text(f'#!/bin/sh\ncd {self.folder}\necho "$@" > arguments\n{last}\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return str(tool)

    def run_script(self, *arguments):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            status = gpu_peers.main(["--normgrad", self.tool, *arguments])
        return status, output.getvalue()

    def test_report(self):
        markdown = self.folder / "report.md"
        with mock.patch.object(gpu_peers, "Worker", FakeWorker):
            status, text = self.run_script("--output", str(markdown))
        self.assertEqual(status, 0)
        self.assertRegex((self.folder / "arguments").read_text(),
                         "^bench --device cuda --dtype bf16,f32 --json .*normgrad.json --shapes "
                         ".*/cuda/edge.txt .*/cuda/language_models.txt .*/cuda/vision.txt$")
        document = markdown.read_text()
        for fact in ("- date: 20", "- device: NVIDIA H200, driver 13.0\n", "- driver: ",
                     "- PyTorch: 2.11.0\n", "- commit: ", "- normgrad: rms_norm/8x8: dx[3] is wrong\n",
                     "- liger: No module named 'liger_kernel'\n"):
            self.assertIn(fact, document)
            self.assertIn(fact, text)
        self.assertIn("| layer_norm 8x4096 bf16 | 10.0 | 5.0 | 0.50 | 9.0 | - | 5.0 | inductor | 0.50 |\n",
                      document)
        self.assertRegex(text, r"layer_norm +bf16 +2 of 3 +1\.26 +2 +0\.63 +0\.50 \(16384x2048\)\n")

    def test_without_torch_there_is_nothing_to_compare(self):
        (self.folder / "torch.py").write_text("raise ImportError('no PyTorch here')")
        with mock.patch.object(sys, "path", [str(self.folder), *sys.path]):
            status, text = self.run_script("--peers", "aten,liger")
        self.assertEqual(status, "nothing to compare")  # exit status 1
        self.assertIn("Not measured:\n\n- normgrad: rms_norm/8x8: dx[3] is wrong\n"
                      "- aten: ImportError: no PyTorch here\n- liger: ImportError: no PyTorch here\n", text)
        self.assertRegex(text, r"layer_norm 16384x4096 bf16 +120\.0 +96\.0 +0\.80 +- +-\n")

    def test_a_process_that_dies(self):
        (self.folder / "torch.py").write_text("import os; os._exit(1)")
        with mock.patch.object(sys, "path", [str(self.folder), *sys.path]):
            text = self.run_script("--peers", "aten")[1]
        self.assertIn("- aten: its process ended\n", text)

    def test_a_tool_without_results(self):
        for last in ("exit 1", 'while [ "$1" != --json ]; do shift; done; : > "$2"; exit 1'):
            self.write_tool(last)
            with self.assertRaisesRegex(SystemExit, "no results, exit status 1"):
                self.run_script()
        os.remove(self.tool)
        with self.assertRaisesRegex(SystemExit, "--normgrad names the tool"):
            self.run_script()

    def test_unknown_peer(self):
        with self.assertRaises(SystemExit) as refusal:
            self.run_script("--peers", "aten,apex")
        self.assertEqual(refusal.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
