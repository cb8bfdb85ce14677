// One step in time on a canvas: single kernels by stream, idle time by cause, and what the CPU's threads do.

const LANE = 24;
const MOST_OUTER = 4;
const timelineView = { rows: [], from: 0, to: 1, cursor: null, labels: 0, width: 0 };

// The rows of the picture: boxes with start, end, and functions that tell their name, tone and facts.
function timelineRows({ timeline, rows, tree }) {
  const paths = [...new Set(rows.path)].map((node) => pathOf(tree, tree.together[node]));
  const above = commonLength(paths);
  return timeline.lanes.flatMap((lane, n) => {
    const row = { ...lane, lane };
    const isWork = lane.kind === "work";
    const node = isWork ? (i) => (lane.row[i] ? rows.path[lane.row[i] - 1] : -1) : (i) => lane.path[i] - 1;
    const hasOuter = lane.kind === "ranges" || (isWork && n < MOST_OUTER);
    const outer = hasOuter ? outerRow(lane, tree, node, above + 1, isWork ? `modules on ${lane.label}` : lane.label) : null;
    if (lane.kind === "ranges") row.label = `${lane.label}, inner`;
    return outer ? [outer, row] : [row];
  });
}

// How many ranges all paths begin with, but for those that end there.
function commonLength(paths) {
  let length = 0;
  while (new Set(paths.map((path) => path[length]).filter((node) => node !== undefined)).size === 1) length += 1;
  return length;
}

// The ranges just inside those that contain everything, so that names are seen before one zooms in.
function outerRow(lane, tree, node, depth, label) {
  const [start, end, path, tone] = [[], [], [], []];
  lane.start.forEach((begin, n) => {
    const outer = node(n) < 0 ? -1 : pathOf(tree, node(n)).slice(0, depth).pop();
    if (outer < 0) return;
    const last = path.length - 1;
    if (path[last] === outer + 1) end[last] = Math.max(end[last], lane.end[n]);
    else [start, end, path, tone].forEach((column, k) => column.push([begin, lane.end[n], outer + 1, n][k]));
  });
  return path.length ? { label, kind: "outer", lane, start, end, path, of: tone } : null;
}

function boxTone({ kind, lane, ...row }, n) {
  const { rows, timeline } = report();
  if (kind === "outer") return boxTone({ ...lane, lane }, row.of[n]);
  if (kind !== "work") return timeline.texts[row.tone[n]];
  if (!row.row[n]) return "no phase";
  const [part] = rows.parts[rows.part[row.row[n] - 1]].split(" ");
  return { communication: "communication", copy: "copies" }[part] ?? rows.phases[rows.phase[row.row[n] - 1]];
}

function boxName({ kind, row, path, text, tone, count: pieces }, n) {
  const { rows, tree, timeline } = report();
  if (kind === "work") {
    const name = row[n] ? rows.kernels[rows.kernel[row[n] - 1]][0] : say("a kernel that does not count");
    return pieces?.[n] > 1 ? `${name} and ${pieces[n] - 1} more` : name;
  }
  if (kind === "idle") return timeline.texts[tone[n]];
  return kind === "calls" ? timeline.texts[text[n]] : lastName(tree, path[n] - 1);
}

function boxLines(row, n) {
  const { rows, tree, timeline } = report();
  const [start, lasts] = [row.start[n], row.end[n] - row.start[n]].map((ticks) => ticks * timeline.tick_ns);
  const lines = [boxName(row, n)];
  if (row.kind === "work" && row.row[n]) lines.push(tree.text[rows.path[row.row[n] - 1]], rows.phases[rows.phase[row.row[n] - 1]]);
  if (row.kind === "work" && row.line?.[n]) lines.push(timeline.lines[row.line[n] - 1]);
  if (row.kind === "idle") lines.push(timeline.texts[row.text[n]] && `while the CPU was in ${timeline.texts[row.text[n]]}`);
  if (row.path) lines.push(tree.text[row.path[n] - 1]);
  lines.push(`${withUnit(lasts)}, from ${withUnit(start)} on`, row.label);
  return lines.filter(Boolean);
}

