// ---- The roofline: bandwidth over working set, both logarithmic, under the measured limit ----

const MARGIN = {left: 48, right: 12, top: 14, bottom: 42};
const RADIUS = 4.5;  // of a dot

// A circle, a square and a triangle of about the same area.
function markerPath(operator, x, y, r) {
  if (operator === "rms_norm") {
    return `M${x - .85 * r} ${y - .85 * r}h${1.7 * r}v${1.7 * r}h-${1.7 * r}z`;
  }
  if (operator === "batch_norm") return `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.1 * r}h-${2.4 * r}z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 1 ${2 * r} 0a${r} ${r} 0 1 1 -${2 * r} 0z`;
}

// From the range of the values to [from, to], by logarithms; with some air on both sides, and never
// less than a factor of 20, which has two powers of 4 for the labels of the size.
function logScale(values, from, to) {
  const logs = values.map(Math.log10);
  const span = Math.max(...logs) - Math.min(...logs);
  const air = Math.max(.04 * span + .03, (1.3 - span) / 2);
  const [low, high] = [Math.min(...logs) - air, Math.max(...logs) + air];
  const scale = (value) => from + (to - from) * (Math.log10(value) - low) / (high - low);
  return Object.assign(scale, {low: 10 ** low, high: 10 ** high});
}

// Powers of `base`, or of a power of it if there would be more than `most`, each times the factors.
function ticks({low, high}, base, most, factors = [1]) {
  let step = base;
  while (Math.log(high / low) / Math.log(step) > most) step *= base;
  const found = [];
  for (let value = step ** Math.floor(Math.log(low) / Math.log(step)); value <= high;
       value *= step) {
    found.push(
        ...factors.map((factor) => value * factor).filter((tick) => tick >= low && tick <= high));
  }
  return found;
}

// The limit of a number of threads as points; sizes within 10 % of each other are one point, the
// median of their measurements.
function roofOf(shown, key) {
  const points =
      shown.filter((one) => one.bytes > 0 && one[key] > 0).sort((a, b) => a.bytes - b.bytes);
  const groups = [];
  for (const one of points) {
    const last = groups.at(-1);
    if (last && one.bytes <= 1.1 * last[0].bytes) {
      last.push(one);
    } else {
      groups.push([one]);
    }
  }
  const middle = (group, of) => median(group.map((one) => one[of]));
  return groups.map((group) => ({bytes: middle(group, "bytes"), speed: middle(group, key)}));
}

function drawAxes(picture, x, y, width, height) {
  const bottom = height - MARGIN.bottom;
  const factors = y.high / y.low < 3e4 ? [1, 2, 5] : [1];
  for (const value of ticks(y, 10, 8, factors)) {
    picture.append(
        svg("path", {class: "grid", d: `M${MARGIN.left} ${y(value)}H${width - MARGIN.right}`}),
        svg("text", {class: "tick_y", x: MARGIN.left - 8, y: y(value) + 4},
            plainly(digits(value / 1e9))));
  }
  for (const value of ticks(x, 4, width / 75)) {
    picture.append(
        svg("path", {class: "grid", d: `M${x(value)} ${bottom}v5`}),
        svg("text", {class: "tick_x", x: x(value), y: bottom + 19}, plainly(asBytes(value))));
  }
  picture.append(
      svg("text", {x: width - MARGIN.right, y: height - 4, "text-anchor": "end"}, "working set"),
      svg("text", {x: MARGIN.left + 6, y: MARGIN.top + 6}, "GB/s"));
}

function drawCaches(picture, x, threads, height) {
  for (const level of [1, 2, 3]) {
    const size = cacheSize(level, threads);
    if (size === null || size < x.low || size > x.high) continue;
    picture.append(
        svg("path", {class: "cache", d: `M${x(size)} ${MARGIN.top}V${height - MARGIN.bottom}`}),
        svg("text", {x: x(size) + 4, y: height - MARGIN.bottom - 6}, `L${level}`));
  }
}

