// What is selected. The address holds it after #, so a link shows the same, and back and forward work.

const SELECTS = { part: "", change: "", phase: "", category: "", path: "", kernel: "", text: "" };
const DEFAULTS = { ...SELECTS, report: "0", tab: "tree", indices: "together", sort: "ns desc", zoom: "", open: "" };
const state = { ...DEFAULTS };
const report = () => contents.reports[state.report];

// What an address asks for and the page does not have is as if it asked for nothing.
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(DEFAULTS)) state[key] = asked.get(key) ?? DEFAULTS[key];
  if (!contents.reports[state.report]) state.report = DEFAULTS.report;
  const { rows, tree, changes } = report();
  const known = {
    tab: ["tree", "icicle", "kernels"],
    indices: ["together", "apart"],
    part: isIdle(state.part) ? [state.part] : rows.parts,
    change: Object.keys(changes),
    phase: rows.phases,
    category: rows.categories,
    path: tree.text,
    kernel: rows.kernels.map(([name]) => name),
  };
  for (const [key, values] of Object.entries(known)) if (!values.includes(state[key])) state[key] = DEFAULTS[key];
}

// Choose, and keep that in the address: as a step that back takes back, or in place of the current one.
function change(asked, { inPlace = false } = {}) {
  const changes = Object.fromEntries(Object.entries(asked).filter(([key, value]) => state[key] !== value));
  if (!Object.keys(changes).length) return;
  Object.assign(state, changes);
  const chosen = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]);
  const address = location.href.split("#")[0] + (chosen.length ? `#${new URLSearchParams(chosen)}` : "");
  history[inPlace ? "replaceState" : "pushState"](null, "", address);
  drawAll(Object.keys(changes).filter((key) => key !== "open"));
}

// Selecting what is selected takes it back.
function select(changes) {
  const isSame = Object.entries(changes).every(([key, value]) => state[key] === value);
  change(isSame ? Object.fromEntries(Object.keys(changes).map((key) => [key, ""])) : changes);
}

const isIdle = (part) => part.startsWith("idle ");
const isAnythingSelected = () => Object.keys(SELECTS).some((key) => state[key]);

// Marks the ranges inside one, given its text: a range comes after the one around it.
function rangesInside({ text, parent }, wanted) {
  const inside = new Uint8Array(text.length);
  text.forEach((path, n) => {
    inside[n] = path === wanted || (parent[n] && inside[parent[n] - 1]) ? 1 : 0;
  });
  return inside;
}

// Marks the rows that are selected: everything on the page shows these.
function pickedRows() {
  const { rows, tree, changes, timeline } = report();
  const changed = state.change ? new Set(changes[state.change]) : null;
  const before = isIdle(state.part) ? rowsAfterIdle(timeline, state.part.slice(5)) : null;
  const inside = state.path ? rangesInside(tree, state.path) : null;
  const text = state.text.toLowerCase();
  return Uint8Array.from(rows.ns, (_, n) => {
    const path = rows.path[n];
    const names = rows.kernels[rows.kernel[n]];
    const fits =
      (!changed || changed.has(n)) &&
      (!before || before.has(n)) &&
      (!state.part || before || rows.parts[rows.part[n]] === state.part) &&
      (!state.phase || rows.phases[rows.phase[n]] === state.phase) &&
      (!state.category || rows.categories[rows.category[n]] === state.category) &&
      (!inside || inside[path] || inside[tree.together[path]]) &&
      (!state.kernel || names[0] === state.kernel) &&
      (!text || `${names[0]} ${names[1]} ${tree.text[path]}`.toLowerCase().includes(text));
    return fits ? 1 : 0;
  });
}

// The rows of the work that the GPU waited for, for one cause.
function rowsAfterIdle({ lanes, texts }, cause) {
  const after = new Set();
  for (const { kind, row, tone } of lanes)
    if (kind === "idle") row.forEach((next, n) => next && texts[tone[n]] === cause && after.add(next - 1));
  return after;
}

let picked = new Uint8Array(0);
const pickedNumbers = () => [...picked.keys()].filter((n) => picked[n]);
const nodeOf = (row) => {
  const path = report().rows.path[row];
  return state.indices === "together" ? report().tree.together[path] : path;
};

// Shows what is selected, and offers what can be.
function drawSelection() {
  const { rows } = report();
  const present = (names, column) => [...new Set(column)].map((n) => names[n]);
  for (const [key, values] of [
    ["phase", present(rows.phases, rows.phase)],
    ["category", present(rows.categories, rows.category)],
  ]) {
    at(key).replaceChildren(
      element("option", { value: "", textContent: "all" }),
      ...values.map((value) => element("option", { value, textContent: value })),
    );
    at(key).value = state[key];
  }
  at("text").value = state.text;
  const chips = ["part", "change", "path", "kernel"].filter((key) => state[key]);
  at("chips").replaceChildren(
    ...chips.map((key) => {
      const chosen = key === "change" ? changeButton(state.change)?.dataset.name : state[key];
      const chip = element("button", { className: "chip", textContent: chosen, title: "select all again" });
      chip.onclick = () => change({ [key]: "" });
      return chip;
    }),
  );
  at("reset").hidden = !isAnythingSelected();
  for (const button of all("[data-part], [data-change]")) {
    const isOfReport = (button.closest("[data-report]")?.dataset.report ?? state.report) === state.report;
    const isChosen = button.dataset.part
      ? button.dataset.part === state.part
      : button.dataset.change === state.change && Boolean(state.change);
    button.setAttribute("aria-pressed", String(isOfReport && isChosen));
  }
}

const changeButton = (key) => all(`[data-report="${state.report}"] [data-change]`).find(({ dataset }) => dataset.change === key);
