// What memory held over time, and which ranges held its peak.

const BYTES = [
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];

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
