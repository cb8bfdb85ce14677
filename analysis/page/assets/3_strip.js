// One step in time: a strip per stream, and below it why the GPU is idle, and what the CPU's threads do.

const STRIP = 26;
const MOST_OUTER = 4;
let stripChart = null;
// The positions in the strip's paths that a link is about; the others are pale. Empty: all are the same.
let marked = new Set();

const CAUSE_COLOURS = {
  launching: "#d9484f",
  "host code": "#a86a10",
  synchronization: "#8e4ec6",
  allocation: "#c2298a",
  copy: "#29a3e8",
  "module loading": "#5d6cc9",
  "between kernels": "#9aa0aa",
  latency: "#7d8a99",
  queue: "#12a594",
  profiler: "#46a758",
  unknown: "#c9ccd3",
  // On a CPU, outside of operators.
  Python: "#a86a10",
  "data loading": "#12a594",
  waiting: "#8e4ec6",
};
// A call has the colour of the idle time that it would be.
const CALL_COLOURS = {
  "kernel launch": CAUSE_COLOURS.launching,
  "other launch": CAUSE_COLOURS.launching,
  synchronization: CAUSE_COLOURS.synchronization,
  query: CAUSE_COLOURS.synchronization,
  allocation: CAUSE_COLOURS.allocation,
  copy: CAUSE_COLOURS.copy,
  loading: CAUSE_COLOURS["module loading"],
};

const onCpu = () => "kernel" in contents.words;

function stripScope(report) {
  const { step, steps, span_ns: span, streams, lanes, left_out: left } = report.strip;
  const which = step === null ? "All work" : `Step ${step} (the first is 0), whose time is the median of the ${steps} that count`;
  const more = left ? ` ${count(left)} streams with less work are not shown.` : "";
  const below = onCpu()
    ? " Below: what the program does while it runs no operator."
    : " Below the streams: why the GPU is idle, then the ranges and calls of the CPU's threads.";
  const cpu = lanes.length ? below : "";
  return `${which}: ${withUnit(span)} from the first to the last work on ${count(streams.length)} ${streams.length === 1 ? "stream" : "streams"}.${cpu}${more}`;
}

// The rows of the chart: label, and boxes with start, end, name, colour and the lines of their tip.
function stripRows(report) {
  const { strip } = report;
  const ofStream = strip.streams.map(() => []);
  strip.stream.forEach((stream, n) => ofStream[stream].push(n));
  const rows = ofStream.flatMap((boxes, stream) => [
    ...(stream < MOST_OUTER ? outerRow(strip, boxes, strip.streams[stream]) : []),
    { label: strip.streams[stream], boxes: boxes.map((n) => workBox(strip, n)) },
  ]);
  return [...rows, ...strip.lanes.map((lane) => ({ label: lane.label, boxes: lane.start.map((_, n) => laneBox(lane, n)) }))];
}

const workColour = (strip, n, shade) => mixed(phaseColour(strip.phase[n]), css("card"), shade);

function workBox(strip, n) {
  const path = strip.paths[strip.path[n]];
  const width = strip.end[n] - strip.start[n];
  const name = path.length > strip.above ? lastName(path) : strip.phase[n];
  return {
    start: strip.start[n],
    end: strip.end[n],
    name,
    colour: workColour(strip, n, 0.06 + 0.22 * (strip.path[n] % 3)),
    pale: marked.size > 0 && !marked.has(strip.path[n]),
    lines: [
      name,
      pathText(path),
      `${strip.phase[n]}, ${strip.streams[strip.stream[n]]}`,
      `from ${withUnit(strip.start[n])}, for ${withUnit(width)}; busy ${percent(strip.ns[n] / (width || 1))}`,
      `${count(strip.count[n])} ${strip.count[n] === 1 ? "piece" : "pieces"} of work`,
    ],
  };
}

// The ranges directly below those that contain everything, so that names are seen before one zooms in.
function outerRow(strip, boxes, stream) {
  const depth = strip.above + 1;
  if (!boxes.some((n) => strip.paths[strip.path[n]].length > depth)) return [];
  const joined = [];
  for (const n of boxes) {
    const path = strip.paths[strip.path[n]].slice(0, depth);
    const last = joined[joined.length - 1];
    const key = `${strip.phase[n]}: ${pathText(path)}`;
    if (last?.key === key) last.end = Math.max(last.end, strip.end[n]);
    else joined.push({ key, path, n, start: strip.start[n], end: strip.end[n] });
  }
  const drawn = joined.map(({ path, n, start, end }) => {
    const name = path.length > strip.above ? lastName(path) : strip.phase[n];
    const lines = [name, pathText(path), `${strip.phase[n]}, ${stream}`, `from ${withUnit(start)}, for ${withUnit(end - start)}`];
    return { start, end, name, colour: workColour(strip, n, 0.25), pale: marked.size > 0, lines };
  });
  return [{ label: "ranges of its work", boxes: drawn }];
}

function laneBox(lane, n) {
  const [name, detail, tone] = [lane.name[n], lane.detail[n], lane.tone[n]].map((position) => lane.texts[position]);
  const pieces = lane.count[n] > 1 ? ` in ${count(lane.count[n])} pieces` : "";
  const of = { idle: onCpu() ? "" : "idle: ", calls: "in calls: ", ranges: "" }[lane.kind];
  const colour = { idle: CAUSE_COLOURS[tone], calls: CALL_COLOURS[tone] ?? "#b6bac2" }[lane.kind];
  return {
    start: lane.start[n],
    end: lane.end[n],
    name,
    colour: colour ? mixed(colour, css("card"), 0.12) : mixed(phaseColour(tone), css("card"), 0.3 + 0.22 * (lane.name[n] % 3)),
    lines: [
      lane.mixed[n] ? `mostly ${name}` : name,
      ...(detail === name ? [] : [lane.kind === "idle" ? onCpu() ? `in ${detail}` : `while the CPU was in ${detail}` : detail]),
      lane.label,
      `from ${withUnit(lane.start[n])}, for ${withUnit(lane.end[n] - lane.start[n])}; ${of}${withUnit(lane.ns[n])}${pieces}`,
    ],
  };
}

