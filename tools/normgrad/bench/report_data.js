// The page's script, first part: the results, figures as text, elements. The others follow in the
// same element: report_pictures.js, report.js.
"use strict";

// ---- The results: one case = one operator, shape, layout, dtype and number of threads ----

const {context = {}, benchmarks = []} = JSON.parse(document.getElementById("results").textContent);

const NAMES = {
  __proto__: null,
  layer_norm: "LayerNorm",
  rms_norm: "RMSNorm",
  batch_norm: "BatchNorm",
  onednn: "oneDNN",
  torch: "PyTorch",
  rows: "rows",
  channels_first: "channels first",
  channels_last: "channels last",
};
const DTYPES = ["f32", "f16", "bf16"];

const named = (word) => NAMES[word] ?? String(word);
const number = (value) => (Number.isFinite(value) ? value : null);
const distinct = (values) => [...new Set(values)];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

const peers = distinct([
  ...Object.keys(context.peers ?? {}),
  ...benchmarks.map((entry) => entry.implementation).filter((name) => name !== "normgrad"),
]);

function figures(entry = {}) {
  return {
    time: number(entry.real_time),
    p10: number(entry.p10),
    p90: number(entry.p90),
    speed: number(entry.bytes_per_second),
    share: number(entry.share_of_limit),
    bytes: number(entry.minimal_bytes),
    limit: number(entry.limit_bytes_per_second),
    plain: number(entry.limit_plain_bytes_per_second),
    nt: number(entry.limit_nt_bytes_per_second),
  };
}

function collect() {
  const found = new Map();
  for (const entry of benchmarks) {
    const {operator, shape, layout, dtype, omp_threads: threads} = entry;
    const key = JSON.stringify([operator, shape, layout, dtype, threads]);
    if (!found.has(key)) {
      found.set(key, {operator, shape, layout, dtype, threads, ...figures(), peers: {}});
    }
    if (entry.implementation === "normgrad") {
      Object.assign(found.get(key), figures(entry));
    } else {
      found.get(key).peers[entry.implementation] = figures(entry);
    }
  }
  const all = [...found.values()];
  all.forEach((one, index) => {
    const times = Object.values(one.peers).map((peer) => peer.time).filter((time) => time !== null);
    one.speedup = times.length && one.time ? Math.min(...times) / one.time : null;
    one.index = index;
  });
  return all;
}

const cases = collect();

const threadCounts = distinct(cases.map((one) => one.threads)).sort((a, b) => a - b);
const withThreads = (one) => (threadCounts.length > 1 ? plural(one.threads, "thread") : "");
const byDtype = (a, b) => DTYPES.indexOf(a) - DTYPES.indexOf(b);

function geometricMean(values) {
  const logs = values.filter((value) => value > 0).map(Math.log);
  return logs.length ? Math.exp(logs.reduce((a, b) => a + b) / logs.length) : null;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// All the caches of a level that a number of threads can use; null if the results do not say.
function cacheSize(level, threads) {
  const cache =
      (context.caches ?? []).find((one) => one.level === level && one.type !== "Instruction");
  return cache ? cache.size * Math.ceil(threads / Math.max(1, cache.num_sharing ?? 1)) : null;
}

// Smaller cases fit a core's own cache, as in the means that the command prints: there the limit is
// the speed of a cache without the cost of a call.
const LARGE_BYTES = 4 * 2 ** 20;
const isLarge = (one) => one.bytes >= LARGE_BYTES;

// ---- Figures as text: three significant digits, a dash for what was not measured ----

const DASH = "–";

function digits(value, count = 3) {
  if (value === 0) return "0";
  if (value < 1e-4 || value >= 1e6) return value.toExponential(count - 1);
  const exponent = Math.floor(Math.log10(Number(value.toPrecision(count))));
  return value.toFixed(Math.max(0, count - 1 - exponent));
}

const TIME_UNITS = [["s", 1e6], ["ms", 1e3], ["µs", 1], ["ns", 1e-3]];
const BYTE_UNITS =
    [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];

// The largest unit in which the value is at least 1, or the smallest one there is.
function inUnits(units) {
  return (value) => {
    if (value === null) return DASH;
    const fitting = units.find(([, size]) => Number((value / size).toPrecision(3)) >= 1);
    const [name, size] = fitting ?? units.at(-1);
    return `${digits(value / size)}\u00a0${name}`;
  };
}

// 48.0 KiB as 48 KiB: for figures that are round by nature.
const plainly = (text) => text.replace(/\.0+(?!\d)/, "").replace(/(\.\d*[1-9])0+/, "$1");

const asTime = inUnits(TIME_UNITS);
const asBytes = inUnits(BYTE_UNITS);
const asGigabytes = (value) => (value === null ? DASH : digits(value / 1e9));
const asPercent = (value, count) =>
    (value === null ? DASH : `${digits(value * 100, count)}\u00a0%`);
const asTimes = (value) => (value === null ? DASH : `${digits(value)}×`);
const asShape = (shape) => String(shape).replaceAll("x", "×");

// ---- Elements ----

// The namespace is that of the <svg> in the page.
function makeIn(namespace) {
  return (tag, attributes = {}, ...children) => {
    const element = document.createElementNS(namespace, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };
}

const byId = (id) => document.getElementById(id);
const html = makeIn(document.documentElement.namespaceURI);
const svg = makeIn(byId("roofline").namespaceURI);

// What a case says of itself: its name, where it ran, its figures.
function describe(one) {
  const lines = [
    `${named(one.operator)} ${asShape(one.shape)}` +
        (one.layout === "rows" ? "" : `, ${named(one.layout)}`),
    `${one.dtype}, ${plural(one.threads, "thread")}, ${asBytes(one.bytes)}`,
    `NormGrad: ${asTime(one.time)}, ${asGigabytes(one.speed)} GB/s, ` +
        `${asPercent(one.share)} of the limit`,
    `Limit: ${asGigabytes(one.limit)} GB/s (plain stores ${asGigabytes(one.plain)}, ` +
        `non-temporal ${asGigabytes(one.nt)})`,
  ];
  for (const [name, peer] of Object.entries(one.peers)) {
    lines.push(`${named(name)}: ${asTime(peer.time)}, ${asPercent(peer.share)} of the limit`);
  }
  return lines;
}

const marked = (one) =>
    ({"data-case": one.index, "aria-label": describe(one).join("; "), role: "img", tabindex: -1});
