// The roofline: ranges by arithmetic intensity and FLOP/s, below the roofs of the GPU's memory and arithmetic.

const decade = (value, round) => 10 ** round(Math.log10(value));
const pointKey = (point) => `${point.phase}: ${point.path}`;

// Draw a report's roofline where its section is open; a closed one is drawn when it is opened.
function drawRoofline(report, number) {
  const place = at(`roofline-chart-${number}`);
  if (!place?.closest("details").open || !place.clientWidth) return;
  const { roofline } = report;
  const bounds = rooflineBounds(roofline);
  const chart = draw(`roofline-chart-${number}`, rooflineOption(report, bounds), innerWidth < 700 ? 340 : 420);
  chart.off("click");
  chart.on("click", ({ seriesId, dataIndex }) => {
    if (seriesId === "points") choosePoint(report, number, dataIndex);
  });
  const phases = new Set(roofline.points.map((point) => point.phase));
  const outer = element("span", {});
  outer.append(element("i", { className: "dot outer" }), "with other ranges inside");
  at(`roofline-key-${number}`).replaceChildren(
    ...[...PHASES, "other"].filter((phase) => phases.has(phase)).map(keyEntry),
    ...(roofline.points.some((point) => point.outer) ? [outer] : []),
  );
  at(`roofline-rest-${number}`).textContent = notDrawn(roofline.left_out);
  sayPoint(report, number, chosenPoint(roofline));
  rooflineKeys(chart, report, number);
}

const chosenPoint = ({ points }) => points.findIndex((point) => pointKey(point) === state.point);

function choosePoint(report, number, n) {
  change({ point: n < 0 ? "" : pointKey(report.roofline.points[n]) });
  drawRoofline(report, number);
}

function notDrawn({ without, smaller }) {
  const ranges = (n) => `${count(n)} range${n > 1 ? "s" : ""}`;
  return [
    without ? `${ranges(without)} without FLOPs or bytes have no place in it.` : "",
    smaller ? `${ranges(smaller)} with less kernel time are not on this page.` : "",
  ].join(" ");
}

function sayPoint(report, number, n) {
  at(`roofline-said-${number}`).textContent =
    n < 0
      ? "Arrow keys move from range to range, Enter chooses one, Escape chooses none."
      : pointLines(report, report.roofline.points[n]).join(" · ");
}

// Around all points and the highest roof with its ridge.
function rooflineBounds({ points, roofs, memory }) {
  const intensities = points.map((point) => point.intensity);
  const [top] = roofs;
  return {
    left: decade(Math.min(...intensities, 1), Math.floor),
    right: decade(Math.max(...intensities, (1.5 * top.flops) / memory), Math.ceil),
    low: decade(Math.min(...points.map((point) => point.flops)), Math.floor),
    high: 2 * top.flops,
  };
}

function rooflineOption(report, { left, right, low, high }) {
  const { roofline } = report;
  const written = { nameGap: 28, type: "log", lines: true };
  return {
    grid: { left: 4, right: 12, top: 26, bottom: 40, ...AROUND_LABELS },
    tooltip: {
      ...frame("").tooltip,
      formatter: ({ dataIndex: n }) => tip(...pointLines(report, roofline.points[n])),
    },
    xAxis: axis({ ...written, min: left, max: right, name: "arithmetic intensity, FLOPs per byte" }),
    yAxis: axis({
      ...written,
      min: low,
      max: high,
      axisLabel: { showMaxLabel: false, formatter: (value) => withPrefix(value, "FLOP/s") },
    }),
    series: [
      ...roofSeries(roofline, left, right, low),
      {
        id: "points",
        type: "scatter",
        data: pointData(roofline),
        emphasis: { scale: 1.2, itemStyle: { borderColor: css("accent"), borderWidth: 3, opacity: 1 } },
        z: 5,
      },
    ],
  };
}

