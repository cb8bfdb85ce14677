// The selected work as a tree of ranges, as boxes, and as a table of kernels.

const SEEN = 50;
const opened = new Map();
let seen = SEEN;

// The ranges of the selected rows: each with its time, launches, and what is inside; kernels are leaves.
function treeOfPicked(of, rowNumbers) {
  const { rows, tree, per } = of;
  const made = (name, extra) => ({ name, ns: 0, count: 0, inside: new Map(), phases: new Set(), ...extra });
  const root = made(say("all work"), { node: -1, path: "" });
  for (const n of rowNumbers) {
    const node = state.indices === "together" ? tree.together[rows.path[n]] : rows.path[n];
    const around = [root];
    for (const outer of pathOf(tree, node)) {
      const { inside } = around[around.length - 1];
      if (!inside.has(outer)) inside.set(outer, made(lastName(tree, outer), { node: outer, path: tree.text[outer] }));
      around.push(inside.get(outer));
    }
    const [name, full] = rows.kernels[rows.kernel[n]];
    const { inside, path } = around[around.length - 1];
    if (!inside.has(name)) inside.set(name, made(name, { kernel: name, full, path }));
    for (const box of [...around, inside.get(name)]) {
      box.ns += rows.ns[n] / per;
      box.count += rows.count[n] / per;
      box.phases.add(rows.phases[rows.phase[n]]);
    }
  }
  return root;
}

const byTime = (boxes) => [...boxes.values()].sort((a, b) => b.ns - a.ns);
const toneOf = ({ phases }) => (phases.size === 1 ? toneName([...phases][0]) : "no-phase");
const selectThis = ({ path, kernel }) => change({ path, kernel: kernel ?? "" });

// A tree is open down to where about twenty lines are seen, but for what the reader has opened or closed.
function drawTree(root) {
  const lines = [];
  const depths = [0, 0, 0, 0, 0, 0, 0, 0];
  const counted = (box, depth) => {
    if (depth < depths.length) depths[depth] += 1;
    for (const inner of box.inside.values()) if (!inner.kernel) counted(inner, depth + 1);
  };
  counted(root, 0);
  let deepest = 1;
  while (deepest < 7 && depths[deepest + 1] && sum(depths.slice(0, deepest + 2)) <= 24) deepest += 1;
  const isSmall = sum(depths) < 5;
  const add = (box, depth) => {
    const ranges = byTime(box.inside).filter(({ kernel }) => !kernel);
    const chosen = opened.get(box.path) ?? (state.path === box.path || null);
    const isOpen = chosen ?? (isSmall || (depth < deepest && ranges.length > 0));
    lines.push({ box, depth, isOpen: box.kernel ? null : isOpen });
    if (isOpen && !box.kernel) for (const inner of chosen ? byTime(box.inside) : isSmall ? byTime(box.inside).slice(0, 12) : ranges) add(inner, depth + 1);
  };
  for (const box of byTime(root.inside)) add(box, 0);
  const unit = report().unit;
  at("tree").replaceChildren(
    headOf(["range", unit.name, "%", say("launches")]),
    element("tbody", {}, ...lines.slice(0, 400).map(({ box, depth, isOpen }) => {
      const toggle = element("button", { className: "toggle", textContent: isOpen === null ? "" : isOpen ? "▾" : "▸", title: isOpen ? "close" : "open" });
      if (isOpen === null) toggle.tabIndex = -1;
      else toggle.setAttribute("aria-expanded", String(isOpen));
      toggle.onclick = () => {
        opened.set(box.path, !isOpen);
        drawListing();
      };
      const name = element("button", { className: "link", textContent: box.name, title: box.full ?? box.path });
      name.onclick = () => selectThis(box);
      const cell = element("td", { className: box.kernel ? "tree soft" : "tree" }, toggle, dot(toneOf(box)), name);
      cell.style.paddingLeft = `${4 + 16 * depth}px`;
      return element("tr", {}, cell, ...figures([timeIn(unit, box.ns)]), shareCell(box.ns / (root.ns || 1)), ...figures([count(box.count)]));
    })),
  );
}

const dot = (tone) => {
  const made = element("i", { className: "dot" });
  made.style.background = `var(--${tone}, var(--no-phase))`;
  return made;
};
const figures = (texts) => texts.map((textContent) => element("td", { className: "number", textContent }));

