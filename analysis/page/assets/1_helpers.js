// What all parts share: the page's data, numbers and names as text, colours, choices.

const contents = JSON.parse(document.getElementById("contents").textContent);
const at = (id) => document.getElementById(id);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const element = (tag, properties) => Object.assign(document.createElement(tag), properties);

// Numbers.
const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (part) => (Number.isFinite(part) ? `${grouped(100 * part, 1)}%` : "–");
const count = (value) => grouped(value, Number.isInteger(value) ? 0 : 1);
const microseconds = (ns) => grouped(ns / 1e3, 1);
// A GPU runs kernels that are launched, a CPU operators that are called.
const say = (text) =>
  text.replace(/\b(kernels?|launch(es|ed)?)\b/g, (word) => contents.words[word] ?? word);
const signed = (text, value) => (value > 0 ? `+${text}` : text.replace("-", "−"));

function unitFor(ns) {
  const units = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "µs"],
  ];
  const [scale, name] = units.find(([least]) => Math.abs(ns) >= least) ?? [1, "ns"];
  return { ns: scale, name };
}

const timeIn = (unit, ns) => grouped(ns / unit.ns, unit.ns > 1 ? (unit.decimals ?? 2) : 0);
const withUnit = (ns) => `${timeIn(unitFor(ns), ns)} ${unitFor(ns).name}`;

function withPrefix(value, unit) {
  const prefixes = [
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  const [scale, prefix] = prefixes.find(([least]) => value >= least) ?? [1, ""];
  return `${Number((value / scale).toPrecision(3))} ${prefix}${unit}`;
}

// Names come from whoever wrote the program: nothing that reads HTML gets one that is not inert.
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const inert = (text) => String(text).replace(/[&<>"']/g, (character) => ENTITIES[character]);
// A name that begins with JOINED of icicle.py follows the one before it directly: layers.3 and .mlp.
const pathText = (path) =>
  path.reduce((text, name) => {
    if (!name.startsWith("\u2060")) return text ? `${text} > ${name}` : name;
    return text ? text + name.slice(1) : name.slice(2);
  }, "");
// An index is named with its list: mlp.2.
const lastName = (path) => pathText(path.slice(/^\u2060\.[\d*]/.test(path[path.length - 1]) ? -2 : -1));

// How many names all paths begin with; one is always left of each.
function commonLength(paths) {
  let length = 0;
  while (paths.every((path) => path.length > length + 1 && path[length] === paths[0][length])) length += 1;
  return paths.length ? length : 0;
}

function shortened(text, length) {
  if (text.length <= length) return text;
  return `${text.slice(0, Math.ceil(length / 2) - 1)}…${text.slice(1 - Math.floor(length / 2))}`;
}

// A tip is lines of text; the first stands out.
const tip = (...lines) =>
  `<div class="tip"><b>${inert(lines[0])}</b>${lines
    .slice(1)
    .map((line) => `<br>${inert(line)}`)
    .join("")}</div>`;

// Colours: those of phases and surfaces are the style sheet's, so that they follow light and dark.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const PHASES = ["forward", "backward", "optimizer", "prefill", "decode"];
const phaseName = (phase) => (PHASES.includes(phase) ? phase : "other");
const phaseColour = (phase) => css(phaseName(phase));

function keyEntry(phase) {
  const entry = element("span", {});
  entry.append(element("i", { className: `dot ${phaseName(phase)}` }), phase);
  return entry;
}

const CATEGORY_COLOURS = {
  GEMM: "#4f5bd5",
  attention: "#e5484d",
  convolution: "#ab4aba",
  elementwise: "#12a594",
  reduction: "#e79d0b",
  softmax: "#d6409f",
  normalization: "#8e4ec6",
  copy: "#8b8d98",
  index: "#29a3e8",
  rng: "#a18072",
  scan: "#7d66d9",
  linalg: "#c2298a",
  optimizer: "#46a758",
  communication: "#f76b15",
  other: "#a9adb6",
};

const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

function mixed(one, two, share) {
  const other = channels(two);
  const parts = channels(one).map((value, n) => Math.round(value + (other[n] - value) * share));
  return `#${parts.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

function readableOn(colour) {
  const [red, green, blue] = channels(colour);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150 ? "#16181b" : "#ffffff";
}

// A group of buttons with one chosen, by a click or with the arrow keys. Returns a function that marks the chosen one.
function choice(id, key, chosen) {
  const buttons = [...at(id).querySelectorAll("button")];
  const mark = () => {
    if (!buttons.some((button) => button.dataset.value === state[key])) state[key] = buttons[0].dataset.value;
    for (const button of buttons) {
      const is = button.dataset.value === state[key];
      button.setAttribute("aria-checked", String(is));
      button.tabIndex = is ? 0 : -1;
    }
  };
  const choose = (button) => {
    change({ [key]: button.dataset.value });
    mark();
    chosen();
  };
  buttons.forEach((button, n) => {
    button.addEventListener("click", () => choose(button));
    button.addEventListener("keydown", ({ key: pressed }) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[pressed];
      if (!by) return;
      const next = buttons[(n + by + buttons.length) % buttons.length];
      next.focus();
      choose(next);
    });
  });
  return mark;
}
