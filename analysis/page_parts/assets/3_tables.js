// The tables: every cell is escaped where it is made, sorted by its number and searched by its text in full.

const number = (title, value, text, extra = "") => ({
  title, data: value, className: `number ${extra}`, type: "num",
  render: (cell, kind) => (kind === "display" || kind === "filter" ? (cell === null ? "–" : text(cell)) : (cell ?? -Infinity)),
});

const words = (title, value, name, full) => ({
  title, data: value, className: name,
  render: (cell, kind, row) => {
    if (kind === "display") return `<span title="${inert(full ? full(row) : cell)}">${inert(cell)}</span>`;
    return kind === "filter" && full ? `${cell} ${full(row)}` : cell;
  },
});

const phaseCell = {
  title: "phase", data: "phase", className: "phase",
  render: (cell, kind) => kind === "display" ? `<i class="dot" style="background: var(--${["forward", "backward", "optimizer"].includes(cell) ? cell : "other"})"></i>${inert(cell)}` : cell,
};

const shareOf = (whole, title) => ({
  ...number(title, "share", percent, "share"),
  createdCell: (cell, share) => cell.style.setProperty("--share", `${Math.min(100, (100 * share) / whole)}%`),
});

const TABLE = {
  autoWidth: false, deferRender: true, pageLength: 15, order: [],
  layout: { topStart: "info", topEnd: "search", bottomStart: "pageLength", bottomEnd: "paging" },
  language: { search: "", searchPlaceholder: "search names", lengthMenu: "_MENU_ rows", emptyTable: "nothing to show" },
};

function kernelTable(DataTable, report) {
  const data = report.kernels, per = report.per;
  const rows = data.ns.map((ns, n) => ({
    kernel: data.kernels[data.kernel[n]][0], full: data.kernels[data.kernel[n]][1], path: data.paths[data.path[n]],
    range: pathText(data.paths[data.path[n]].slice(-2)), phase: data.phase[n], category: data.category[n], ns: ns / per,
    share: ns / (data.total_ns || 1), count: data.count[n] / per, mean: ns / (data.count[n] || 1), min: data.min_ns[n], max: data.max_ns[n],
  }));
  const widest = Math.max(...rows.map((row) => row.share), 0.001);
  return new DataTable("#kernel-table", {
    ...TABLE, data: rows, order: [[4, "desc"]],
    columns: [
      words("kernel", "kernel", "name", (row) => row.full), words("range", "range", "path", (row) => pathText(row.path)), phaseCell,
      words("category", "category", "category"), number(report.unit.name, "ns", (ns) => timeIn(report.unit, ns)), shareOf(widest, "% of all"),
      number("launches", "count", count), number("mean µs", "mean", microseconds), number("min", "min", microseconds, "narrow"), number("max", "max", microseconds, "narrow"),
    ],
    drawCallback() {
      const shown = this.api().rows({ search: "applied" }).data().toArray();
      at("kernel-sum").textContent = keptSum(report, rows, shown);
    },
  });
}

function keptSum(report, rows, shown) {
  const ns = sum(shown.map((row) => row.ns));
  const left = report.kernels.left_out;
  const cut = left.rows ? ` ${count(left.rows)} shorter rows are not on this page: ${withUnit(left.ns / report.per)} together.` : "";
  return `${shown.length === rows.length ? "All" : count(shown.length)} of ${count(rows.length)} rows: ${withUnit(ns)}, ` +
    `${percent((ns * report.per) / (report.kernels.total_ns || 1))} of all kernel time.${cut}`;
}

function options(select, values, all) {
  select.replaceChildren(...[all, ...values].map((value, n) => Object.assign(document.createElement("option"), { value: n ? value : "", textContent: value })));
}

// Filters beside the table: phase, category, and the range that was clicked.
function kernelFilters(table, report) {
  const wanted = { phase: "", category: "", path: [] };
  const inside = (path) => wanted.path.every((name, depth) => path[depth] === name);
  table.search.fixed("chosen", (_, row) =>
    (!wanted.phase || row.phase === wanted.phase) && (!wanted.category || row.category === wanted.category) && inside(row.path));
  for (const key of ["phase", "category"]) {
    const select = at(`${key}-filter`);
    options(select, report.phases[key === "phase" ? "phases" : "categories"], "all");
    select.onchange = () => { wanted[key] = select.value; table.draw(); };
  }
  const showPath = (path) => {
    wanted.path = path;
    at("path-filter").hidden = !path.length;
    at("path-filter").textContent = pathText(path.slice(-3));
    table.draw();
  };
  at("path-filter").onclick = () => showPath([]);
  showPath([]);
  return showPath;
}

function stepTable(DataTable, report, chosen) {
  const unit = report.unit;
  const rows = report.steps.ranges.map((range) => ({
    range, name: pathText(range.path.slice(-3)), phase: range.phase, steps: range.steps, median: range.kernel.median, min: range.kernel.min, max: range.kernel.max,
    spread: range.kernel.median ? (range.kernel.max - range.kernel.min) / range.kernel.median : null, cv: range.kernel.mean ? range.kernel.std / range.kernel.mean : null,
    slowest: range.slowest + 1, span: range.span?.median ?? null,
  }));
  const time = (title, key, extra) => number(title, key, (ns) => timeIn(unit, ns), extra);
  const table = new DataTable("#step-table", {
    ...TABLE, pageLength: 10, data: rows,
    columns: [
      words("range", "name", "name", (row) => pathText(row.range.path)), phaseCell, number("steps", "steps", count), time(`median ${unit.name}`, "median"),
      time("min", "min"), time("max", "max"), number("spread", "spread", percent), number("CV", "cv", percent), number("slowest step", "slowest", count, "narrow"),
      time(`median ${report.facts.span}`, "span", "narrow"),
    ],
  });
  const choose = (element) => {
    for (const other of at("step-table").querySelectorAll("tr.chosen")) other.classList.remove("chosen");
    const row = table.row(element).data();
    if (!row?.range.kernel_ns) return;
    element.classList.add("chosen");
    chosen(row.range);
  };
  at("step-table").onclick = (event) => { const row = event.target.closest("tbody tr"); if (row) choose(row); };
  const first = at("step-table").querySelector("tbody tr");
  if (first && rows.length) choose(first);
  return table;
}
