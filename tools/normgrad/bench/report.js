// ---- Headline ----

function drawHeadline() {
  const large = geometricMean(cases.filter(isLarge).map((one) => one.share));
  const share = large ?? geometricMean(cases.map((one) => one.share));
  const speedup = geometricMean(cases.map((one) => one.speedup));
  const parts = [`${asPercent(share, 2)} of the memory limit`];
  if (large !== null) parts[0] += ` from ${plainly(asBytes(LARGE_BYTES))} on`;
  if (speedup !== null) parts.push(`${asTimes(speedup)} as fast as the fastest other library`);
  const nothing = "No case was measured, so there is nothing to show.";
  byId("headline").textContent = cases.length ? `${parts.join(", ")}.` : nothing;

  // The cases whose gradients the command found wrong: it has not timed them.
  for (const wrong of context.wrong ?? []) {
    byId("wrong").append(html("p", {}, `Wrong gradients, not timed: ${wrong}`));
  }
}

function drawFacts() {
  const caches =
      [1, 2, 3].map((level) => [level, cacheSize(level, 1)]).filter(([, size]) => size !== null);
  const versions = peers.map((name) => `${named(name)}\u00a0${context.peers?.[name] ?? ""}`.trim());
  const facts = {
    "Machine":
        [context.cpu_model, context.num_cpus && plural(context.num_cpus, "CPU"), context.host_name],
    "Caches": caches.map(([level, size]) => `L${level}\u00a0${plainly(asBytes(size))}`),
    "NormGrad": [
      context.normgrad_version, context.normgrad_implementation,
      context.library_build_type && `${context.library_build_type} build`
    ],
    "Beside it": versions.length ? versions : ["no other library"],
    "Date": [String(context.date ?? "").replace("T", " ")],
  };
  for (const [name, values] of Object.entries(facts)) {
    const text = values.filter(Boolean).join(", ");
    if (text) byId("facts").append(html("div", {}, html("dt", {}, name), html("dd", {}, text)));
  }
}

function drawSummary() {
  for (const operator of distinct(cases.map((one) => one.operator))) {
    const titles = ["", `from ${plainly(asBytes(LARGE_BYTES))} on`, "all sizes"];
    if (peers.length) titles.push("speed-up");
    const head = html("tr", {}, ...titles.map((title) => html("th", {scope: "col"}, title)));
    const body = html("tbody");
    const own = cases.filter((one) => one.operator === operator);
    for (const dtype of distinct(own.map((one) => one.dtype)).sort(byDtype)) {
      for (const threads of threadCounts) {
        const group = own.filter((one) => one.dtype === dtype && one.threads === threads);
        if (group.length) body.append(summaryRow(group));
      }
    }
    byId("summary").append(html(
        "div", {class: "card"}, html("h3", {}, named(operator)),
        html("table", {}, html("thead", {}, head), body)));
  }
}

function summaryRow(group) {
  const [one] = group;
  const cell = (column, values, show, style) => {
    const mean = geometricMean(values);
    return html("td", {"data-summary": column, "data-value": mean, class: style}, show(mean));
  };
  const row = html(
      "tr", {"data-operator": one.operator, "data-dtype": one.dtype, "data-threads": one.threads},
      html(
          "th", {scope: "row"}, html("span", {class: `swatch ${one.dtype}`}), " ", one.dtype, " ",
          html("span", {class: "muted"}, withThreads(one))),
      cell("large", group.filter(isLarge).map((each) => each.share), asPercent, "main"),
      cell("all", group.map((each) => each.share), asPercent));
  if (peers.length) row.append(cell("speedup", group.map((each) => each.speedup), asTimes));
  return row;
}

// ---- Filters: they rule the pictures and the table ----

const FILTERS = [
  ["operator", "Operator", named],
  ["dtype", "Type", String],
  ["layout", "Layout", named],
  ["threads", "Threads", String],
];
const chosen = {};

function drawFilters() {
  for (const [key, title, show] of [...FILTERS].reverse()) {
    const values = distinct(cases.map((one) => one[key]));
    const select = html(
        "select", {name: key}, html("option", {value: ""}, "all"),
        ...values.map((value, index) => html("option", {value: index}, show(value))));
    select.addEventListener("change", () => {
      chosen[key] = select.value === "" ? undefined : values[Number(select.value)];
      draw();
    });
    byId("filters").prepend(html("label", {}, title, select));
  }
}