// Whether a box is shown in full colour: it is selected, or before what is.
function isBright({ kind, row, tone }, n) {
  if (!isAnythingSelected() || kind === "calls" || kind === "outer" || kind === "ranges") return true;
  if (kind === "idle" && isIdle(state.part) && report().timeline.texts[tone[n]] !== state.part.slice(5)) return false;
  return row[n] > 0 && picked[row[n] - 1] === 1;
}

function selectBox({ kind, row, path, tone }, n) {
  const { rows, tree, timeline } = report();
  if (kind === "work" && row[n])
    select({ path: tree.text[rows.path[row[n] - 1]], kernel: rows.kernels[rows.kernel[row[n] - 1]][0] });
  if (kind === "idle") select({ part: `idle ${timeline.texts[tone[n]]}` });
  if (path) select({ path: tree.text[path[n] - 1], kernel: "" });
}

function startTimeline() {
  const view = timelineView;
  const { timeline } = report();
  at("timeline").hidden = !timeline.lanes.length;
  view.rows = timelineRows(report());
  view.cursor = null;
  const step = timeline.step === null ? "All that was recorded" : `Step ${timeline.step}, which takes the median time`;
  const left = timeline.left_out ? ` ${count(timeline.left_out)} streams with less work are not shown.` : "";
  at("timeline-scope").textContent = `${step}: ${withUnit(timeline.span * timeline.tick_ns)}.${left}`;
  at("timeline-said").textContent = at("timeline-said").dataset.keys;
}

function drawTimeline() {
  const view = timelineView;
  const { timeline } = report();
  if (!timeline.lanes.length) return;
  const zoom = state.zoom.split("-").map(Number);
  [view.from, view.to] = zoom.length === 2 && zoom[1] > zoom[0] && zoom[1] <= timeline.span ? zoom : [0, timeline.span];
  const canvas = at("timeline-canvas");
  const height = LANE * (view.rows.length + 1);
  view.width = canvas.clientWidth;
  view.labels = view.width < 600 ? 84 : 190;
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [view.width * devicePixelRatio, height * devicePixelRatio];
  const pen = canvas.getContext("2d");
  pen.scale(devicePixelRatio, devicePixelRatio);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  const colours = new Map();
  const colour = (tone) => colours.get(tone) ?? colours.set(tone, css(toneName(tone)) || css("no-phase")).get(tone);
  view.rows.forEach((row, line) => drawLane(pen, row, line, colour));
  drawAxis(pen, height);
  drawCursor(pen);
}

const xOf = (tick) => timelineView.labels + ((tick - timelineView.from) / (timelineView.to - timelineView.from)) * (timelineView.width - timelineView.labels);
const tickAt = (x) => timelineView.from + ((x - timelineView.labels) / (timelineView.width - timelineView.labels)) * (timelineView.to - timelineView.from);

// A box that is narrower than a pixel is drawn if nothing of its colour is there yet.
function drawLane(pen, row, line, colour) {
  const view = timelineView;
  const top = line * LANE + 2;
  pen.save();
  pen.beginPath();
  pen.rect(view.labels, top, view.width - view.labels, LANE);
  pen.clip();
  let last = [-1, "", 0];
  for (let n = 0; n < row.start.length; n += 1) {
    if (row.end[n] < view.from || row.start[n] > view.to) continue;
    const left = Math.max(xOf(row.start[n]), view.labels);
    const right = Math.min(xOf(row.end[n]), view.width);
    const alpha = isBright(row, n) ? 1 : 0.15;
    const tone = boxTone(row, n);
    if (right - left < 1 && last[0] === Math.floor(left) && last[1] === tone && last[2] >= alpha) continue;
    last = [Math.floor(left), tone, alpha];
    pen.globalAlpha = row.kind === "outer" || row.kind === "ranges" ? 0.45 + 0.3 * (n % 2) : alpha;
    pen.fillStyle = colour(tone);
    pen.fillRect(left, top, Math.max(right - left - (right - left > 4 ? 0.5 : 0), 0.6), LANE - 4);
    if (right - left > 34 && alpha === 1) {
      pen.globalAlpha = 1;
      pen.fillStyle = css(row.kind === "outer" || row.kind === "ranges" ? "text" : "ink");
      label(pen, boxName(row, n), left + 3, top + LANE / 2 - 1, right - left - 6);
    }
  }
  pen.restore();
  pen.fillStyle = css("soft");
  label(pen, row.label, 2, top + LANE / 2 - 1, view.labels - 8);
}