function shareCell(share) {
  const cell = element("td", { className: "number share", textContent: percent(share) });
  cell.style.setProperty("--share", `${Math.min(100, 100 * share)}%`);
  return cell;
}

const headOf = (names) =>
  element("thead", {}, element("tr", {}, ...names.map((textContent, n) => element("th", { scope: "col", textContent, className: n ? "number" : "" }))));

// Boxes are as wide as the time inside; those narrower than can be seen are left out.
function drawIcicle(root) {
  const before = contents.reports.length > 1 && state.report !== "0" ? timesOf(contents.reports[0]) : null;
  const boxes = [];
  const place = (box, left, depth, parent) => {
    const width = box.ns / (root.ns || 1);
    if (width < 0.0015) return;
    const number = boxes.push({ box, left, width, depth, parent }) - 1;
    let inner = left;
    for (const child of byTime(box.inside)) {
      place(child, inner, depth + 1, number);
      inner += child.ns / (root.ns || 1);
    }
  };
  place(root, 0, 0, -1);
  at("icicle").style.height = `${26 * (1 + Math.max(...boxes.map(({ depth }) => depth)))}px`;
  at("icicle").replaceChildren(...boxes.map(({ box, left, width, depth, parent }, n) => {
    const changed = before ? box.ns - (before.get(`${box.path}|${box.kernel ?? ""}`) ?? 0) : null;
    const more = changed === null ? "" : `, ${changed > 0 ? "+" : "−"}${withUnit(Math.abs(changed))} against A`;
    const text = `${box.name} ${percent(box.ns / (root.ns || 1))}`;
    const made = element("button", { className: box.kernel ? "box kernel" : "box", textContent: text, title: `${box.full || box.path || box.name}\n${withUnit(box.ns)} ${report().scope}, ${count(box.count)} ${say("launches")}${more}` });
    made.style.cssText = `left:${100 * left}%;width:${100 * width}%;top:${26 * depth}px;--tone:${changed === null ? `var(--${toneOf(box)})` : changeTone(changed, box.ns)}`;
    made.tabIndex = n ? -1 : 0;
    made.onclick = () => selectThis(box);
    made.onkeydown = (event) => {
      const beside = boxes.map((other, k) => k).filter((k) => boxes[k].parent === parent);
      const next = {
        ArrowUp: parent,
        ArrowDown: boxes.findIndex((other) => other.parent === n),
        ArrowRight: beside[beside.indexOf(n) + 1],
        ArrowLeft: beside[beside.indexOf(n) - 1],
      }[event.key];
      if (event.key === "Escape") change({ path: "", kernel: "" });
      if (!(next >= 0)) return;
      event.preventDefault();
      at("icicle").children[next].focus();
    };
    return made;
  }));
}

// How long each range and kernel of a report takes, for a comparison.
function timesOf(other) {
  const times = new Map();
  const add = (box) => {
    times.set(`${box.path}|${box.kernel ?? ""}`, box.ns);
    box.inside.forEach(add);
  };
  add(treeOfPicked(other, other.rows.ns.keys()));
  return times;
}

// Red is longer than in A, green is shorter, the more the stronger.
const changeTone = (changed, ns) =>
  `color-mix(in srgb, var(--${changed > 0 ? "longer" : "shorter"}) ${Math.round(100 * Math.min(1, Math.abs(changed) / (ns || 1)))}%, var(--no-phase))`;

const COLUMNS = {
  kernel: { name: "kernel", text: ({ kernel }) => kernel },
  path: { name: "range", text: ({ path }) => path },
  phase: { name: "phase", text: ({ phase }) => phase },
  category: { name: "category", text: ({ category }) => category },
  ns: { number: ({ ns }) => ns, text: ({ ns }) => timeIn(report().unit, ns) },
  share: { name: "%", number: ({ share }) => share, text: ({ share }) => percent(share) },
  count: { name: "launches", number: ({ count: launches }) => launches, text: ({ count: launches }) => count(launches) },
  mean: { name: "mean µs", number: ({ mean }) => mean, text: ({ mean }) => grouped(mean / 1e3, 1) },
  min: { name: "min", number: ({ min }) => min, text: ({ min }) => grouped(min / 1e3, 1) },
  max: { name: "max", number: ({ max }) => max, text: ({ max }) => grouped(max / 1e3, 1) },
};
const columnName = (key) => (key === "ns" ? report().unit.name : say(COLUMNS[key].name));