function drawRoof(picture, x, y, group, threads) {
  const place = ({bytes, speed}) => `${x(bytes)} ${y(speed)}`;
  for (const [kind, key] of [["plain", "plain"], ["nt", "nt"], ["best", "limit"]]) {
    const points = roofOf(group, key);
    if (!points.length) continue;
    const d = "M" + points.map(place).join("L");
    picture.append(svg("path", {class: `roof ${kind}`, d, "data-threads": threads}));
    if (kind !== "best") continue;
    for (const {bytes, speed} of points) {
      picture.append(svg(
          "circle", {class: "stop", cx: x(bytes), cy: y(speed), r: 2.5, "data-threads": threads}));
    }
    // On the side that the line does not turn to.
    const [first] = points;
    const side = points.slice(0, 3).some(({speed: next}) => next > first.speed) ? 18 : -10;
    picture.append(
        svg("text", {class: "roof_name", x: x(first.bytes) - 3, y: y(first.speed) + side},
            `limit, ${plural(threads, "thread")}`));
  }
}

// Where the dots stand. One that would hide another moves aside, by at most three widths of a dot.
function places(dots, x, y) {
  const taken = [];
  return dots.map((one) => {
    const near = (place, other) => Math.hypot(other.x - place.x, other.y - place.y) < 1.8 * RADIUS;
    const possible = [0, 1, -1, 2, -2, 3, -3].map(
        (steps) => ({x: x(one.bytes) + steps * 2 * RADIUS, y: y(one.speed)}));
    const free = possible.find((place) => !taken.some((other) => near(place, other)));
    taken.push(free ?? possible[0]);
    return taken.at(-1);
  });
}

function drawRoofline(shown) {
  const picture = byId("roofline");
  picture.querySelectorAll(":scope > :not(desc)").forEach((element) => element.remove());
  const dots =
      shown.filter((one) => one.bytes > 0 && one.speed > 0).sort((a, b) => a.bytes - b.bytes);
  if (!dots.length) return;

  const width = Math.max(320, picture.clientWidth);
  const height = Math.round(Math.min(560, Math.max(300, .48 * width)));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const speeds =
      dots.flatMap((one) => [one.speed, one.limit, one.plain, one.nt]).filter((speed) => speed > 0);
  const x = logScale(dots.map((one) => one.bytes), MARGIN.left, width - MARGIN.right);
  const y = logScale(speeds, height - MARGIN.bottom, MARGIN.top);

  drawAxes(picture, x, y, width, height);
  const counts = distinct(dots.map((one) => one.threads));
  drawCaches(picture, x, Math.max(...counts), height);
  for (const threads of counts) {
    drawRoof(picture, x, y, dots.filter((one) => one.threads === threads), threads);
  }
  places(dots, x, y).forEach((place, index) => {
    const one = dots[index];
    picture.append(svg("path", {
      class: `dot ${one.dtype}`,
      d: markerPath(one.operator, place.x, place.y, RADIUS),
      ...marked(one)
    }));
  });
  oneTabStop(picture);
}

// ---- Bars: a row per shape, a column per dtype ----

function drawBars(shown) {
  // A share beyond 125 % is cut off, so that one strange figure does not flatten the others.
  const shares =
      shown.flatMap((one) => [one, ...Object.values(one.peers)]).map((each) => each.share ?? 0);
  const end = Math.min(1.25, Math.max(1, ...shares));
  const width = (share) => `width: ${(100 * Math.min(share, end) / end).toFixed(2)}%`;
  const dtypes = distinct(shown.map((one) => one.dtype)).sort(byDtype);

  const bars = byId("bars");
  bars.replaceChildren();
  for (const operator of distinct(shown.map((one) => one.operator))) {
    const grid = html(
        "div", {class: "shapes", style: `--types: ${dtypes.length}; --limit: ${1 / end}`},
        html("span", {class: "head"}, ""),
        ...dtypes.map((dtype) => html("span", {class: "head"}, dtype)));
    const own = shown.filter((one) => one.operator === operator);
    const rowOf = (one) => JSON.stringify([one.shape, one.layout, one.threads]);
    for (const key of distinct(own.map(rowOf))) {
      const row = own.filter((one) => rowOf(one) === key);
      const [{shape, layout}] = row;
      const below = [layout === "rows" ? "" : named(layout), withThreads(row[0])].filter(Boolean);
      grid.append(html(
          "div", {class: "name"}, asShape(shape), html("small", {}, below.join(", "))));
      for (const dtype of dtypes) {
        const one = row.find((each) => each.dtype === dtype);
        grid.append(one ? barsOf(one, width) : html("div", {class: "bars muted"}, DASH));
      }
    }
    bars.append(html(
        "div", {class: "operator", role: "group", "aria-label": named(operator)},
        html("h3", {}, named(operator)), grid));
  }
  bars.querySelectorAll(".operator").forEach(oneTabStop);
}

