// The tables, by DataTables: every cell is escaped where it is made, sorted by its number, and searched in full.

const number = (title, key, text, extra = "") => ({
  title,
  data: key,
  className: `number ${extra}`,
  type: "num",
  orderSequence: ["desc", "asc"],
  render: (cell, kind) =>
    kind === "display" || kind === "filter" ? (cell === null ? "–" : text(cell)) : (cell ?? -Infinity),
});

// A name; `full` is what the pointer shows and the search finds. A path is cut at its beginning.
const name = (title, key, full, className = "name") => ({
  title,
  data: key,
  className,
  render: (cell, kind, row) => {
    if (kind === "display") return `<bdi title="${inert(full(row))}">${inert(cell)}</bdi>`;
    return kind === "filter" ? `${cell} ${full(row)}` : cell;
  },
});

const word = (title, key) => ({
  title,
  data: key,
  className: "word",
  render: (cell, kind) => (kind === "display" ? inert(cell) : cell),
});

const phaseCell = {
  title: "phase",
  data: "phase",
  className: "word",
  render: (cell, kind) => (kind === "display" ? `<i class="dot ${phaseName(cell)}"></i>${inert(cell)}` : cell),
};

const shareOf = (whole, title) => ({
  ...number(title, "share", percent, "share"),
  createdCell: (cell, share) => cell.style.setProperty("--share", `${Math.min(100, (100 * share) / whole)}%`),
});

const tables = {};

// Its search and order are those of the address, and are kept there.
function table(part, options) {
  const id = `${part}-table`;
  tables[id]?.off("search.dt order.dt");
  tables[id]?.destroy();
  at(id).replaceChildren();
  const [column, direction] = state[`${part}-order`].split(" ");
  const order = options.columns[column] && /^(asc|desc)$/.test(direction) ? [[Number(column), direction]] : [];
  tables[id] = new DataTable(`#${id}`, {
    autoWidth: false,
    deferRender: true,
    pageLength: 15,
    lengthMenu: [10, 15, 50, 200],
    order,
    columnDefs: [{ targets: "_all", orderSequence: ["asc", "desc"] }],
    layout: { topStart: "info", topEnd: "search", bottomStart: "pageLength", bottomEnd: "paging" },
    search: { search: state[`${part}-search`] },
    language: {
      search: "",
      searchPlaceholder: "search names",
      lengthMenu: "_MENU_ rows",
      emptyTable: "nothing to show",
      info: "_START_ to _END_ of _TOTAL_",
      infoFiltered: "(of _MAX_)",
    },
    ...options,
  });
  tables[id].on("search.dt", () => change({ [`${part}-search`]: tables[id].search() }, { inPlace: true }));
  tables[id].on("order.dt", () => {
    const [[by, direction] = []] = tables[id].order();
    change({ [`${part}-order`]: direction ? `${by} ${direction}` : "" });
  });
  return tables[id];
}

function kernelTable(report) {
  const data = report.kernels,
    per = report.per;
  const around = commonLength(data.paths);
  const rows = data.ns.map((ns, n) => ({
    kernel: data.kernels[data.kernel[n]][0],
    full: data.kernels[data.kernel[n]][1],
    path: data.paths[data.path[n]],
    range: pathText(data.paths[data.path[n]].slice(around)),
    phase: data.phase[n],
    category: data.category[n],
    ns: ns / per,
    share: ns / (data.total_ns || 1),
    count: data.count[n] / per,
    mean: ns / (data.count[n] || 1),
    min: data.min_ns[n],
    max: data.max_ns[n],
  }));
  const widest = Math.max(...rows.map((row) => row.share), 0.001);
  return table("kernel", {
    data: rows,
    columns: [
      name(say("kernel"), "kernel", (row) => row.full),
      name("range", "range", (row) => pathText(row.path), "path"),
      phaseCell,
      word("category", "category"),
      number(report.unit.name, "ns", (ns) => timeIn(report.unit, ns)),
      shareOf(widest, "% of all"),
      number(say("launches"), "count", count),
      number("mean µs", "mean", microseconds),
      number("min", "min", microseconds, "narrow"),
      number("max", "max", microseconds, "narrow"),
    ],
    drawCallback() {
      at("kernel-sum").textContent = keptSum(
        report,
        rows,
        this.api().rows({ search: "applied" }).data().toArray(),
      );
    },
  });
}

function keptSum(report, rows, shown) {
  const ns = sum(shown.map((row) => row.ns));
  const { rows: cut, ns: cutNs } = report.kernels.left_out;
  const rest = cut
    ? ` ${count(cut)} shorter rows are not on this page: ${withUnit(cutNs / report.per)} together.`
    : "";
  const share = percent((ns * report.per) / (report.kernels.total_ns || 1));
  return `${count(shown.length)} of ${count(rows.length)} rows: ${withUnit(ns)}, ${share} of all ${report.facts.time}.${rest}`;
}

