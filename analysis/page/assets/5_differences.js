// What changed from the first report to another, along one axis.

// A difference as a share of A's time; beyond ten times it, B as a multiple of A.
const shareText = (share) => (share < 10 ? signed(percent(share), share) : `${count(Math.round(share + 1))}×`);
const changeText = (row) =>
  row.state || (row.a_ns ? shareText((row.b_ns - row.a_ns) / row.a_ns) : "not in A's own");

function drawDifference(difference, along) {
  at("difference-refused").hidden = !difference.refused;
  at("difference-refused").textContent = difference.refused ?? "";
  at("difference-body").hidden = Boolean(difference.refused);
  if (difference.refused) return;
  at("difference-scope").textContent =
    `${difference.measured}, ${difference.scope}. The differences along each axis sum to B − A.`;
  at("difference-figures").replaceChildren(...difference.figures.map(figure));
  at("difference-notes").replaceChildren(
    ...difference.notes.map((note) => element("p", { className: "note", textContent: note })),
  );
  const { rows, left_out: left } = difference.by[along];
  at("difference-rest").textContent = left.rows
    ? `${count(left.rows)} smaller differences are not on this page: ${withUnit(left.delta_ns)} together.`
    : "";
  const unit = unitFor(Math.max(...rows.map((row) => Math.max(row.a_ns, row.b_ns)), 0));
  drawDifferenceChart(rows, unit);
  differenceTable(rows, unit, along);
}

function figure([label, value, of]) {
  const box = element("div", {});
  box.append(
    element("dt", { textContent: label }),
    element("dd", { textContent: value }),
    element("small", { textContent: of }),
  );
  return box;
}

function drawDifferenceChart(rows, unit) {
  const largest = rows.filter((row) => row.a_ns !== row.b_ns).slice(0, 12);
  at("difference-chart").hidden = !largest.length;
  if (!largest.length) return;
  const told = ({ dataIndex: n }) =>
    tip(
      largest[n].detail || largest[n].name,
      say(`A ${withUnit(largest[n].a_ns)}, ${count(largest[n].a_count)} launches`),
      say(`B ${withUnit(largest[n].b_ns)}, ${count(largest[n].b_count)} launches`),
      changeText(largest[n]),
    );
  const room = innerWidth < 900 ? 26 : 46;
  const option = {
    grid: { left: 4, right: 8, top: 6, bottom: 40, ...AROUND_LABELS },
    toolbox: undefined,
    tooltip: { ...frame("").tooltip, formatter: told },
    xAxis: differenceAxis(largest, unit),
    yAxis: axis({
      type: "category",
      inverse: true,
      data: [...largest.keys()],
      axisLabel: { color: css("text"), formatter: (n) => shortened(largest[n].name, room) },
    }),
    series: [{ type: "bar", barWidth: 14, data: largest.map((row) => differenceBar(row, unit)) }],
  };
  draw("difference-chart", option, 52 + 24 * largest.length);
}

function differenceBar(row, unit) {
  const ns = row.b_ns - row.a_ns;
  return {
    value: ns / unit.ns,
    itemStyle: { color: css(ns > 0 ? "longer" : "shorter"), borderRadius: 2 },
    label: {
      show: true,
      position: ns > 0 ? "right" : "left",
      color: css("text"),
      fontSize: 11,
      formatter: `${signed(withUnit(ns), ns)} (${changeText(row)})`,
    },
  };
}

// As far as the longest bars on either side, and the texts next to them.
function differenceAxis(rows, unit) {
  const deltas = rows.map((row) => (row.b_ns - row.a_ns) / unit.ns);
  const least = Math.min(...deltas);
  const most = Math.max(...deltas);
  const beside = Math.max(-least, most) * (innerWidth < 900 ? 0.6 : 0.42);
  return axis({
    type: "value",
    lines: true,
    name: "B − A: to the left is shorter in B",
    nameGap: 28,
    min: Math.min(least, 0) - (least < 0 ? beside : 0),
    max: Math.max(most, 0) + (most > 0 ? beside : 0.05 * beside),
    axisLabel: {
      formatter: (value) => (value ? withUnit(value * unit.ns).replace("-", "−") : "0"),
      hideOverlap: true,
      showMinLabel: false,
      showMaxLabel: false,
    },
  });
}

function differenceTable(rows, unit, along) {
  const time = (title, key) => number(title, key, (ns) => timeIn(unit, ns));
  table("difference", {
    pageLength: 10,
    data: rows.map((row) => ({
      ...row,
      delta: row.b_ns - row.a_ns,
      change: row.a_ns ? (row.b_ns - row.a_ns) / row.a_ns : null,
      only: { new: "B", gone: "A" }[row.state] ?? "",
    })),
    columns: [
      name(along, "name", (row) => row.detail || row.name, along === "range" ? "path wide" : "name"),
      time(`A ${unit.name}`, "a_ns"),
      time(`B ${unit.name}`, "b_ns"),
      number("B − A", "delta", (ns) => signed(grouped(ns / unit.ns, unit.ns > 1 ? 3 : 0), ns)),
      number("change", "change", shareText),
      number(say("launches A"), "a_count", count, "narrow"),
      number(say("launches B"), "b_count", count, "narrow"),
      word("only in", "only"),
    ],
  });
}
