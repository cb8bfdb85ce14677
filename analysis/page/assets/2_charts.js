// The charts of one report, drawn by ECharts: phases by category, one range in every step, all work's parts.

const charts = new Map();

function draw(id, option, height) {
  const place = at(id);
  place.style.height = `${height}px`;
  if (!charts.has(id)) {
    const chart = echarts.init(place, null, { renderer: "svg" });
    new ResizeObserver(() => fitted(chart, place)).observe(place);
    charts.set(id, chart);
  }
  const chart = charts.get(id);
  chart.resize();
  chart.setOption({ ...frame(id), ...option }, { notMerge: true });
  return chart;
}

// A place without a width is hidden, or being moved: it is drawn for again when it has one.
function fitted(chart, place) {
  if (place.clientWidth && place.clientWidth !== chart.getWidth()) chart.resize();
}

function frame(id) {
  return {
    animationDuration: 200,
    animationDurationUpdate: 300,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: css("text") },
    tooltip: {
      confine: true,
      backgroundColor: css("card"),
      borderColor: css("line"),
      textStyle: { color: css("text"), fontSize: 12 },
      extraCssText: "max-width: 460px; white-space: normal; overflow-wrap: anywhere;",
    },
    toolbox: {
      right: 0,
      top: 0,
      itemSize: 13,
      iconStyle: { borderColor: css("soft") },
      feature: { saveAsImage: { title: "save as SVG", name: id, backgroundColor: css("card") } },
    },
  };
}

const axis = ({ lines = false, axisLabel, ...more }) => ({
  axisLine: { show: false },
  axisTick: { show: false },
  axisLabel: { color: css("soft"), ...axisLabel },
  splitLine: {
    show: lines,
    showMinLine: false,
    showMaxLine: false,
    lineStyle: { color: css("line") },
  },
  nameTextStyle: { color: css("soft") },
  nameLocation: "middle",
  ...more,
});

const legend = (more) => ({
  left: 0,
  top: 0,
  // On a narrow screen one line, to be turned: more would cover the chart.
  type: innerWidth < 700 ? "scroll" : "plain",
  icon: "roundRect",
  itemWidth: 11,
  itemHeight: 11,
  itemGap: 14,
  textStyle: { color: css("soft") },
  inactiveColor: css("line"),
  ...more,
});

// The least share of a chart's width that has room for a percentage.
const leastLabelled = () => (innerWidth < 700 ? 0.22 : 0.045);

// A label inside a bar: only where the bar is wide enough for it.
const inside = (text, wide) => ({
  show: true,
  position: "inside",
  fontSize: 11,
  color: "#ffffff",
  formatter: ({ dataIndex }) => (wide(dataIndex) ? text(dataIndex) : ""),
});

// One part of stacked bars.
const stacked = (name, colour, barWidth, more) => ({
  type: "bar",
  name,
  stack: "all",
  barWidth,
  itemStyle: { color: colour ?? "#a9adb6", borderColor: css("card"), borderWidth: 0.5 },
  emphasis: { focus: "series" },
  ...more,
});

const AROUND_LABELS = { outerBoundsMode: "same", outerBoundsContain: "axisLabel" };

function drawPhases(report, scale) {
  const { phases, categories, ns, count: launches } = report.phases;
  const whole = phases.map((_, p) => sum(ns.map((row) => row[p])));
  const share = (c, p) => ns[c][p] / (whole[p] || 1);
  const asShare = scale === "share";
  const drawn = asShare ? (c, p) => 100 * share(c, p) : (c, p) => ns[c][p] / report.per / report.unit.ns;
  const widest = asShare ? 100 : Math.max(...whole) / report.per / report.unit.ns;
  const series = categories.map((category, c) =>
    stacked(category, CATEGORY_COLOURS[category], 24, {
      data: phases.map((_, p) => drawn(c, p)),
      label: inside(
        (p) => percent(share(c, p)),
        (p) => drawn(c, p) > leastLabelled() * widest,
      ),
    }),
  );
  const told = ({ seriesIndex: c, dataIndex: p }) =>
    tip(
      `${categories[c]} in ${phases[p]}`,
      `${withUnit(ns[c][p] / report.per)} ${report.scope}`,
      `${percent(share(c, p))} of the phase`,
      say(`${count(launches[c][p] / report.per)} launches`),
    );
  return draw("phase-chart", phaseOption(report, series, whole, told, asShare), 96 + 40 * phases.length);
}

