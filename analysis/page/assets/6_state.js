// What is chosen on the page. The address holds it after #, so a link shows the same, and back and forward work.

const DEFAULTS = {
  report: "0",
  scale: "time",
  indices: "together",
  range: "",
  phase: "",
  category: "",
  step: "",
  point: "",
  pair: "0",
  axis: "phase",
  toggled: "",
  at: "",
  "kernel-search": "",
  "kernel-order": "4 desc",
  "step-search": "",
  "step-order": "",
  "difference-search": "",
  "difference-order": "",
};
const state = { ...DEFAULTS };

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(DEFAULTS)) state[key] = asked.get(key) ?? DEFAULTS[key];
}

// Choose, and keep that in the address: as a step that back takes back, or in place of the current one.
function change(changes, { inPlace = false } = {}) {
  const chosen = Object.entries(changes).filter(([key, value]) => state[key] !== value);
  if (!chosen.length) return;
  Object.assign(state, Object.fromEntries(chosen));
  const kept = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]);
  const address = location.href.split("#")[0] + (kept.length ? `#${new URLSearchParams(kept)}` : "");
  history[inPlace ? "replaceState" : "pushState"](null, "", address);
}