function barsOf(one, width) {
  const element = html("div", {class: `bars ${one.dtype}`, ...marked(one)});
  const own = html("div", {class: "own"});
  if (one.share !== null) {
    own.append(html("i", {class: "bar", style: width(one.share), "data-value": one.share}));
  }
  own.append(html("b", {}, asPercent(one.share, 2)));
  element.append(own);
  peers.forEach((name, index) => {
    const peer = one.peers[name];
    if (!peer || peer.share === null) return;
    element.append(html("i", {
      class: `bar peer peer_${index % 2}`,
      style: width(peer.share),
      "data-value": peer.share,
      "data-peer": name
    }));
  });
  return element;
}

function drawLegends() {
  const entry = (picture, title) => html("span", {}, picture, title);
  const swatch = (kind) => html("span", {class: `swatch ${kind}`});
  const drawn = (kind, d) => svg(
      "svg", {width: 26, height: 12, "aria-hidden": "true"}, svg("path", {class: kind, d}));
  const dtypes = distinct(cases.map((one) => one.dtype)).sort(byDtype);
  const operators = distinct(cases.map((one) => one.operator));

  byId("bars_legend").append(
      ...dtypes.map((dtype) => entry(swatch(dtype), dtype)),
      ...peers.map((name, index) => entry(swatch(`thin peer_${index % 2}`), named(name))),
      entry("", "dashed line: 100 %, the limit"));
  byId("roofline_legend").append(
      ...dtypes.map((dtype) => entry(swatch(dtype), dtype)),
      ...operators.map((name) => entry(drawn("key", markerPath(name, 13, 6, 5)), named(name))),
      entry(drawn("roof best", "M0 6H26"), "limit"),
      entry(drawn("roof plain", "M0 6H26"), "with plain stores"),
      entry(drawn("roof nt", "M0 6H26"), "with non-temporal stores"));
}

// ---- Tips, for the pointer and for the keyboard ----

function showTip(mark) {
  const tip = byId("tip");
  const [title, ...lines] = describe(cases[mark.dataset.case]);
  tip.replaceChildren(html("strong", {}, title), ...lines.map((line) => html("span", {}, line)));
  tip.hidden = false;
  const at = mark.getBoundingClientRect();
  const left = Math.min(at.left + at.width / 2, innerWidth - tip.offsetWidth - 8);
  const below = at.bottom + 10 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? at.bottom + 10 : at.top - 10 - tip.offsetHeight}px`;
}

function listenForTips() {
  const hide = () => {
    byId("tip").hidden = true;
  };
  const show = (element) => {
    const mark = element?.closest("[data-case]");
    if (mark) {
      showTip(mark);
    } else {
      hide();
    }
  };
  document.addEventListener("pointerover", ({target}) => show(target));
  document.addEventListener("focusin", ({target}) => show(target));
  document.addEventListener("focusout", hide);
  // The arrow keys scroll the next mark into view; its tip goes with it.
  document.addEventListener("scroll", () => show(document.activeElement), {passive: true});
  document.addEventListener("keydown", ({key}) => {
    if (key === "Escape") hide();
  });
}

// Tab reaches a picture once; the arrow keys go from case to case within it.
function oneTabStop(picture) {
  const marks = [...picture.querySelectorAll("[data-case]")];
  marks[0]?.setAttribute("tabindex", 0);
  picture.onkeydown = (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const next = marks[marks.indexOf(document.activeElement) + step];
    if (!step || !next) return;
    event.preventDefault();
    document.activeElement.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  };
}
