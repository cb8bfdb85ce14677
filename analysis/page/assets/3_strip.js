// One step as a strip per stream, by phase and range, and what memory held: time runs to the right.

const STRIP = 30;
let stripChart = null;
const BYTES = [
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];

function stripScope(report) {
  const { step, steps, span_ns: span, streams, left_out: left } = report.strip;
  const which = step === null ? "All work" : `Step ${step} of ${steps} measured ones (from 0), whose time is the median`;
  const more = left ? ` ${count(left)} streams with less work are not shown.` : "";
  return `${which}: ${withUnit(span)} from the first to the last work on ${count(streams.length)} ${streams.length === 1 ? "stream" : "streams"}. Gaps are time in which a stream has nothing to do.${more}`;
}

function stripLines(report, n) {
  const { strip } = report;
  const path = strip.paths[strip.path[n]];
  const width = strip.end[n] - strip.start[n];
  return [
    path.length > strip.above ? lastName(path) : strip.phase[n],
    pathText(path),
    `${strip.phase[n]}, ${strip.streams[strip.stream[n]]}`,
    `from ${withUnit(strip.start[n])}, for ${withUnit(width)}; busy ${percent(strip.ns[n] / (width || 1))}`,
    `${count(strip.count[n])} ${strip.count[n] === 1 ? "piece" : "pieces"} of work`,
  ];
}

function drawStrip(report) {
  const { strip } = report;
  at("time").hidden = !strip.streams.length;
  if (!strip.streams.length) return;
  at("strip-scope").textContent = stripScope(report);
  const unit = unitFor(strip.span_ns);
  const font = getComputedStyle(document.body).fontFamily;
  const colour = (n) => mixed(phaseColour(strip.phase[n]), css("card"), 0.06 + 0.22 * (strip.path[n] % 3));
  const option = {
    toolbox: undefined,
    grid: { left: 4, right: 12, top: 4, bottom: 34, ...AROUND_LABELS },
    tooltip: { ...frame("").tooltip, formatter: ({ value: [, , , n] }) => tip(...stripLines(report, n)) },
    xAxis: axis({
      type: "value",
      min: 0,
      max: strip.span_ns,
      axisLabel: { hideOverlap: true, formatter: (ns) => `${timeIn({ ...unit, decimals: 3 }, ns)} ${unit.name}` },
    }),
    yAxis: axis({ type: "category", data: strip.streams, inverse: true }),
    dataZoom: [
      { type: "slider", filterMode: "weakFilter", height: 22, bottom: 4, showDetail: false, brushSelect: false },
      { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false },
    ],
    series: [
      {
        type: "custom",
        renderItem: (around, api) => stripBox(around, api, report, colour, font),
        encode: { x: [0, 1], y: 2 },
        data: strip.start.map((start, n) => [start, strip.end[n], strip.stream[n], n]),
        clip: true,
        animation: false,
      },
    ],
  };
  stripChart = draw("strip-chart", option, STRIP * strip.streams.length + 62);
  stripKeys(stripChart);
}

function stripBox(around, api, report, colour, font) {
  const n = api.value(3);
  const [left, middle] = api.coord([api.value(0), api.value(2)]);
  const [right] = api.coord([api.value(1), api.value(2)]);
  const bounds = { x: left, y: middle - STRIP / 2 + 2, width: Math.max(right - left, 0.6), height: STRIP - 4 };
  const shape = echarts.graphic.clipRectByRect(bounds, around.coordSys);
  if (!shape) return null;
  return {
    type: "rect",
    shape,
    style: { fill: colour(n) },
    textConfig: { position: "insideLeft", distance: 4 },
    textContent: {
      style: {
        text: fitting(stripLines(report, n)[0], "", shape.width - 8, `400 11px ${font}`),
        fill: readableOn(colour(n)),
        fontSize: 11,
        fontFamily: font,
      },
    },
  };
}

// Shows the part of the strip in which the work is that a link is about.
function showPart(link) {
  const [startValue, endValue] = link.dataset.part.split(" ").map(Number);
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
    chart.dispatchAction({ type: "dataZoom", start: Math.max(0, shown[0]), end: Math.min(100, shown[1]) });
  };
}

function drawMemory(report) {
  const { memory } = report;
  at("memory-body").hidden = !memory;
  if (!memory) return;
  at("memory-scope").textContent =
    `${memory.device} held at most ${memory.peak} while it was measured. The curve has all that was recorded, the most in each stretch of time.`;
  const unit = unitFor(memory.at_ns[memory.at_ns.length - 1]);
  const [scale, name] = BYTES.find(([least]) => memory.peak_bytes >= least) ?? [1, "B"];
  draw(
    "memory-chart",
    {
      grid: { left: 4, right: 18, top: 20, bottom: 8, ...AROUND_LABELS },
      tooltip: {
        ...frame("").tooltip,
        trigger: "axis",
        formatter: ([{ value }]) => tip(`${grouped(value[1], 3)} ${name}`, `at ${timeIn(unit, value[0])} ${unit.name}`),
      },
      xAxis: axis({ type: "value", max: "dataMax", axisLabel: { formatter: (ns) => `${timeIn(unit, ns)} ${unit.name}` } }),
      yAxis: axis({ type: "value", lines: true, axisLabel: { formatter: (value) => `${grouped(value, 1)} ${name}` } }),
      series: [
        {
          type: "line",
          step: "end",
          showSymbol: false,
          data: memory.at_ns.map((ns, n) => [ns, memory.held[n] / scale]),
          lineStyle: { width: 1.5, color: css("accent") },
          itemStyle: { color: css("accent") },
          areaStyle: { color: css("accent"), opacity: 0.15 },
          markLine: {
            silent: true,
            symbol: "none",
            lineStyle: { color: css("soft"), type: "dashed" },
            label: { formatter: "peak", color: css("soft"), position: "insideEndTop" },
            data: [{ yAxis: memory.peak_bytes / scale }],
          },
        },
      ],
    },
    190,
  );
  const held = memory.holders.map(([path, bytes]) => element("li", { textContent: `${bytes} of ${path}` }));
  const rest = memory.left_out ? [element("li", { textContent: `${count(memory.left_out)} ranges held less` })] : [];
  at("memory-holders").replaceChildren(element("li", { textContent: "At the peak:" }), ...held, ...rest);
}
