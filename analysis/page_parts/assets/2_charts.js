// The charts of one report: phases by category, ranges as an icicle, one range in every step, all work's parts.

function drawPhases(Plotly, report, scale) {
  const { phases, categories, ns, count: launches } = report.phases;
  const whole = phases.map((_, p) => sum(ns.map((row) => row[p])));
  const value = (row, p) => (scale === "share" ? (100 * row[p]) / (whole[p] || 1) : row[p] / report.per / report.unit.ns);
  const labels = phases.map((phase, p) => `${phase}  <b>${timeIn(report.unit, whole[p] / report.per)}</b> ${report.unit.name}`);
  const traces = categories.map((category, c) => ({
    type: "bar", orientation: "h", name: inert(category), y: labels, x: phases.map((_, p) => value(ns[c], p)),
    marker: { color: CATEGORY_COLOURS[category] ?? "#b5b8c0", line: { width: 0.5, color: css("card") } },
    text: phases.map((_, p) => (ns[c][p] > 0.06 * whole[p] ? percent(ns[c][p] / whole[p]) : "")),
    textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none",
    textfont: { color: "#ffffff", size: 11 }, cliponaxis: false,
    hovertext: phases.map((phase, p) =>
      `<b>${inert(category)}</b> in ${phase}<br>${withUnit(ns[c][p] / report.per)}, ${percent(ns[c][p] / whole[p])} of the phase<br>${count(launches[c][p] / report.per)} launches`),
    hoverinfo: "text",
  }));
  if (scale === "time") {
    const widest = Math.max(...whole);
    for (const trace of traces)
      trace.text = trace.text.map((text, p) => (trace.x[p] * report.unit.ns * report.per > 0.045 * widest ? text : ""));
  }
  Plotly.react("phase-chart", traces, layout({
    barmode: "stack", bargap: 0.32, height: 92 + 44 * phases.length,
    xaxis: { title: { text: scale === "share" ? "% of the phase's kernel time" : `kernel time, ${report.unit.name} ${report.scope}` }, ...(scale === "share" && { range: [0, 100] }) },
    yaxis: { autorange: "reversed", showgrid: false, ticklabelstandoff: 6 },
  }), CHART);
}

function boxColour(report, boxes, depth, number) {
  if (boxes.kind[number] === "all") return mixed(css("card"), css("soft"), 0.18);
  const base = phaseColour(boxes.phase[number]);
  if (boxes.kind[number] === "rest") return mixed(base, css("card"), 0.75);
  return mixed(base, css("card"), boxes.kind[number] === "kernel" ? 0.62 : Math.min(0.4, 0.07 * (depth[number] - 1)));
}

function drawIcicle(Plotly, report, boxes, chosen) {
  const depth = [];
  boxes.parent.forEach((parent, number) => depth.push(parent < 0 ? 0 : depth[parent] + 1));
  const whole = boxes.ns[0];
  const hover = boxes.label.map((label, n) =>
    `<b>${inert(shortened(label, 90))}</b><br>${boxes.detail[n] ? `${wrapped(boxes.detail[n])}<br>` : ""}` +
    `${withUnit(boxes.ns[n] / report.per)} ${inert(report.scope)}, ${percent(boxes.ns[n] / whole)} of all<br>` +
    `${count(boxes.count[n] / report.per)} launches${boxes.phase[n] ? `, ${boxes.phase[n]}` : ""}`);
  const trace = {
    type: "icicle", ids: boxes.label.map((_, n) => String(n)), labels: boxes.label.map((label) => inert(shortened(label, 60))),
    parents: boxes.parent.map((parent) => (parent < 0 ? "" : String(parent))), values: boxes.ns, branchvalues: "total",
    sort: false, tiling: { orientation: "v", pad: 1 }, pathbar: { side: "top", thickness: 22, textfont: { size: 12 } },
    marker: { colors: boxes.label.map((_, n) => boxColour(report, boxes, depth, n)), line: { width: 0.5, color: css("card") } },
    text: boxes.ns.map((ns) => percent(ns / whole)), textinfo: "label+text", hovertext: hover, hoverinfo: "text",
    leaf: { opacity: 1 }, root: { color: css("line") },
  };
  const deepest = Math.max(...depth) + 1;
  Plotly.react("icicle-chart", [trace], layout({
    height: 60 + 44 * deepest, margin: { l: 0, r: 0, t: 4, b: 4 }, uniformtext: { minsize: 11, mode: "hide" },
  }), CHART);
  const chart = at("icicle-chart");
  chart.removeAllListeners?.("plotly_icicleclick");
  chart.on("plotly_icicleclick", (event) => {
    const number = Number(event.points[0].id ?? 0);
    const next = event.nextLevel === undefined ? number : Number(event.nextLevel);
    chosen(pathOf(report, boxes, boxes.kind[next] === "range" || boxes.kind[next] === "all" ? next : boxes.parent[next]));
  });
}

