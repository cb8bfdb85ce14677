// The charts of one report, drawn by ECharts: phases by category, one range in every step, all work's parts.

const charts = new Map();

function draw(id, option, height) {
  const place = at(id);
  place.style.height = `${height}px`;
  if (!charts.has(id)) {
    const chart = echarts.init(place, null, { renderer: "svg" });
    new ResizeObserver(() => chart.resize()).observe(place);
    charts.set(id, chart);
  }
  const chart = charts.get(id);
  chart.resize();
  chart.setOption({ ...frame(id), ...option }, { notMerge: true });
  return chart;
}

function frame(id) {
  return {
    animationDuration: 200, animationDurationUpdate: 300,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: css("text") },
    tooltip: {
      confine: true, backgroundColor: css("card"), borderColor: css("line"), textStyle: { color: css("text"), fontSize: 12 },
      extraCssText: "max-width: 460px; white-space: normal; overflow-wrap: anywhere;",
    },
    toolbox: {
      right: 0, top: 0, itemSize: 13, iconStyle: { borderColor: css("soft") },
      feature: { saveAsImage: { title: "save as SVG", name: id, backgroundColor: css("card") } },
    },
  };
}

const axis = (more) => ({
  axisLine: { show: false }, axisTick: { show: false }, axisLabel: { color: css("soft"), ...more.axisLabel },
  splitLine: { show: more.lines ?? false, showMinLine: false, showMaxLine: false, lineStyle: { color: css("line") } },
  nameTextStyle: { color: css("soft") }, nameLocation: "middle", ...more, ...(more.axisLabel && { axisLabel: { color: css("soft"), ...more.axisLabel } }),
});

const legend = (more) => ({
  left: 0, top: 0, icon: "roundRect", itemWidth: 11, itemHeight: 11, itemGap: 14, textStyle: { color: css("soft") },
  inactiveColor: css("line"), ...more,
});

// A label inside a bar: only where the bar is wide enough for it.
const inside = (text, wide) => ({
  show: true, position: "inside", fontSize: 11, color: "#ffffff", formatter: ({ dataIndex }) => (wide(dataIndex) ? text(dataIndex) : ""),
});

