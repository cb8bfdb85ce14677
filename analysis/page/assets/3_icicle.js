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

// Draw the boxes; return what goes into one: its children fill the width, and `chosen` gets its number.
function drawIcicle(report, boxes, chosen) {
  const { start, depth } = placed(boxes);
  const whole = boxes.ns[0] || 1;
  const colours = boxes.ns.map((_, n) => boxColour(boxes, depth, n));
  const look = { colours, whole, edge: css("accent"), font: getComputedStyle(document.body).fontFamily };
  const data = boxes.ns.map((ns, n) => ({
    value: [start[n], start[n] + ns, depth[n], n],
    itemStyle: { color: colours[n] },
  }));
  const chart = draw(
    "icicle-chart",
    {
      toolbox: undefined,
      grid: { left: 0, right: 0, top: 2, bottom: 2 },
      tooltip: {
        ...frame("").tooltip,
        formatter: ({ value: [, , , n] }) => tip(...boxLines(report, boxes, n, whole)),
      },
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
  const inside = { box: 0 };
  const enter = (n) => {
    inside.box = boxes.kind[n] === "range" || boxes.kind[n] === "all" ? n : boxes.parent[n];
    chart.setOption({ xAxis: { min: start[inside.box], max: start[inside.box] + boxes.ns[inside.box] } });
    chosen(inside.box);
  };
  chart.off("click");
  chart.on("click", ({ value: [, , , n] }) => enter(n));
  const lines = (n) => boxLines(report, boxes, n, whole);
  icicleKeys(chart, { boxes, start, inside, lines }, enter);
  return enter;
}

// The box that an arrow key leads to, among those that can be seen.
function neighbour({ boxes, start, inside }, key, n) {
  const [from, to] = [start[inside.box], start[inside.box] + boxes.ns[inside.box]];
  const among = (parent) =>
    [...boxes.ns.keys()]
      .filter((m) => boxes.parent[m] === parent && start[m] < to && start[m] + boxes.ns[m] > from)
      .sort((a, b) => start[a] - start[b]);
  const beside = among(boxes.parent[n]);
  const places = {
    ArrowUp: boxes.parent[n],
    ArrowDown: among(n)[0],
    ArrowRight: beside[beside.indexOf(n) + 1],
    ArrowLeft: beside[beside.indexOf(n) - 1],
    Home: 0,
  };
  const next = places[key];
  return next === undefined || next < 0 ? n : next;
}

// Arrow keys move from box to box, Enter goes into one, Escape out; the line below says where one is.
function icicleKeys(chart, drawn, enter) {
  const place = at("icicle-chart");
  const { boxes, inside } = drawn;
  let cursor = 0;
  const show = () => {
    chart.dispatchAction({ type: "downplay", seriesIndex: 0 });
    chart.dispatchAction({ type: "highlight", seriesIndex: 0, dataIndex: cursor });
    at("icicle-said").textContent = drawn.lines(cursor).join(" · ");
  };
  const go = (n) => {
    enter(n);
    cursor = inside.box;
  };
  place.onfocus = () => {
    cursor = inside.box;
    if (place.matches(":focus-visible")) show();
  };
  place.onblur = () => chart.dispatchAction({ type: "downplay", seriesIndex: 0 });
  place.onkeydown = (event) => {
    if (event.key === "Enter" || event.key === " ") go(cursor);
    else if (event.key === "Escape") go(Math.max(boxes.parent[inside.box], 0));
    else if (/^(Arrow|Home)/.test(event.key)) cursor = neighbour(drawn, event.key, cursor);
    else return;
    event.preventDefault();
    show();
  };
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
  const weight = boxes.kind[n] === "range" ? 600 : 400;
  const share = boxes.kind[n] === "all" ? "" : `  ${percent(boxes.ns[n] / look.whole)}`;
  return {
    type: "rect",
    shape: { ...shape, r: 2 },
    style: { fill: look.colours[n] },
    emphasis: { style: { stroke: look.edge, lineWidth: 2 } },
    textConfig: { position: "insideLeft", distance: 5 },
    textContent: {
      // always there: the element is used again for other boxes
      style: {
        text: fitting(boxes.label[n], share, shape.width - 10, `${weight} 12px ${look.font}`),
        fill: readableOn(look.colours[n]),
        fontSize: 12,
        fontFamily: look.font,
        fontWeight: weight,
      },
    },
  };
}

const pen = document.createElement("canvas").getContext("2d");
const LEAST_READ = 4;

// A label for so much room: the name and its share, the name alone, or as much of it as can be read, if that is some.
function fitting(label, share, room, font) {
  pen.font = font;
  const width = (text) => pen.measureText(text).width;
  if (width(label + share) <= room) return label + share;
  if (width(label) <= room) return label;
  let kept = Math.min(label.length, Math.floor(room / 4));
  while (kept >= LEAST_READ && width(`${label.slice(0, kept)}…`) > room) kept -= 1;
  return kept >= LEAST_READ ? `${label.slice(0, kept).trimEnd()}…` : "";
}

function boxLines(report, boxes, n, whole) {
  const own = boxes.kind[n] === "range" || boxes.kind[n] === "kernel" ? [boxes.detail[n]] : [];
  return [
    boxes.label[n],
    ...own.filter((text) => text && text !== boxes.label[n]),
    `${withUnit(boxes.ns[n] / report.per)} ${report.scope}, ${percent(boxes.ns[n] / whole)} of all`,
    `${count(boxes.count[n] / report.per)} ${say("launches")}${boxes.phase[n] ? `, ${boxes.phase[n]}` : ""}`,
  ];
}