// The names from the outermost range to this box; those around everything have no box of their own.
function pathOf(report, boxes, number) {
  const names = [];
  for (let at = number; at > 0; at = boxes.parent[at]) if (boxes.kind[at] === "range") names.unshift(boxes.name[at]);
  return names.length ? [...boxes.above, ...names] : [];
}

function drawStep(Plotly, report, row) {
  const unit = unitFor(Math.max(row.kernel.max, row.span?.max ?? 0));
  const steps = row.kernel_ns.map((_, step) => step + 1);
  const colour = phaseColour(row.phase);
  const named = inert(shortened(row.path.at(-1), 60));
  const traces = [{
    type: "bar", name: "kernel time", x: steps, y: row.kernel_ns.map((ns) => ns === null ? null : ns / unit.ns),
    marker: { color: steps.map((step) => (step - 1 === row.slowest && steps.length > 1 ? colour : mixed(colour, css("card"), 0.35))) },
    hovertemplate: `step %{x}: %{y:.3f} ${unit.name} kernel time<extra></extra>`,
  }];
  if (row.span) traces.push({
    type: "scatter", mode: steps.length > 80 ? "lines" : "lines+markers", name: report.facts.span, x: steps,
    y: row.span_ns.map((ns) => ns === null ? null : ns / unit.ns), line: { color: css("text"), width: 1, dash: "dot" }, marker: { size: 6, color: css("text") },
    hovertemplate: `step %{x}: %{y:.3f} ${unit.name} span<extra></extra>`,
  });
  Plotly.react("step-chart", traces, layout({
    height: 260, bargap: 0.4, title: { text: named, x: 0, xref: "paper", font: { size: 13 }, y: 0.97 }, margin: { l: 8, r: 8, t: 44, b: 36 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 1, xanchor: "right" },
    xaxis: { title: { text: "measured step" }, showgrid: false, ...(steps.length < 25 && { dtick: 1 }), range: [0.4, Math.max(steps.length, 4) + 0.6] },
    yaxis: { title: { text: unit.name }, rangemode: "tozero" },
  }), CHART);
}

const PART_COLOURS = ["#4f5bd5", "#ee7a36", "#12a594", "#8b8d98", "#d6409f", "#b5b8c0"];
const PARTS = ["launched in ranges of the same thread", "adopted from autograd's threads", "linked to forward operators", "outside all ranges", "ambiguous", "warm-up left out"];

function drawAccounting(Plotly, report) {
  const { parts } = report.facts;
  const whole = sum(parts.map(([, ns]) => ns));
  const traces = parts.map(([label, ns]) => ({
    type: "bar", orientation: "h", name: label, y: [""], x: [(100 * ns) / (whole || 1)],
    marker: { color: PART_COLOURS[Math.max(PARTS.indexOf(label), 0)], line: { width: 0.5, color: css("card") } },
    text: [ns > 0.05 * whole ? percent(ns / whole) : ""], textposition: "inside", insidetextanchor: "middle", textangle: 0, textfont: { color: "#ffffff" },
    hovertext: `${label}: ${withUnit(ns / report.per)}, ${percent(ns / whole)}`, hoverinfo: "text",
  }));
  Plotly.react("accounting-chart", traces, layout({
    barmode: "stack", height: 112, margin: { l: 0, r: 0, t: 8, b: 24 },
    xaxis: { range: [0, 100], ticksuffix: "%", showgrid: false }, yaxis: { visible: false },
  }), CHART);
}