// A label in the part of the box that is seen, cut where it must be.
function label(pen, text, x, y, room) {
  let shown = text;
  if (pen.measureText(shown).width > room) {
    let length = Math.floor((shown.length * room) / pen.measureText(shown).width);
    while (length > 2 && pen.measureText(`${shown.slice(0, length)}…`).width > room) length -= 1;
    shown = length > 2 ? `${shown.slice(0, length)}…` : "";
  }
  pen.fillText(shown, x, y);
}

function drawAxis(pen, height) {
  const view = timelineView;
  const { tick_ns: tick } = report().timeline;
  const places = view.width < 600 ? 2 : 6;
  pen.fillStyle = css("soft");
  for (let n = 0; n <= places; n += 1) {
    const x = view.labels + (n / places) * (view.width - view.labels);
    pen.textAlign = n === 0 ? "left" : n === places ? "right" : "center";
    pen.fillText(withUnit(tickAt(x) * tick), x, height - 10);
  }
  pen.textAlign = "left";
}

// The box that the keys are at, and an arrow to it from the call that launched it.
function drawCursor(pen) {
  const view = timelineView;
  if (!view.cursor) return;
  const { line, n } = view.cursor;
  const row = view.rows[line];
  const [left, right] = [Math.max(xOf(row.start[n]), view.labels), Math.min(xOf(row.end[n]), view.width)];
  pen.strokeStyle = css("text");
  pen.lineWidth = 2;
  if (right > left) pen.strokeRect(left, line * LANE + 2, Math.max(right - left, 2), LANE - 4);
  const caller = row.kind === "work" && row.launch[n] ? view.rows.findIndex((other) => other.kind === "calls" && other.start.includes(row.launch[n])) : -1;
  if (caller < 0) return;
  const [x, y] = [xOf(row.launch[n]), caller * LANE + 2];
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(left, line * LANE + LANE - 2);
  pen.stroke();
  pen.fillStyle = css("text");
  pen.fillRect(x - 3, y - 3, 6, 6);
}

// The box at a place of the canvas, the innermost where several are.
function boxAt(x, y) {
  const view = timelineView;
  const line = Math.floor(y / LANE);
  const row = view.rows[line];
  if (!row || x < view.labels) return null;
  const near = (2 * (view.to - view.from)) / (view.width - view.labels);
  const tick = tickAt(x);
  let best = null;
  for (let n = 0; n < row.start.length && row.start[n] <= tick + near; n += 1) {
    const distance = Math.max(row.start[n] - tick, tick - row.end[n], 0);
    if (distance <= near && (!best || distance <= best.distance)) best = { line, n, distance };
  }
  return best;
}

function moveCursor(line, n) {
  const view = timelineView;
  const row = view.rows[line];
  if (!row || n < 0 || n >= row.start.length) return;
  view.cursor = { line, n };
  at("timeline-said").textContent = boxLines(row, n).join(" · ");
  const width = view.to - view.from;
  if (row.end[n] < view.from || row.start[n] > view.to) zoomTo(row.start[n] - width / 2, row.start[n] + width / 2);
  else drawTimeline();
}

function zoomTo(from, to) {
  const { span } = report().timeline;
  const width = Math.min(Math.max(to - from, 200), span);
  const begin = Math.round(Math.min(Math.max(from, 0), span - width));
  change({ zoom: width >= span ? "" : `${begin}-${Math.round(begin + width)}` }, { inPlace: true });
}

