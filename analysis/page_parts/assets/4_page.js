// Puts the page together, and again when another report is chosen or the system turns light or dark.

const { default: DataTable } = await library("datatables");
await library("plotly");
const Plotly = globalThis.Plotly;
DataTable.ext.errMode = "throw";

const tables = {};
const shown = { report: 0, scale: "time", indices: "together", pair: 0, axis: "range", step: null };
let showPath = () => {};

function drawReport() {
  const report = contents.reports[shown.report];
  for (const part of document.querySelectorAll("[data-report]")) part.hidden = Number(part.dataset.report) !== shown.report;
  for (const part of document.querySelectorAll("[data-scope]")) part.textContent = `${report.facts.measured}, ${report.unit.name} ${report.scope}`;
  const empty = !report.phases.phases.length;
  for (const id of ["phases", "ranges", "kernels"]) at(id).hidden = empty;
  at("no-kernels").hidden = !empty;
  for (const table of ["kernel", "step"]) { redrawn(tables[table]); tables[table] = null; }
  if (!empty) {
    tables.kernel = kernelTable(DataTable, report);
    showPath = kernelFilters(tables.kernel, report);
  }
  drawSteps(report);
  drawCharts();
}

function drawCharts() {
  const report = contents.reports[shown.report];
  if (report.phases.phases.length) {
    drawPhases(Plotly, report, shown.scale);
    drawRanges(report);
  }
  drawAccounting(Plotly, report);
  if (shown.step) drawStep(Plotly, report, shown.step);
  if (contents.differences.length) drawDifference();
}

function drawRanges(report) {
  const boxes = report.icicles[shown.indices] ?? report.icicles.together;
  at("icicle-indices").hidden = !report.icicles.apart;
  at("icicle-above").textContent = boxes.above.length ? `All inside ${pathText(boxes.above)}. ` : "";
  at("icicle-key").replaceChildren(...report.phases.phases.map((phase) => {
    const entry = document.createElement("span");
    const colour = document.createElement("i");
    colour.style.background = phaseColour(phase);
    entry.append(colour, `${phase} (kernels lighter)`);
    return entry;
  }));
  drawIcicle(Plotly, report, boxes, (path) => showPath(path));
}

function drawSteps(report) {
  const { count: steps, ranges, left_out: left } = report.steps;
  shown.step = null;
  at("step-body").hidden = !ranges.length;
  at("step-scope").textContent = steps === 0
    ? "The report has no measured step ranges, so nothing can be said from step to step."
    : `Kernel time inside each range in each of ${count(steps)} measured step${steps > 1 ? "s" : ""}. Click a row to see its steps.` +
      (left ? ` ${count(left)} shorter ranges are not on this page.` : "");
  if (ranges.length) tables.step = stepTable(DataTable, report, (row) => { shown.step = row; drawStep(Plotly, report, row); });
}

function drawDifference() {
  const difference = contents.differences[shown.pair];
  at("difference-refused").hidden = !difference.refused;
  at("difference-refused").textContent = difference.refused ?? "";
  at("difference-body").hidden = Boolean(difference.refused);
  if (difference.refused) return;
  at("difference-scope").textContent = `Kernel time, ${difference.scope}. All differences along one axis sum to B − A.`;
  at("difference-figures").replaceChildren(...difference.figures.map(figure));
  at("difference-notes").replaceChildren(...difference.notes.map((note) => Object.assign(document.createElement("p"), { className: "note", textContent: note })));
  const { rows, left_out: left } = difference.by[shown.axis];
  const unit = unitFor(Math.max(...rows.map((row) => Math.max(row.a_ns, row.b_ns)), 0));
  at("difference-rest").textContent = left.rows ? `${count(left.rows)} smaller differences are not on this page: ${withUnit(left.delta_ns)} together.` : "";
  drawDifferenceChart(rows, unit);
  redrawn(tables.difference);
  tables.difference = differenceTable(rows, unit);
}

function figure([label, value, of]) {
  const box = document.createElement("div");
  for (const [tag, text] of [["dt", label], ["dd", value], ["small", of]]) box.append(Object.assign(document.createElement(tag), { textContent: text }));
  return box;
}

function drawDifferenceChart(rows, unit) {
  const largest = rows.filter((row) => row.a_ns !== row.b_ns).slice(0, 12);
  const change = (row) => row.state || signed(percent((row.b_ns - row.a_ns) / row.a_ns), row.b_ns - row.a_ns);
  at("difference-chart").hidden = !largest.length;
  if (!largest.length) return;
  const trace = {
    type: "bar", orientation: "h", x: largest.map((row) => (row.b_ns - row.a_ns) / unit.ns), y: largest.map((_, n) => n),
    marker: { color: largest.map((row) => css(row.b_ns > row.a_ns ? "longer" : "shorter")) },
    text: largest.map((row) => `${signed(timeIn(unit, row.b_ns - row.a_ns), row.b_ns - row.a_ns)} (${change(row)})`), textposition: "outside", cliponaxis: false,
    hovertext: largest.map((row) => `<b>${wrapped(row.detail || row.name)}</b><br>A ${withUnit(row.a_ns)}, ${count(row.a_count)} launches<br>B ${withUnit(row.b_ns)}, ${count(row.b_count)} launches`), hoverinfo: "text",
  };
  const room = Math.max(...trace.x.map(Math.abs)) * 1.35;
  Plotly.react("difference-chart", [trace], layout({
    height: 62 + 25 * largest.length, bargap: 0.35, showlegend: false,
    xaxis: { title: { text: `B − A, ${unit.name}: left is shorter in B` }, range: [Math.min(...trace.x) < 0 ? -room : -0.15 * room, Math.max(...trace.x) > 0 ? room : 0.15 * room] },
    yaxis: { autorange: "reversed", tickvals: trace.y, ticktext: largest.map((row) => inert(shortened(row.name, 44))), showgrid: false, zeroline: false },
  }), CHART);
}

function differenceTable(rows, unit) {
  const time = (title, key) => number(title, key, (ns) => timeIn(unit, ns));
  return new DataTable("#difference-table", {
    ...TABLE, pageLength: 10, order: [],
    data: rows.map((row) => ({ ...row, delta: row.b_ns - row.a_ns, change: row.a_ns ? (row.b_ns - row.a_ns) / row.a_ns : null })),
    columns: [
      words(shown.axis, "name", "name", (row) => row.detail || row.name), time(`A ${unit.name}`, "a_ns"), time(`B ${unit.name}`, "b_ns"),
      number(`B − A ${unit.name}`, "delta", (ns) => signed(timeIn(unit, ns), ns)), number("change", "change", (share) => signed(percent(share), share)),
      number("launches A", "a_count", count), number("launches B", "b_count", count), words("", "state", "state"),
    ],
  });
}

if (contents.differences.length) {
  if (at("difference-pair")) choice("difference-pair", (value) => { shown.pair = Number(value); drawDifference(); });
  choice("difference-axis", (value) => { shown.axis = value; drawDifference(); });
}
if (at("report")) choice("report", (value) => { shown.report = Number(value); drawReport(); });
else drawReport();
choice("phase-scale", (value) => { shown.scale = value; if (contents.reports[shown.report].phases.phases.length) drawPhases(Plotly, contents.reports[shown.report], value); });
choice("icicle-indices", (value) => { shown.indices = value; showPath([]); if (contents.reports[shown.report].phases.phases.length) drawRanges(contents.reports[shown.report]); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
document.documentElement.dataset.ready = "yes";