// Filters next to the table: phase, category, and the range that was chosen. Returns what lists a range's kernels.
function kernelFilters(kernels, report) {
  let wanted = [];
  const within = (path) => wanted.every((range, depth) => path[depth] === range);
  kernels.search.fixed(
    "chosen",
    (_, row) =>
      (!state.phase || row.phase === state.phase) &&
      (!state.category || row.category === state.category) &&
      within(row.path),
  );
  for (const [key, values] of [
    ["phase", report.phases.phases],
    ["category", report.phases.categories],
  ]) {
    const select = at(`${key}-filter`);
    if (!values.includes(state[key])) state[key] = "";
    select.replaceChildren(
      element("option", { value: "", textContent: "all" }),
      ...values.map((value) => element("option", { value, textContent: value })),
    );
    select.value = state[key];
    select.onchange = () => {
      change({ [key]: select.value });
      kernels.draw();
    };
  }
  return (path) => {
    wanted = path;
    at("path-filter").hidden = !path.length;
    at("path-filter").textContent = pathText(path.slice(-3));
    kernels.draw();
  };
}

function stepTable(report, chosen) {
  const unit = report.unit;
  const time = (title, key, extra) => number(title, key, (ns) => timeIn(unit, ns), extra);
  const around = commonLength(report.steps.ranges.map((range) => range.path));
  const rows = report.steps.ranges.map((range) => ({
    range,
    name: pathText(range.path.slice(around)),
    phase: range.phase,
    steps: range.steps,
    median: range.kernel.median,
    min: range.kernel.min,
    max: range.kernel.max,
    spread: range.kernel.median ? (range.kernel.max - range.kernel.min) / range.kernel.median : null,
    cv: range.kernel.mean ? range.kernel.std / range.kernel.mean : null,
    slowest: range.slowest,
    span: range.span?.median ?? null,
  }));
  const steps = table("step", {
    pageLength: 10,
    createdRow: (line) => {
      line.tabIndex = 0;
    },
    data: rows,
    columns: [
      name("range", "name", (row) => pathText(row.range.path), "path wide"),
      phaseCell,
      number("steps", "steps", count),
      time(`median ${unit.name}`, "median"),
      time("min", "min"),
      time("max", "max"),
      number("spread", "spread", percent),
      number("CV", "cv", percent),
      number("slowest", "slowest", count, "narrow"),
      time(`${report.facts.span}`, "span", "narrow"),
    ],
  });
  const choose = (line) => {
    const row = line && steps.row(line).data();
    if (!row?.range.kernel_ns) return;
    for (const other of at("step-table").querySelectorAll("tr.chosen")) {
      other.classList.remove("chosen");
      other.removeAttribute("aria-current");
    }
    line.classList.add("chosen");
    line.setAttribute("aria-current", "true");
    chosen(row.range);
    change({ step: row.range === rows[0].range ? "" : stepKey(row.range) });
  };
  at("step-table").onclick = (event) => choose(event.target.closest("tbody tr"));
  at("step-table").onkeydown = (event) => {
    const line = event.target.closest("tbody tr");
    const next = { ArrowDown: line?.nextElementSibling, ArrowUp: line?.previousElementSibling }[event.key];
    if (!line || !(next || event.key === "Enter" || event.key === " ")) return;
    event.preventDefault();
    if (next) next.focus();
    else choose(line);
  };
  choose(lineOf(steps, state.step) ?? at("step-table").querySelector("tbody tr"));
}

// The views' tables: a heading sorts by its column, numbers from the largest on; sums stay last.
function sortable(table) {
  const rows = [...table.tBodies[0].rows];
  const fixed = rows.filter((row) => row.classList.contains("strong"));
  const others = rows.filter((row) => !fixed.includes(row));
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = element("button", { textContent: head.textContent });
    head.replaceChildren(button);
    button.onclick = () => {
      const isNumber = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const descends = before ? before === "ascending" : isNumber;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descends ? "descending" : "ascending");
      others.sort((a, b) => compared(a.cells[column], b.cells[column], isNumber) * (descends ? -1 : 1));
      table.tBodies[0].append(...others, ...fixed);
      unfold(table);
    };
  });
}

function compared(a, b, asNumber) {
  if (!asNumber) return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  const [one, other] = [a, b].map((cell) => Number(cell.dataset.value ?? -Infinity));
  return one === other ? 0 : one - other;
}

function unfold(table) {
  for (const row of table.querySelectorAll("tr.folded")) row.hidden = false;
  table.closest(".one").querySelector(".unfold")?.remove();
}

const stepKey = (range) => `${range.phase}: ${pathText(range.path)}`;

// The line of a range, on whichever page of the table it is.
function lineOf(steps, key) {
  const order = steps.rows({ search: "applied", order: "applied" });
  const found = order.data().toArray().findIndex((row) => stepKey(row.range) === key);
  if (found < 0) return null;
  steps.page(Math.floor(found / steps.page.len())).draw(false);
  return steps.row(order.indexes()[found]).node();
}