// Zooms about a moment, or moves by a share of what is seen.
function zoomBy(factor, centre = (timelineView.from + timelineView.to) / 2) {
  const { from, to } = timelineView;
  zoomTo(centre - (centre - from) * factor, centre + (to - centre) * factor);
}

function moveBy(share) {
  const { from, to } = timelineView;
  zoomTo(from + share * (to - from), to + share * (to - from));
}

// Shows the part of the step that has the selected work and the idle time before it.
function zoomToPicked() {
  const bright = timelineView.rows
    .filter(({ kind }) => kind === "work" || kind === "idle")
    .flatMap((row) => [...row.start.keys()].filter((n) => isBright(row, n)).map((n) => [row.start[n], row.end[n]]));
  const from = bright.reduce((least, [start]) => Math.min(least, start), Infinity);
  const to = bright.reduce((most, [, end]) => Math.max(most, end), 0);
  if (to > from) zoomTo(from - 0.05 * (to - from), to + 0.05 * (to - from));
}

const KEYS = {
  "+": () => zoomBy(0.5),
  "=": () => zoomBy(0.5),
  "-": () => zoomBy(2),
  Home: () => zoomTo(0, report().timeline.span),
  Escape: () => change(SELECTS),
};

function timelineKeys(event) {
  const view = timelineView;
  const { line, n } = view.cursor ?? { line: 0, n: -1 };
  const row = view.rows[line];
  const nearest = (other) => {
    const centre = (Math.max(row.start[n] ?? 0, view.from) + Math.min(row.end[n] ?? view.to, view.to)) / 2;
    const distance = (k) => Math.max(other.start[k] - centre, centre - other.end[k], 0);
    return other.start.reduce((best, _, k) => (distance(k) < distance(best) ? k : best), 0);
  };
  const moves = {
    ...KEYS,
    ArrowRight: () => moveCursor(line, n + 1),
    ArrowLeft: () => moveCursor(line, n - 1),
    ArrowDown: () => view.rows[line + 1] && moveCursor(line + 1, nearest(view.rows[line + 1])),
    ArrowUp: () => view.rows[line - 1] && moveCursor(line - 1, nearest(view.rows[line - 1])),
    Enter: () => view.cursor && selectBox(row, n),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

function listenToTimeline() {
  const canvas = at("timeline-canvas");
  const tip = at("tip");
  let drag = null;
  canvas.onkeydown = timelineKeys;
  canvas.onpointerdown = ({ offsetX, pointerId }) => {
    drag = { x: offsetX, from: timelineView.from, moved: false };
    canvas.setPointerCapture(pointerId);
  };
  canvas.onpointermove = ({ offsetX, offsetY, pageX, pageY }) => {
    if (drag) {
      drag.moved ||= Math.abs(offsetX - drag.x) > 3;
      const { from, to, width, labels } = timelineView;
      const begin = drag.from + ((drag.x - offsetX) / (width - labels)) * (to - from);
      if (drag.moved) zoomTo(begin, begin + to - from);
    }
    const box = drag?.moved ? null : boxAt(offsetX, offsetY);
    tip.hidden = !box;
    if (!box) return;
    tip.textContent = boxLines(timelineView.rows[box.line], box.n).join("\n");
    tip.style.left = `${Math.min(pageX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${pageY + 16}px`;
  };
  canvas.onpointerleave = () => {
    tip.hidden = true;
  };
  canvas.onpointerup = ({ offsetX, offsetY }) => {
    const box = drag && !drag.moved ? boxAt(offsetX, offsetY) : null;
    drag = null;
    if (!box) return;
    moveCursor(box.line, box.n);
    selectBox(timelineView.rows[box.line], box.n);
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, tickAt(event.offsetX));
  }, { passive: false });
  for (const button of all("[data-zoom]"))
    button.onclick = () => ({ in: () => zoomBy(0.5), out: () => zoomBy(2), all: KEYS.Home, left: () => moveBy(-0.3), right: () => moveBy(0.3) })[button.dataset.zoom]();
  new ResizeObserver(() => {
    if (canvas.clientWidth && canvas.clientWidth !== timelineView.width) drawTimeline();
  }).observe(canvas);
}
