// Ranges as nested boxes, as wide as the kernel time inside: ECharts' custom series, in the way of its flame graph.

const BOX = 25;

// Where each box begins, as ns from the left, and how deep it is; boxes inside one another stand in their order.
function placed(boxes) {
  const free = [],
    start = [],
    depth = [];
  const order = boxes.ns.map((_, n) => n).sort((a, b) => a - b);
  for (const n of order) {
    const parent = boxes.parent[n];
    depth[n] = parent < 0 ? 0 : depth[parent] + 1;
    start[n] = parent < 0 ? 0 : free[parent];
    if (parent >= 0) free[parent] += boxes.ns[n];
    free[n] = start[n];
  }
  return { start, depth };
}

function boxColour(boxes, depth, n) {
  const kind = boxes.kind[n];
  if (kind === "all") return mixed(css("card"), css("soft"), 0.2);
  const base = phaseColour(boxes.phase[n]);
  if (kind === "rest") return mixed(base, css("card"), 0.8);
  return mixed(base, css("card"), kind === "kernel" ? 0.64 : Math.min(0.36, 0.08 * (depth[n] - 1)));
}

// The names from the outermost range to this box; those around everything have no box of their own.
function pathOf(boxes, number) {
  const names = [];
  for (let n = number; n > 0; n = boxes.parent[n]) if (boxes.kind[n] === "range") names.unshift(boxes.name[n]);
  return names.length ? [...boxes.above, ...names] : [];
}

function drawIcicle(report, boxes, chosen) {
  const { start, depth } = placed(boxes);
  const whole = boxes.ns[0] || 1;
  const colours = boxes.ns.map((_, n) => boxColour(boxes, depth, n));
  const look = { colours, whole, edge: css("text"), font: getComputedStyle(document.body).fontFamily };
  const data = boxes.ns.map((ns, n) => ({
    value: [start[n], start[n] + ns, depth[n], n],
    itemStyle: { color: colours[n] },
  }));
  const chart = draw(
    "icicle-chart",
    {
      toolbox: undefined,
      grid: { left: 0, right: 0, top: 2, bottom: 2 },
      tooltip: { ...frame("").tooltip, formatter: ({ value: [, , , n] }) => boxTip(report, boxes, n, whole) },
      xAxis: { type: "value", show: false, min: 0, max: whole },
      yAxis: { type: "value", show: false, inverse: true, min: 0, max: Math.max(...depth) + 1 },
      series: [
        {
          type: "custom",
          renderItem: (_, api) => box(api, boxes, look),
          encode: { x: [0, 1], y: 2 },
          data,
          clip: true,
          animation: false,
        },
      ],
    },
    BOX * (Math.max(...depth) + 1) + 4,
  );
  chart.off("click");
  chart.on("click", ({ value: [from, to, , n] }) => {
    const goInto = boxes.kind[n] === "range" || boxes.kind[n] === "all";
    if (goInto) chart.setOption({ xAxis: { min: from, max: to } });
    chosen(pathOf(boxes, goInto ? n : boxes.parent[n]));
  });
  return chart;
}

function box(api, boxes, look) {
  const n = api.value(3);
  const [left, top] = api.coord([api.value(0), api.value(2)]);
  const [right] = api.coord([api.value(1), api.value(2)]);
  const bounds = { x: left, y: top, width: Math.max(right - left - 1, 0.5), height: BOX - 1 };
  const shape = echarts.graphic.clipRectByRect(bounds, {
    x: 0,
    y: 0,
    width: api.getWidth(),
    height: api.getHeight(),
  });
  if (!shape) return null;
  const share = boxes.kind[n] === "all" ? "" : `  ${percent(boxes.ns[n] / look.whole)}`;
  const room = shape.width - 10;
  return {
    type: "rect",
    shape: { ...shape, r: 2 },
    style: { fill: look.colours[n] },
    emphasis: { style: { stroke: look.edge, lineWidth: 1 } },
    textConfig: { position: "insideLeft", distance: 5 },
    textContent: {
      // always there: the element is used again for other boxes
      style: {
        text: room < 22 ? "" : boxes.label[n] + share,
        fill: readableOn(look.colours[n]),
        width: room,
        overflow: "truncate",
        ellipsis: "…",
        fontSize: 12,
        fontFamily: look.font,
        fontWeight: boxes.kind[n] === "range" ? 600 : 400,
      },
    },
  };
}

function boxTip(report, boxes, n, whole) {
  const own = boxes.kind[n] === "range" || boxes.kind[n] === "kernel" ? [boxes.detail[n]] : [];
  return tip(
    boxes.label[n],
    ...own.filter((text) => text && text !== boxes.label[n]),
    `${withUnit(boxes.ns[n] / report.per)} ${report.scope}, ${percent(boxes.ns[n] / whole)} of all`,
    `${count(boxes.count[n] / report.per)} ${say("launches")}${boxes.phase[n] ? `, ${boxes.phase[n]}` : ""}`,
  );
}