// The selected kernels of each range and phase; with indices together, those of all layers are one line.
function kernelLines() {
  const { rows, tree, per } = report();
  const lines = new Map();
  const total = sum(rows.ns) / per;
  for (const n of pickedNumbers()) {
    const [kernel, full] = rows.kernels[rows.kernel[n]];
    const line = { kernel, full, path: tree.text[nodeOf(n)], phase: rows.phases[rows.phase[n]], category: rows.categories[rows.category[n]] };
    const key = `${kernel}|${line.path}|${line.phase}`;
    if (!lines.has(key)) lines.set(key, { ...line, ns: 0, count: 0, min: Infinity, max: 0 });
    const sums = lines.get(key);
    sums.ns += rows.ns[n] / per;
    sums.count += rows.count[n] / per;
    sums.min = Math.min(sums.min, rows.min[n]);
    sums.max = Math.max(sums.max, rows.max[n]);
  }
  const [by, direction] = state.sort.split(" ");
  const { number, text } = COLUMNS[by] ?? COLUMNS.ns;
  const compared = (a, b) => (number ? number(a) - number(b) : text(a).localeCompare(text(b), "en", { numeric: true }));
  return [...lines.values()]
    .map((line) => ({ ...line, share: line.ns / (total || 1), mean: line.ns / (line.count || 1) }))
    .sort((a, b) => compared(a, b) * (direction === "desc" ? -1 : 1));
}

function drawKernels() {
  const lines = kernelLines();
  const [by, direction] = state.sort.split(" ");
  const heads = Object.keys(COLUMNS).map((key) => {
    const button = element("button", { textContent: columnName(key) });
    button.onclick = () => change({ sort: `${key} ${(by === key ? direction === "asc" : COLUMNS[key].number) ? "desc" : "asc"}` });
    const head = element("th", { scope: "col", className: COLUMNS[key].number ? "number" : "" }, button);
    if (by === key) head.setAttribute("aria-sort", direction === "asc" ? "ascending" : "descending");
    return head;
  });
  const body = lines.slice(0, seen).map((line) => {
    const cells = Object.entries(COLUMNS).map(([key, { number, text }]) => {
      if (key === "share") return shareCell(line.share);
      if (key !== "kernel") return element("td", { className: number ? "number" : key, textContent: text(line) });
      const name = element("button", { className: "link", textContent: line.kernel, title: line.full });
      name.onclick = () => select({ path: line.path, kernel: line.kernel });
      return element("td", { className: "kernel" }, name);
    });
    cells[2].prepend(dot(toneName(line.phase)));
    return element("tr", {}, ...cells);
  });
  at("kernels").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
  at("more").hidden = lines.length <= seen;
  at("more").textContent = `${count(lines.length - seen)} more`;
}

// The table as text, for a spreadsheet: tabs for the clipboard, commas for a file.
function tableText(separator) {
  const quoted = (text) => (/[",\n\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const line = (texts) => texts.map(quoted).join(separator);
  const cells = ({ full, kernel, ...row }) =>
    Object.entries(COLUMNS).map(([key, { number, text }]) => (key === "kernel" ? full || kernel : number ? String(number(row)) : text(row)));
  const heads = Object.entries(COLUMNS).map(([key, { name }]) => ({ ns: "ns", share: "share", mean: "mean_ns", min: "min_ns", max: "max_ns" })[key] ?? name);
  return [heads, ...kernelLines().map(cells)].map(line).join("\n");
}

function saveCsv() {
  const url = URL.createObjectURL(new Blob([tableText(",")], { type: "text/csv" }));
  element("a", { href: url, download: "kernels.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function drawListing() {
  const { rows, per } = report();
  const ns = sum(pickedNumbers().map((n) => rows.ns[n])) / per;
  const total = sum(rows.ns) / per;
  at("listing-sum").textContent = !ns && total ? "Nothing fits all of what is chosen." : `${withUnit(ns)} ${report().scope}, ${percent(ns / (total || 1))} of all work.`;
  const root = state.tab === "kernels" ? null : treeOfPicked(report(), pickedNumbers());
  for (const name of ["tree", "icicle", "kernels"]) at(`${name}-panel`).hidden = state.tab !== name;
  if (state.tab === "tree") drawTree(root);
  else if (state.tab === "icicle") drawIcicle(root);
  else drawKernels();
}