const fits = (one) =>
    FILTERS.every(([key]) => chosen[key] === undefined || one[key] === chosen[key]);

// ---- Table ----

const WORDS = {words: true, show: String};
const COLUMNS = [
  {...WORDS, key: "operator", title: "Operator", show: named},
  {...WORDS, key: "shape", title: "Shape", show: asShape},
  {...WORDS, key: "layout", title: "Layout", show: named},
  {...WORDS, key: "dtype", title: "Type"},
  {key: "threads", title: "Threads", show: String},
  {key: "bytes", title: "Bytes", show: asBytes},
  {key: "time", title: "Time", show: asTime, strong: true},
  {key: "p10", title: "p10", show: asTime},
  {key: "p90", title: "p90", show: asTime},
  {key: "speed", title: "GB/s", show: asGigabytes},
  {key: "limit", title: "Limit GB/s", show: asGigabytes},
  {key: "share", title: "Share", show: asPercent, strong: true},
  ...peers.map((name) => ({
    key: name, title: named(name), show: asTime, of: (one) => one.peers[name]?.time,
  })),
  ...(peers.length ? [{key: "speedup", title: "Speed-up", show: asTimes, strong: true}] : []),
];
const valueOf = (column, one) => (column.of ? column.of(one) : one[column.key]) ?? null;
const order = {column: null, sign: 1};

function drawTable(shown) {
  const head = html("tr");
  for (const column of COLUMNS) {
    const button = html("button", {type: "button"}, column.title);
    const sort = order.column === column ? (order.sign > 0 ? "ascending" : "descending") : null;
    button.addEventListener("click", () => {
      order.sign = order.column === column ? -order.sign : 1;
      order.column = column;
      drawTable(cases.filter(fits));
      byId("figures").querySelectorAll("th button")[COLUMNS.indexOf(column)].focus();
    });
    head.append(
        html("th", {scope: "col", "aria-sort": sort, class: column.words && "words"}, button));
  }
  byId("figures").tHead.replaceChildren(head);
  byId("figures").tBodies[0].replaceChildren(...sorted(shown).map(
      (one) => html("tr", {}, ...COLUMNS.map((column) => tableCell(column, one)))));
  fitTable();
}

// A table that is too wide scrolls in its frame, which costs the head that stays in sight.
function fitTable() {
  const frame = byId("figures_frame");
  frame.classList.toggle("wide", byId("figures").offsetWidth > frame.clientWidth);
}

function tableCell(column, one) {
  const value = valueOf(column, one);
  const style = [column.words && "words", column.strong && "strong"].filter(Boolean).join(" ");
  const cell = html(
      "td", {"data-column": column.key, "data-value": value, class: style || null},
      value === null ? DASH : column.show(value));
  if (column.key === "dtype") cell.prepend(html("span", {class: `swatch ${one.dtype}`}));
  return cell;
}

// Dashes come last, whichever way it is sorted.
function sorted(shown) {
  const {column, sign} = order;
  if (!column) return shown;
  return [...shown].sort((a, b) => {
    const [x, y] = [valueOf(column, a), valueOf(column, b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const words = () => String(x).localeCompare(String(y), "en", {numeric: true});
    return sign * (column.words ? words() : x - y);
  });
}

// ---- The page ----

function draw() {
  const shown = cases.filter(fits);
  byId("shown").textContent = `${shown.length} of ${plural(cases.length, "case")}`;
  byId("nothing").hidden = shown.length > 0;
  for (const id of ["roofline_section", "bars_section", "table_section"]) {
    byId(id).hidden = shown.length === 0;
  }
  drawRoofline(shown);
  drawBars(shown);
  drawTable(shown);
}

drawHeadline();
drawFacts();
if (cases.length) {
  byId("measured").hidden = false;
  drawSummary();
  drawFilters();
  drawLegends();
  listenForTips();
  draw();
  addEventListener("resize", () => {
    drawRoofline(cases.filter(fits));
    fitTable();
  });
}
document.documentElement.dataset.ready = "true";