// Memory's roof up to the highest peak, and each arithmetic's from where it meets memory's; unused ones are dashed.
function roofSeries({ roofs, memory }, left, right, low) {
  const [top] = roofs;
  const start = Math.max(left, low / memory);
  const middle = Math.sqrt(start * (Math.min(...roofs.map(({ flops }) => flops)) / memory));
  const onSlope = (intensity) => [intensity, intensity * memory];
  const slope = [onSlope(start), onSlope(middle), onSlope(top.flops / memory)];
  return [
    roof(`memory ${withPrefix(memory, "B/s")}`, true, slope, 1),
    ...roofs.map(({ flops, kinds, used }) =>
      roof(`${kinds.join(", ")} ${withPrefix(flops, "FLOP/s")}`, used, [[flops / memory, flops], [right, flops]], 1),
    ),
  ];
}

// A line with its name to the left above one of its points.
const roof = (name, used, points, named) => ({
  type: "line",
  name,
  silent: true,
  symbolSize: 0.1,
  showAllSymbol: true,
  lineStyle: { color: css("soft"), width: used ? 2 : 1, type: used ? "solid" : "dashed" },
  data: points.map((value, n) => ({ value, label: { show: n === named } })),
  label: {
    formatter: name,
    position: "left",
    offset: [0, -9],
    color: css(used ? "text" : "soft"),
    backgroundColor: css("card"),
    fontSize: 11,
  },
  z: 3,
});

// A circle's area is its kernel time; those with other ranges inside are hollow.
function pointData(roofline) {
  const most = Math.max(...roofline.points.map((point) => point.ns));
  const chosen = chosenPoint(roofline);
  const widest = innerWidth < 700 ? 32 : 52;
  return roofline.points.map((point, n) => {
    const colour = phaseColour(point.phase);
    return {
      value: [point.intensity, point.flops],
      symbolSize: Math.max(7, widest * Math.sqrt(point.ns / most)),
      itemStyle: {
        color: point.outer ? "transparent" : colour,
        borderColor: n === chosen ? css("text") : point.outer ? colour : css("card"),
        borderWidth: n === chosen ? 3 : point.outer ? 2 : 1,
        opacity: point.outer || n === chosen ? 1 : 0.8,
      },
    };
  });
}

function pointLines(report, point) {
  const of = (share, what) => (share === null ? "" : `, ${percent(share)} of ${what}`);
  const share = (point.ns * report.per) / (report.kernels.total_ns || 1);
  return [
    point.path,
    `${point.phase}, ${withUnit(point.ns)} ${report.scope}, ${percent(share)} of all ${report.facts.time}`,
    `${withPrefix(point.flops, "FLOP/s")}${of(point.of_compute, `the peak of ${point.arithmetic}`)}`,
    `${withPrefix(point.bytes, "B/s")}${of(point.of_memory, "memory's peak")}`,
    `${withPrefix(point.intensity, "FLOPs per byte")}${point.bound ? `, bound: ${point.bound}` : ""}`,
  ];
}

// The next range to one side: by intensity to the left and right, by FLOP/s up and down.
function nextPoint(points, key, n) {
  const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[key];
  if (!by) return 0;
  const [first, second] = /Up|Down/.test(key) ? ["flops", "intensity"] : ["intensity", "flops"];
  const order = [...points.keys()].sort((a, b) => points[a][first] - points[b][first] || points[a][second] - points[b][second]);
  return order[order.indexOf(n) + by] ?? n;
}

function rooflineKeys(chart, report, number) {
  const place = at(`roofline-chart-${number}`);
  const { points } = report.roofline;
  let cursor = Math.max(chosenPoint(report.roofline), 0);
  const show = () => {
    chart.dispatchAction({ type: "downplay", seriesId: "points" });
    chart.dispatchAction({ type: "highlight", seriesId: "points", dataIndex: cursor });
    sayPoint(report, number, cursor);
  };
  place.onfocus = () => {
    if (place.matches(":focus-visible")) show();
  };
  place.onblur = () => {
    chart.dispatchAction({ type: "downplay", seriesId: "points" });
    sayPoint(report, number, chosenPoint(report.roofline));
  };
  place.onkeydown = (event) => {
    if (event.key === "Enter" || event.key === " ") choosePoint(report, number, cursor);
    else if (event.key === "Escape") choosePoint(report, number, -1);
    else if (/^(Arrow|Home)/.test(event.key)) {
      cursor = nextPoint(points, event.key, cursor);
      show();
    } else return;
    event.preventDefault();
  };
}