function drawPhases(report, scale) {
  const { phases, categories, ns, count: launches } = report.phases;
  const whole = phases.map((_, p) => sum(ns.map((row) => row[p])));
  const asShare = scale === "share";
  const share = (c, p) => ns[c][p] / (whole[p] || 1);
  const drawn = (c, p) => (asShare ? 100 * share(c, p) : ns[c][p] / report.per / report.unit.ns);
  const widest = asShare ? 1 : Math.max(...whole);
  const series = categories.map((category, c) => ({
    type: "bar", name: category, stack: "all", barWidth: 24, data: phases.map((_, p) => drawn(c, p)),
    itemStyle: { color: CATEGORY_COLOURS[category] ?? "#a9adb6", borderColor: css("card"), borderWidth: 0.5 },
    label: inside((p) => percent(share(c, p)), (p) => (asShare ? share(c, p) : ns[c][p] / widest) > 0.045),
    emphasis: { focus: "series" },
  }));
  const totals = Object.fromEntries(phases.map((phase, p) => [phase, timeIn(report.unit, whole[p] / report.per)]));
  return draw("phase-chart", {
    legend: legend({ right: 40 }), grid: { left: 4, right: 18, top: 52, bottom: 40, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    tooltip: {
      ...frame("").tooltip, formatter: ({ seriesIndex: c, dataIndex: p }) => tip(
        `${categories[c]} in ${phases[p]}`, `${withUnit(ns[c][p] / report.per)} ${report.scope}`,
        `${percent(share(c, p))} of the phase`, `${count(launches[c][p] / report.per)} launches`),
    },
    xAxis: axis({ type: "value", lines: true, max: asShare ? 100 : undefined, name: asShare ? "% of the phase's kernel time" : `${report.facts.measured}, ${report.unit.name} ${report.scope}`, nameGap: 28 }),
    yAxis: axis({
      type: "category", data: phases, inverse: true,
      axisLabel: { color: css("text"), formatter: (phase) => `{name|${phase}}  {time|${totals[phase]} ${report.unit.name}}`, rich: { name: { color: css("text"), fontSize: 13 }, time: { color: css("text"), fontWeight: "bold", fontSize: 13 } } },
    }),
    series,
  }, 96 + 40 * phases.length);
}

function drawStep(report, row) {
  const unit = unitFor(Math.max(row.kernel.max, row.span?.max ?? 0));
  const scaled = (values) => values.map((ns) => (ns === null ? null : ns / unit.ns));
  const colour = phaseColour(row.phase);
  const steps = row.kernel_ns.map((_, step) => step);
  const series = [{
    type: "bar", name: report.facts.measured.toLowerCase(), data: scaled(row.kernel_ns), barMaxWidth: 46, itemStyle: { color: mixed(colour, css("card"), 0.25) },
    markLine: { silent: true, symbol: "none", lineStyle: { color: css("soft"), type: "dashed" }, label: { formatter: "median", color: css("soft"), position: "insideEndTop" }, data: [{ yAxis: row.kernel.median / unit.ns }] },
  }];
  if (row.span) series.push({
    type: "line", name: report.facts.span, data: scaled(row.span_ns), symbol: "circle", symbolSize: 6, showSymbol: steps.length <= 80,
    lineStyle: { width: 1, type: "dotted", color: css("text") }, itemStyle: { color: css("text") },
  });
  const at = (values, n) => (values?.[n] == null ? "–" : withUnit(values[n]));
  return draw("step-chart", {
    title: { text: shortened(pathText(row.path.slice(-2)), 70), left: 0, top: 0, textStyle: { fontSize: 13, color: css("text") } },
    legend: legend({ left: "auto", right: 40 }), grid: { left: 4, right: 18, top: 44, bottom: 40, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    tooltip: {
      ...frame("").tooltip, trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: css("line"), opacity: 0.4 } },
      formatter: ([{ dataIndex: n }]) => tip(`step ${n}`, `${report.facts.measured}: ${at(row.kernel_ns, n)}`, ...(row.span ? [`${report.facts.span}: ${at(row.span_ns, n)}`] : [])),
    },
    xAxis: axis({ type: "category", data: steps, name: "measured step, the first is 0", nameGap: 28 }),
    yAxis: axis({ type: "value", lines: true, axisLabel: { formatter: (value) => `${value} ${unit.name}` } }),
    series,
  }, 260);
}

const PARTS = {
  "launched in ranges of the same thread": "#56708f", "adopted from autograd's threads": "#8e6fc0", "linked to forward operators": "#12a594",
  "outside all ranges": "#c99a1b", ambiguous: "#d6409f", "warm-up left out": "#9a9ea8",
};

function drawAccounting(report) {
  const { parts } = report.facts;
  const whole = sum(parts.map(([, ns]) => ns)) || 1;
  const series = parts.map(([label, ns]) => ({
    type: "bar", name: label, stack: "all", barWidth: 30, data: [(100 * ns) / whole], emphasis: { focus: "series" },
    itemStyle: { color: PARTS[label] ?? "#a9adb6", borderColor: css("card"), borderWidth: 0.5 },
    label: inside(() => percent(ns / whole), () => ns > 0.045 * whole),
  }));
  return draw("accounting-chart", {
    legend: legend({ right: 40 }), grid: { left: 0, right: 8, top: 46, bottom: 22 },
    tooltip: { ...frame("").tooltip, formatter: ({ seriesIndex: n }) => tip(parts[n][0], withUnit(parts[n][1]), percent(parts[n][1] / whole)) },
    xAxis: axis({ type: "value", max: 100, axisLabel: { formatter: "{value}%" } }),
    yAxis: { type: "category", data: [""], show: false }, series,
  }, 112);
}
