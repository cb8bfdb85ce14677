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

function goTo(section) {
  const place = section && (at(`${section}-${state.report}`) ?? at(section));
  if (!place) return;
  if (place.tagName === "DETAILS") place.open = true;
  place.scrollIntoView();
  (place.querySelector("summary") ?? place).focus({ preventScroll: true });
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
  for (const link of document.querySelectorAll("[data-part]"))
    link.onclick = (event) => {
      event.preventDefault();
      change({ at: "time" });
      goTo("time");
      showPart(link);
    };
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
  for (const link of document.querySelectorAll(".look a"))
    link.addEventListener("click", (event) => {
      event.preventDefault();
      change({ at: link.hash.slice("#at=".length) });
      goTo(state.at);
    });
  for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", keepToggled);
  addEventListener("popstate", restore);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawInColours);
  document.documentElement.dataset.ready = "yes";
}

start();
