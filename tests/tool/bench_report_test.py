#!/usr/bin/env python3
"""The report of `normgrad bench --html`, opened in Chromium: every figure against the results.

    bench_report_test.py REPORT_PAGE NORMGRAD

REPORT_PAGE turns results into a page. They are those of report_fixture.py and those of a quick run
of NORMGRAD.
"""
import json
import math
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from report_fixture import HOSTILE, IDENTITY, cases_of, fixture, geometric_mean, speed_up
from web_page import opened

REPORT_PAGE = NORMGRAD = None

DASH = "–"
UNITS = {"s": 1e6, "ms": 1e3, "µs": 1, "ns": 1e-3, "%": 1e-2, "×": 1,
         "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
FIGURES = {"threads": "omp_threads", "bytes": "minimal_bytes", "time": "real_time", "p10": "p10",
           "p90": "p90", "speed": "bytes_per_second", "limit": "limit_bytes_per_second",
           "share": "share_of_limit"}
LARGE_BYTES = 4 << 20


def make_page(document):
    return subprocess.run([REPORT_PAGE], input=json.dumps(document), capture_output=True, text=True,
                          check=True).stdout


class ReportTest(unittest.TestCase):
    def check_text(self, text, value, unit):
        """`text` is `value`, in `unit` if it names none, right to its last digit and to 0.5 %."""
        match = re.fullmatch(r"([-+.\de]+?)\s*(|µs|[a-zA-Z]+|%|×)", text)
        self.assertIsNotNone(match, f"expected a figure; got {text!r}")
        shown, name = match.groups()
        size = UNITS[name] if name else unit
        mantissa, _, exponent = shown.partition("e")
        last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        error = abs(float(shown) * size - value)
        self.assertLessEqual(error, 0.5 * last_digit * size * (1 + 1e-6), f"{text} for {value}")
        self.assertLessEqual(error, 0.00501 * abs(value), f"{text} for {value}")

    def check_cell(self, cell, value, unit=1.0):
        if value is None:
            self.assertEqual((cell.text(), cell.get("data-value")), (DASH, None))
        else:
            self.assertAlmostEqual(float(cell.get("data-value")) / value, 1, delta=1e-12)
            self.check_text(cell.text(), value, unit)

    def check_table(self, page, cases, peers):
        rows = page.by_id("figures").all("tbody")[0].all("tr")
        self.assertEqual(len(rows), len(cases))
        for row, (identity, entries) in zip(rows, cases):
            cells = {cell.get("data-column"): cell for cell in row.all("td")}
            self.assertEqual(len(cells), 4 + len(FIGURES) + len(peers) + bool(peers))
            for key, value in zip(IDENTITY[:4], identity):
                self.assertEqual(cells[key].get("data-value"), value)
            self.assertEqual(cells["shape"].text(), identity[1].replace("x", "×"))
            for column, key in FIGURES.items():
                unit = 1e9 if column in ("speed", "limit") else 1
                self.check_cell(cells[column], entries["normgrad"][key], unit)
            for peer in peers:
                self.check_cell(cells[peer], entries.get(peer, {}).get("real_time"))
            if peers:
                self.check_cell(cells["speedup"], speed_up(entries))

    def check_summary(self, page, cases, peers):
        groups = {}
        for (operator, _, _, dtype, threads), entries in cases:
            groups.setdefault((operator, dtype, str(threads)), []).append(entries)
        rows = page.by_id("summary").all("tr", having="data-operator")
        self.assertEqual(len(rows), len(groups))
        for row in rows:
            group = groups[row.get("data-operator"), row.get("data-dtype"), row.get("data-threads")]
            cells = {cell.get("data-summary"): cell for cell in row.all("td")}
            own = [entries["normgrad"] for entries in group]
            large = [one for one in own if one["minimal_bytes"] >= LARGE_BYTES]
            for column, part in (("all", own), ("large", large)):
                mean = geometric_mean(one["share_of_limit"] for one in part)
                self.check_cell(cells[column], mean)
            if peers:
                self.check_cell(cells["speedup"], geometric_mean(map(speed_up, group)))

    def check_bars(self, page, cases):
        """One bar per share, as long as the share is; what is beyond 125 % is cut off."""
        shares = []
        for _, entries in cases:
            for name, one in entries.items():
                if one["share_of_limit"] is not None:
                    shares.append((name, one["share_of_limit"]))
        bars = page.by_id("bars").all("i")
        shown = [(bar.get("data-peer") or "normgrad", float(bar.get("data-value"))) for bar in bars]
        self.assertEqual(sorted(shown), sorted(shares))
        end = min(1.25, max([1, *(share for _, share in shares)]))
        for bar, (_, share) in zip(bars, shown):
            width = float(re.fullmatch(r"width: ([\d.]+)%;?", bar.get("style")).group(1))
            self.assertAlmostEqual(width, 100 * min(share, end) / end, delta=0.006)

    def axis(self, page, direction):
        """The function from a figure to its place that the labels of an axis say."""
        points = []
        for tick in page.by_id("roofline").all("text", having="class", equal=f"tick_{direction}"):
            value, _, name = tick.text().partition("\u00a0")
            figure = float(value) * (UNITS[name] if name else 1e9)
            points.append((math.log(figure), float(tick.get(direction))))
        (low, start), (high, end) = points[0], points[-1]

        def place(figure):
            return start + (end - start) * (math.log(figure) - low) / (high - low)

        for log, at in points:
            self.assertAlmostEqual(at, place(math.exp(log)), delta=0.01)
        return place

    def check_roofline(self, page, cases):
        picture = page.by_id("roofline")
        width, height = map(float, picture.get("viewbox").split()[2:])
        x_axis, y_axis = self.axis(page, "x"), self.axis(page, "y")
        self.assertTrue(x_axis(1) < x_axis(2) and y_axis(1) > y_axis(2))
        dots = picture.all("path", having="data-case")
        self.assertEqual(sorted(int(dot.get("data-case")) for dot in dots), list(range(len(cases))))
        for dot in dots:
            (operator, shape, _, dtype, _), entries = cases[int(dot.get("data-case"))]
            own = entries["normgrad"]
            self.assertEqual(dot.get("class"), f"dot {dtype}")
            self.assertIn(shape.replace("x", "×"), dot.get("aria-label"))
            x, y = map(float, re.match(r"M([-.\de]+) ([-.\de]+)", dot.get("d")).groups())
            self.assertTrue(0 < x < width and 0 < y < height, f"{own['name']} at {x} {y}")
            if operator == "layer_norm":
                # A circle's path begins at its left; it may stand three dots of 9 pixels aside.
                self.assertAlmostEqual(y, y_axis(own["bytes_per_second"]) - 4, delta=0.01)
                aside = (x + 4.5 - x_axis(own["minimal_bytes"])) / 9
                self.assertAlmostEqual(aside, round(aside), delta=0.01)
                self.assertLessEqual(abs(round(aside)), 3)
        limited = {str(case[4]) for case, entries in cases if entries["normgrad"]["share_of_limit"]}
        for kind in ("best", "plain", "nt"):
            roofs = picture.all("path", having="class", equal=f"roof {kind}")
            self.assertEqual(sorted(roof.get("data-threads") for roof in roofs), sorted(limited))

    def check_page(self, page, document):
        cases, peers = cases_of(document), list(document["context"].get("peers", {}))
        self.assertEqual(page.all("html")[0].get("data-ready"), "true", "its script did not end")
        self.check_table(page, cases, peers)
        self.check_summary(page, cases, peers)
        self.check_bars(page, cases)
        self.check_roofline(page, cases)

    def test_every_figure(self):
        source = make_page(fixture())
        page = opened(source)
        self.check_page(page, fixture())
        # What the results say is text, whatever it looks like.
        facts = page.by_id("facts").text().replace("\u00a0", " ")
        for text in (HOSTILE, "{{results}}", "oneDNN 3.11.0", "PyTorch 2.13.0", "0.1.0, cpu:avx3",
                     "L2 2 MiB", "2026-11-15 12:00:00"):
            self.assertIn(text, facts)
        self.assertIn("<i>dx[7]</i>", page.by_id("wrong").text())
        # Nothing is fetched.
        self.assertNotRegex(source, "https?://")
        for element in page.all():
            self.assertIsNone(element.get("src"))
            self.assertIn(element.get("href"), (None, "data:,"))

    def test_sorting_and_filters(self):
        """By share, the largest first and dashes last; then only what has two threads and f32."""
        page = opened(make_page(fixture()), """
            const named = (list, name) => [...list].find((one) => one.textContent === name);
            const press = () => named(document.querySelectorAll("th button"), "Share").click();
            press();
            press();
            for (const [name, text] of [["dtype", "f32"], ["threads", "2"]]) {
              const select = document.querySelector(`select[name=${name}]`);
              select.value = named(select.options, text).value;
              select.dispatchEvent(new Event("change"));
            }""")
        cases = cases_of(fixture())
        kept = [case for case in cases if case[0][3:] == ("f32", 2)]
        order = sorted(kept, key=lambda case: -(case[1]["normgrad"]["share_of_limit"] or -1))
        self.check_table(page, order, ["onednn", "torch"])
        self.check_bars(page, kept)
        self.assertEqual(page.by_id("shown").text(), f"{len(kept)} of {len(cases)} cases")
        heads = page.by_id("figures").all("th", having="aria-sort")
        self.assertEqual([head.get("aria-sort") for head in heads], ["descending"])

    def test_keyboard_and_width(self):
        """Arrow keys go from case to case with the tip; the page is no wider than the window."""
        page = opened(make_page(fixture()), """
            const root = document.documentElement;
            root.dataset.overflow = root.scrollWidth - root.clientWidth;
            const first = document.querySelector("#roofline [tabindex='0']");
            first.focus();
            first.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
            root.dataset.focused = document.activeElement.dataset.case;""")
        root = page.all("html")[0]
        self.assertEqual(root.get("data-overflow"), "0")
        cases = cases_of(fixture())
        by_size = sorted(range(len(cases)), key=lambda i: cases[i][1]["normgrad"]["minimal_bytes"])
        second = by_size[1]
        self.assertEqual(root.get("data-focused"), str(second))
        stops = page.by_id("roofline").all("path", having="tabindex", equal="0")
        self.assertEqual([stop.get("data-case") for stop in stops], [str(second)])
        self.assertIsNone(page.by_id("tip").get("hidden"))
        self.assertIn(cases[second][0][1].replace("x", "×"), page.by_id("tip").text())

    def test_no_peers(self):
        document = fixture()
        document["context"]["peers"] = {}
        document["benchmarks"] = [
            one for one in document["benchmarks"] if one["implementation"] == "normgrad"]
        self.check_page(opened(make_page(document)), document)

    def test_nothing_measured(self):
        for document in ({"context": fixture()["context"], "benchmarks": []}, {}):
            page = opened(make_page(document))
            self.assertEqual(page.all("html")[0].get("data-ready"), "true")
            self.assertIn("No case was measured", page.by_id("headline").text())
            self.assertIsNotNone(page.by_id("measured").get("hidden"))

    def test_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            figures, report = f"{folder}/run.json", f"{folder}/run.html"
            subprocess.run([NORMGRAD, "bench", "--quick", "--json", figures, "--html", report],
                           check=True, stdout=subprocess.DEVNULL)
            with open(figures, encoding="utf-8") as file:
                document = json.load(file)
            with open(report, encoding="utf-8") as file:
                page = opened(file.read())
        self.assertGreater(len(document["benchmarks"]), 0)
        self.check_page(page, document)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    REPORT_PAGE, NORMGRAD = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
