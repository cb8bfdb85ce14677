// Puts the page together, and again when something else is chosen or the system turns light or dark.

let shownReport = null;

function drawAll(changed = Object.keys(state)) {
  if (state.report !== shownReport) {
    shownReport = state.report;
    for (const part of all("[data-only]")) part.hidden = part.dataset.only !== state.report;
    startTimeline();
  }
  for (const group of all("[data-chooses]"))
    for (const button of all("button", group)) {
      const isChosen = button.dataset.value === state[group.dataset.chooses];
      button.setAttribute(group.getAttribute("role") === "tablist" ? "aria-selected" : "aria-checked", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
  if (changed.some((key) => key !== "zoom")) {
    picked = pickedRows();
    drawSelection();
    drawListing();
    drawDetails();
  }
  drawTimeline();
}

// A group of buttons, one of them chosen, by a click or with the arrow keys.
function choice(group) {
  const buttons = all("button", group);
  buttons.forEach((button, n) => {
    button.onclick = () => change({ [group.dataset.chooses]: button.dataset.value, ...(group.dataset.chooses === "report" ? { ...SELECTS, zoom: "" } : {}) });
    button.onkeydown = ({ key }) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
      if (!by) return;
      const next = buttons[(n + by + buttons.length) % buttons.length];
      next.focus();
      next.click();
    };
  });
}

// A heading of a view's table sorts by its column, numbers from the largest on; sums stay last.
function sortable(table) {
  const rows = [...table.tBodies[0].rows];
  const fixed = rows.filter((row) => row.classList.contains("strong"));
  const others = rows.filter((row) => !fixed.includes(row));
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent) return;
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
  table.classList.add("unfolded");
  table.closest(".one").querySelector(".unfold")?.remove();
}

// Sections stay open in the address.
function listenToSections() {
  for (const part of all("details[data-section]")) {
    part.ontoggle = () => {
      const names = new Set(state.open.split(" ").filter(Boolean));
      names[part.open ? "add" : "delete"](part.dataset.section);
      change({ open: [...names].join(" ") }, { inPlace: true });
    };
  }
}

function restore() {
  readAddress();
  const names = state.open.split(" ");
  for (const part of all("details[data-section]")) part.open = names.includes(part.dataset.section);
  drawAll();
}

function start() {
  document.documentElement.classList.add("script");
  for (const group of all("[data-chooses]")) choice(group);
  for (const table of all("table[data-sortable]")) sortable(table);
  for (const button of all(".unfold")) button.onclick = () => unfold(button.closest(".one").querySelector("table"));
  for (const button of all("[data-part], [data-change]"))
    button.onclick = () => {
      const of = button.closest("[data-report]").dataset.report;
      const { part = "", change: changed = "" } = button.dataset;
      const isChosen = button.getAttribute("aria-pressed") === "true";
      change({ ...SELECTS, report: of, zoom: "", ...(isChosen ? {} : { part, change: changed }) });
      if (changed && !isChosen) zoomToPicked();
    };
  for (const circle of all("[data-node]")) {
    const choose = () => select({ path: report().tree.text[circle.dataset.node], phase: circle.dataset.phase });
    circle.onclick = choose;
    circle.onkeydown = ({ key }) => key === "Enter" && choose();
  }
  for (const key of ["phase", "category"]) at(key).onchange = () => change({ [key]: at(key).value });
  at("text").oninput = () => change({ text: at("text").value }, { inPlace: true });
  at("reset").onclick = () => change({ ...SELECTS, zoom: "" });
  at("more").onclick = () => {
    seen += SEEN;
    drawListing();
  };
  at("copy").onclick = () => navigator.clipboard?.writeText(tableText("\t"));
  at("csv").onclick = saveCsv;
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    at("text").focus();
  });
  listenToTimeline();
  restore();
  listenToSections();
  addEventListener("popstate", restore);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawTimeline());
  document.documentElement.dataset.ready = "yes";
}

start();
