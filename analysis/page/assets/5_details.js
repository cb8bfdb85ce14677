// What is known of the selection: its time, launches, idle time before it, lines, FLOPs and memory, in each step.

function drawDetails() {
  const { rows, per, scope, step_ns: stepNs } = report();
  const chosen = pickedNumbers();
  const ns = sum(chosen.map((n) => rows.ns[n])) / per;
  const launches = sum(chosen.map((n) => rows.count[n])) / per;
  const least = chosen.reduce((low, n) => Math.min(low, rows.min[n]), Infinity);
  const most = chosen.reduce((high, n) => Math.max(high, rows.max[n]), 0);
  const cause = report().causes[state.part] ?? [];
  const lines = [
    ...cause.map((text, n) => [n ? "" : state.part, text]),
    [cause.length ? "work after it" : "time", `${withUnit(ns)} ${scope}${stepNs ? `, ${percent(ns / stepNs)} of ${withUnit(stepNs)}` : ""}`],
    [say("launches"), launches ? `${count(launches)}, ${withUnit(ns / launches)} each (${withUnit(least)} to ${withUnit(most)})` : "none"],
    ["idle before it", cause.length ? "" : idleBefore()],
    ["lines", linesOfPicked()],
    ...factsOfPicked(),
  ].filter(([, text]) => text);
  at("details-table").replaceChildren(
    element("tbody", {}, ...lines.map(([name, textContent]) => element("tr", {}, element("th", { scope: "row", textContent: name }), element("td", { textContent })))),
  );
  drawInSteps(chosen);
}

// The idle time that ends with selected work, by cause, in the step that is drawn.
function idleBefore() {
  const { lanes, tick_ns: tick, texts } = report().timeline;
  const times = new Map();
  for (const row of lanes.filter(({ kind }) => kind === "idle"))
    row.start.forEach((start, n) => {
      const cause = texts[row.tone[n]];
      if (isBright(row, n)) times.set(cause, (times.get(cause) ?? 0) + (row.end[n] - start) * tick);
    });
  const ranked = [...times].sort(([, a], [, b]) => b - a);
  if (!ranked.length) return "";
  return `${withUnit(sum(times.values()))} in the drawn step: ${ranked.slice(0, 4).map(([cause, ns]) => `${cause} ${withUnit(ns)}`).join(", ")}`;
}

// The lines that launch the selected work, those with the most of its time in the drawn step first.
function linesOfPicked() {
  const { lanes, lines, tick_ns: tick } = report().timeline;
  const times = new Map();
  for (const row of lanes.filter(({ kind }) => kind === "work"))
    row.line?.forEach((line, n) => {
      if (line && isBright(row, n)) times.set(line, (times.get(line) ?? 0) + (row.end[n] - row.start[n]) * tick);
    });
  const ranked = [...times].sort(([, a], [, b]) => b - a).slice(0, 5);
  return ranked.map(([line, ns]) => `${lines[line - 1]} ${withUnit(ns)}`).join(", ");
}

// What is counted of the selected range itself: FLOPs, bytes and what bounds it, and memory.
function factsOfPicked() {
  const { facts, tree } = report();
  const node = tree.text.indexOf(state.path);
  if (!state.path || state.kernel) return [];
  return facts
    .filter(({ path, phase }) => path === tree.together[node] && (!state.phase || phase === state.phase))
    .map(({ phase, name, lines }) => [`${name}, ${phase}`, lines.join(", ")]);
}

// Bars of the selection's time in each step.
function drawInSteps(chosen) {
  const { steps } = report().rows;
  at("in-steps").hidden = !steps;
  if (!steps) return;
  const width = steps.numbers.length;
  const inside = chosen.filter((n) => n < steps.rows);
  const times = steps.numbers.map((_, step) => sum(inside.map((n) => steps.ns[n * width + step])));
  const longest = Math.max(...times) || 1;
  const left = inside.length < chosen.length ? ` The ${count(chosen.length - inside.length)} shortest rows are left out.` : "";
  at("in-steps-said").textContent = `In each step: ${withUnit(Math.min(...times))} to ${withUnit(Math.max(...times))}.${left}`;
  at("in-steps-bars").classList.toggle("many", times.length > 150);
  at("in-steps-bars").replaceChildren(...times.map((ns, step) => {
    const bar = element("i", { title: `step ${steps.numbers[step]}: ${withUnit(ns)}` });
    bar.style.height = `${(100 * ns) / longest}%`;
    return bar;
  }));
}
