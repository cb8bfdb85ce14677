// Puts the page together, and again when another report is chosen or the system turns light or dark.

const shown = { report: 0, scale: "time", indices: "together", pair: 0, axis: "range", step: null };
let listKernelsOf = () => {};
const report = () => contents.reports[shown.report];
const hasKernels = () => report().phases.phases.length > 0;

function drawReport() {
  for (const part of document.querySelectorAll("[data-report]"))
    part.hidden = Number(part.dataset.report) !== shown.report;
  for (const part of document.querySelectorAll("[data-scope]"))
    part.textContent = `${report().facts.measured}, ${report().unit.name} ${report().scope}`;
  for (const id of ["phases", "ranges", "kernels"]) at(id).hidden = !hasKernels();
  at("no-kernels").hidden = hasKernels();
  if (hasKernels()) listKernelsOf = kernelFilters(kernelTable(report()), report());
  drawSteps();
  drawPhaseAndRanges();
  drawAccounting(report());
}

function drawPhaseAndRanges() {
  if (!hasKernels()) return;
  drawPhases(report(), shown.scale);
  drawRanges();
}

function drawRanges() {
  const { icicles, phases } = report();
  const boxes = icicles[shown.indices] ?? icicles.together;
  at("icicle-indices").hidden = !icicles.apart;
  at("icicle-above").textContent = boxes.above.length ? `All inside ${pathText(boxes.above)}. ` : "";
  at("icicle-key").replaceChildren(
    ...phases.phases.map((phase) => {
      const entry = element("span", {});
      entry.append(element("i", { className: `dot ${phaseName(phase)}` }), phase);
      return entry;
    }),
    say("kernels lighter"),
  );
  drawIcicle(report(), boxes, (path) => listKernelsOf(path));
}

function drawSteps() {
  const { count: steps, ranges, left_out: left } = report().steps;
  shown.step = null;
  at("step-body").hidden = !ranges.length;
  at("step-scope").textContent =
    steps === 0
      ? "The report has no measured step ranges, so nothing can be said from step to step."
      : `${report().facts.measured} inside each range, in each of ${count(steps)} measured step${steps > 1 ? "s" : ""}. Click a row to see its steps.` +
        (left ? ` ${count(left)} shorter ranges are not on this page.` : "");
  if (ranges.length)
    stepTable(report(), (row) => {
      shown.step = row;
      drawStep(report(), row);
    });
}

function themed() {
  document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches); // for DataTables
}

function drawAll() {
  themed();
  drawPhaseAndRanges();
  drawAccounting(report());
  if (shown.step) drawStep(report(), shown.step);
  if (contents.differences.length) drawDifference(contents.differences[shown.pair], shown.axis);
}

function start() {
  themed();
  DataTable.ext.errMode = "throw";
  if (contents.differences.length)
    choice("difference-axis", (value) => {
      shown.axis = value;
      drawDifference(contents.differences[shown.pair], value);
    });
  if (contents.differences.length > 1)
    choice("difference-pair", (value) => {
      shown.pair = Number(value);
      drawDifference(contents.differences[shown.pair], shown.axis);
    });
  if (contents.reports.length > 1)
    choice("report", (value) => {
      shown.report = Number(value);
      drawReport();
    });
  else drawReport();
  choice("phase-scale", (value) => {
    shown.scale = value;
    if (hasKernels()) drawPhases(report(), value);
  });
  choice("icicle-indices", (value) => {
    shown.indices = value;
    listKernelsOf([]);
    if (hasKernels()) drawRanges();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.ready = "yes";
}

start();
