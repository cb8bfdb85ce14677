// Puts the page together, and again when something else is chosen or the system turns light or dark.

let shownStep = null;
let listKernelsOf = () => {};
const report = () => contents.reports[state.report];
const difference = () => contents.differences[state.pair];
const hasKernels = () => report().phases.phases.length > 0;
const showOnly = (attribute, value) => {
  for (const part of document.querySelectorAll(`[data-${attribute}]`)) part.hidden = part.dataset[attribute] !== value;
};

function drawReport() {
  marked = new Set();
  showOnly("report", state.report);
  for (const part of document.querySelectorAll("[data-scope]"))
    part.textContent = `${report().facts.measured}, ${report().unit.name} ${report().scope}`;
  for (const id of ["phases", "ranges", "kernels"]) at(id).hidden = !hasKernels();
  at("no-kernels").hidden = hasKernels();
  if (hasKernels()) listKernelsOf = kernelFilters(kernelTable(report()), report());
  drawSections();
  drawSteps();
  drawStrip(report());
  drawMemory(report());
  drawPhaseAndRanges();
  drawAccounting(report());
  for (const link of document.querySelectorAll(".contents a"))
    if (!link.closest("[data-report]")) link.parentElement.hidden = placeOf(link.dataset.at)?.hidden ?? true;
}

function drawPhaseAndRanges() {
  if (!hasKernels()) return;
  drawPhases(report(), state.scale);
  drawRanges();
}

function drawRanges() {
  const { icicles, phases } = report();
  const boxes = icicles[state.indices] ?? icicles.together;
  at("icicle-indices").hidden = !icicles.apart;
  at("icicle-above").textContent = boxes.above.length ? `All inside ${pathText(boxes.above)}. ` : "";
  at("icicle-key").replaceChildren(
    ...phases.phases.map(keyEntry),
    say("kernels lighter"),
  );
  const enter = drawIcicle(report(), boxes, (n) => {
    change({ range: n ? boxes.detail[n] : "" });
    listKernelsOf(pathOf(boxes, n));
  });
  const asked = boxes.detail.findIndex((path, n) => boxes.kind[n] === "range" && path === state.range);
  if (state.range) enter(Math.max(asked, 0));
  listKernelsOf(asked > 0 ? pathOf(boxes, asked) : []);
  at("path-filter").onclick = () => enter(0);
}

function drawSteps() {
  const { count: steps, ranges, left_out: left } = report().steps;
  shownStep = null;
  at("step-body").hidden = !ranges.length;
  at("step-scope").textContent =
    steps === 0
      ? "The report has no measured step ranges, so nothing can be said from step to step."
      : `${report().facts.measured} inside each range, in each of ${count(steps)} measured step${steps > 1 ? "s" : ""}. Choose a row to see its steps.` +
        (left ? ` ${count(left)} shorter ranges are not on this page.` : "");
  if (ranges.length)
    stepTable(report(), (row) => {
      shownStep = row;
      drawStep(report(), row);
    });
}

// The views' sections: open as the report suggests, but for those that the reader has opened or closed.
const sectionsShown = () => [...document.querySelectorAll(`[data-report="${state.report}"] details`)];

function drawSections() {
  const toggled = state.toggled.split(" ");
  for (const part of sectionsShown())
    part.open = (part.dataset.open === "yes") !== toggled.includes(part.dataset.section);
  drawRoofline(report(), state.report);
}

function keepToggled() {
  const toggled = sectionsShown().filter((part) => part.open !== (part.dataset.open === "yes"));
  change({ toggled: toggled.map((part) => part.dataset.section).join(" ") });
  drawRoofline(report(), state.report);
}

const placeOf = (section) => at(`${section}-${state.report}`) ?? at(section);

function goTo(section) {
  const place = section && placeOf(section);
  if (!place) return;
  if (place.tagName === "DETAILS") place.open = true;
  place.scrollIntoView();
  (place.querySelector("summary") ?? place).focus({ preventScroll: true });
}

// Marks in the contents which section is read.
function followContents() {
  const links = [...document.querySelectorAll(".contents a")];
  const mark = () => {
    const seen = links.filter((link) => link.offsetParent && placeOf(link.dataset.at)?.getBoundingClientRect().top < 140);
    for (const link of links) link.removeAttribute("aria-current");
    (seen[seen.length - 1] ?? links[0]).setAttribute("aria-current", "true");
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

function drawDifferences() {
  showOnly("pair", state.pair);
  drawDifference(difference(), state.axis);
}

function themed() {
  document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches); // for DataTables
}

function drawInColours() {
  themed();
  drawPhaseAndRanges();
  drawStrip(report());
  drawMemory(report());
  drawAccounting(report());
  drawRoofline(report(), state.report);
  if (shownStep) drawStep(report(), shownStep);
  if (contents.differences.length) drawDifferences();
}

// Every group of buttons: what it chooses, and what is drawn then.
const CHOICES = {
  "difference-pair": ["pair", drawDifferences],
  "difference-axis": ["axis", drawDifferences],
  report: ["report", drawReport],
  "phase-scale": ["scale", drawPhaseAndRanges],
  "icicle-indices": ["indices", drawRanges],
};
const marks = [];

function restore() {
  readAddress();
  for (const [id, [key]] of Object.entries(CHOICES)) if (!at(id)) state[key] = DEFAULTS[key];
  for (const mark of marks) mark();
  if (contents.differences.length) drawDifferences();
  drawReport();
  goTo(state.at);
}

function start() {
  themed();
  for (const row of document.querySelectorAll("[data-part]"))
    row.onclick = (event) => {
      event.preventDefault();
      change({ at: "time" });
      goTo("time");
      showPart(row);
    };
  for (const table of document.querySelectorAll("table[data-sortable]")) sortable(table);
  for (const button of document.querySelectorAll(".unfold"))
    button.onclick = () => unfold(button.closest(".one").querySelector("table"));
  if (matchMedia("(max-width: 1099px)").matches) document.querySelector(".contents details").open = false;
  DataTable.ext.errMode = "throw";
  for (const [id, [key, draw]] of Object.entries(CHOICES))
    if (at(id))
      marks.push(
        choice(id, key, () => {
          // another axis has other columns, other boxes other ranges
          if (key === "axis") change({ "difference-search": "", "difference-order": "" }, { inPlace: true });
          if (key === "indices") change({ range: "" }, { inPlace: true });
          draw();
        }),
      );
  restore();
  for (const link of document.querySelectorAll("a[data-at]"))
    link.addEventListener("click", (event) => {
      event.preventDefault();
      change({ at: link.dataset.at });
      goTo(state.at);
    });
  followContents();
  for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", keepToggled);
  addEventListener("popstate", restore);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawInColours);
  document.documentElement.dataset.ready = "yes";
}

start();