// The causes of idle time in the strip, the most first, with their colours.
function idleKey(report) {
  const times = {};
  for (const lane of report.strip.lanes.filter(({ kind }) => kind === "idle"))
    for (const [cause, ns] of lane.sums) times[cause] = (times[cause] ?? 0) + ns;
  const causes = Object.entries(times).sort(([, a], [, b]) => b - a);
  const entries = causes.map(([cause, ns]) => {
    const entry = element("span", {});
    const dot = element("i", { className: "dot" });
    dot.style.background = CAUSE_COLOURS[cause];
    entry.append(dot, `${cause} ${withUnit(ns)}`);
    return entry;
  });
  return entries.length ? [onCpu() ? "Outside of operators:" : "GPU idle:", ...entries] : [];
}

function drawStrip(report) {
  const { strip } = report;
  at("time").hidden = !strip.streams.length;
  if (!strip.streams.length) return;
  at("strip-scope").textContent = stripScope(report);
  at("strip-key").replaceChildren(...idleKey(report));
  const unit = unitFor(strip.span_ns);
  const font = getComputedStyle(document.body).fontFamily;
  const rows = stripRows(report);
  const boxes = rows.flatMap((row, line) => row.boxes.map((box) => ({ ...box, line })));
  const longest = innerWidth < 700 ? 14 : 30;
  const option = {
    toolbox: undefined,
    grid: { left: 4, right: 12, top: 4, bottom: 34, ...AROUND_LABELS },
    tooltip: { ...frame("").tooltip, formatter: ({ value: [, , , n] }) => tip(...boxes[n].lines) },
    xAxis: axis({
      type: "value",
      min: Math.min(0, ...strip.lanes.map(({ start }) => Math.min(...start))),
      max: strip.span_ns,
      axisLabel: {
        hideOverlap: true,
        formatter: (ns) => `${timeIn({ ...unit, decimals: strip.span_ns / unit.ns < 10 ? 2 : 1 }, ns)} ${unit.name}`,
      },
    }),
    yAxis: axis({
      type: "category",
      data: rows.map((_, line) => line),
      inverse: true,
      axisLabel: { interval: 0, formatter: (line) => shortened(rows[line].label, longest) },
    }),
    dataZoom: [
      { type: "slider", filterMode: "weakFilter", height: 22, bottom: 4, showDetail: false, brushSelect: false },
      { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false },
    ],
    series: [
      {
        type: "custom",
        renderItem: (around, api) => stripBox(around, api, boxes, font),
        encode: { x: [0, 1], y: 2 },
        data: boxes.map(({ start, end, line }, n) => [start, end, line, n]),
        clip: true,
        animation: false,
      },
    ],
  };
  stripChart = draw("strip-chart", option, STRIP * rows.length + 62);
  stripKeys(stripChart);
}

function stripBox(around, api, boxes, font) {
  const { name, colour, pale } = boxes[api.value(3)];
  const [left, middle] = api.coord([api.value(0), api.value(2)]);
  const [right] = api.coord([api.value(1), api.value(2)]);
  const bounds = { x: left, y: middle - STRIP / 2 + 2, width: Math.max(right - left, 0.6), height: STRIP - 4 };
  const shape = echarts.graphic.clipRectByRect(bounds, around.coordSys);
  if (!shape) return null;
  return {
    type: "rect",
    shape,
    style: { fill: colour, opacity: pale ? 0.25 : 1 },
    textConfig: { position: "insideLeft", distance: 4 },
    textContent: {
      style: {
        text: fitting(name, "", shape.width - 8, `400 11px ${font}`),
        fill: readableOn(colour),
        fontSize: 11,
        fontFamily: font,
      },
    },
  };
}

// Shows the part of the strip in which the work is that a link is about, and that work alone in full colour.
function showPart(link) {
  const [startValue, endValue] = link.dataset.part.split(" ").map(Number);
  marked = new Set(link.dataset.paths.split(" ").filter(Boolean).map(Number));
  drawStrip(report());
  if (stripChart) stripChart.dispatchAction({ type: "dataZoom", startValue, endValue });
}

// Plus and minus zoom about the middle, arrow keys move by a quarter of what is shown, Home shows all.
function stripKeys(chart) {
  at("strip-chart").onkeydown = (event) => {
    const [{ start, end }] = chart.getOption().dataZoom;
    const width = end - start;
    const shown = {
      "+": [start + width / 4, end - width / 4],
      "=": [start + width / 4, end - width / 4],
      "-": [start - width / 2, end + width / 2],
      ArrowLeft: [start - Math.min(start, width / 4), end - Math.min(start, width / 4)],
      ArrowRight: [start + Math.min(100 - end, width / 4), end + Math.min(100 - end, width / 4)],
      Home: [0, 100],
    }[event.key];
    if (!shown) return;
    event.preventDefault();
    if (event.key === "Home" && marked.size) {
      marked = new Set();
      drawStrip(report());
    }
    chart.dispatchAction({ type: "dataZoom", start: Math.max(0, shown[0]), end: Math.min(100, shown[1]) });
  };
}