function phaseOption(report, series, whole, told, asShare) {
  const { phases } = report.phases;
  const times = whole.map((ns) => `${timeIn(report.unit, ns / report.per)} ${report.unit.name}`);
  const time = `${report.facts.measured}, ${report.unit.name} ${report.scope}`;
  const written = { color: css("text"), fontSize: 13 };
  return {
    legend: legend({ right: 40 }),
    grid: { left: 4, right: 18, top: 52, bottom: 40, ...AROUND_LABELS },
    tooltip: { ...frame("").tooltip, formatter: told },
    xAxis: axis({
      type: "value",
      lines: true,
      max: asShare ? 100 : undefined,
      name: asShare ? `% of the phase's ${report.facts.time}` : time,
      nameGap: 28,
    }),
    yAxis: axis({
      type: "category",
      data: phases,
      inverse: true,
      axisLabel: {
        formatter: (phase, n) => `{name|${phase}}  {time|${times[n]}}`,
        rich: { name: written, time: { ...written, fontWeight: "bold" } },
      },
    }),
    series,
  };
}

function drawStep(report, row) {
  const unit = unitFor(Math.max(row.kernel.max, row.span?.max ?? 0));
  const time = (values, n) => (values?.[n] == null ? "–" : withUnit(values[n]));
  const told = ([{ dataIndex: n }]) =>
    tip(
      `step ${report.steps.numbers[n]}`,
      `${report.facts.measured}: ${time(row.kernel_ns, n)}`,
      ...(row.span ? [`${report.facts.span}: ${time(row.span_ns, n)}`] : []),
    );
  const option = {
    title: {
      text: shortened(pathText(row.path.slice(-2)), 70),
      left: 0,
      top: 0,
      textStyle: { fontSize: 13, color: css("text") },
    },
    legend: legend({ left: "auto", right: 40 }),
    grid: { left: 4, right: 18, top: 44, bottom: 40, ...AROUND_LABELS },
    tooltip: {
      ...frame("").tooltip,
      trigger: "axis",
      axisPointer: { type: "shadow", shadowStyle: { color: css("line"), opacity: 0.4 } },
      formatter: told,
    },
    xAxis: axis({
      type: "category",
      data: report.steps.numbers.slice(0, row.kernel_ns.length),
      name: "step that counts; the first measured one is 0",
      nameGap: 28,
    }),
    yAxis: axis({ type: "value", lines: true, axisLabel: { formatter: (value) => `${value} ${unit.name}` } }),
    series: stepSeries(report, row, unit),
  };
  return draw("step-chart", option, 260);
}

function stepSeries(report, row, unit) {
  const scaled = (values) => values.map((ns) => (ns === null ? null : ns / unit.ns));
  const median = {
    silent: true,
    symbol: "none",
    lineStyle: { color: css("soft"), type: "dashed" },
    label: { formatter: "median", color: css("soft"), position: "insideEndTop" },
    data: [{ yAxis: row.kernel.median / unit.ns }],
  };
  const bars = {
    type: "bar",
    name: report.facts.measured,
    data: scaled(row.kernel_ns),
    barMaxWidth: 46,
    itemStyle: { color: mixed(phaseColour(row.phase), css("card"), 0.25) },
    markLine: median,
  };
  if (!row.span) return [bars];
  const line = {
    type: "line",
    name: report.facts.span,
    data: scaled(row.span_ns),
    symbol: "circle",
    symbolSize: 6,
    showSymbol: row.span_ns.length <= 80,
    lineStyle: { width: 1, type: "dotted", color: css("text") },
    itemStyle: { color: css("text") },
  };
  return [bars, line];
}

const PARTS = {
  directly: "#56708f",
  "launched by autograd's thread": "#8e6fc0",
  "linked to forward operators": "#12a594",
  "placed by a CUDA graph's capture": "#3e8ec4",
  "outside all ranges": "#c99a1b",
  ambiguous: "#d6409f",
  "warm-up left out": "#9a9ea8",
};

function drawAccounting(report) {
  const { parts } = report.facts;
  const whole = sum(parts.map(([, ns]) => ns)) || 1;
  const series = parts.map(([label, ns]) =>
    stacked(label, PARTS[label], 30, {
      data: [(100 * ns) / whole],
      label: inside(
        () => percent(ns / whole),
        () => ns > leastLabelled() * whole,
      ),
    }),
  );
  return draw(
    "accounting-chart",
    {
      legend: legend({ right: 40 }),
      grid: { left: 0, right: 8, top: 46, bottom: 22 },
      tooltip: {
        ...frame("").tooltip,
        formatter: ({ seriesIndex: n }) => tip(parts[n][0], withUnit(parts[n][1]), percent(parts[n][1] / whole)),
      },
      xAxis: axis({ type: "value", max: 100, axisLabel: { formatter: "{value}%" } }),
      yAxis: { type: "category", data: [""], show: false },
      series,
    },
    112,
  );
}
