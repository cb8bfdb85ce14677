// The page's data: numbers as typed arrays, names as text, and units.

const contents = JSON.parse(document.getElementById("contents").textContent);
const at = (id) => document.getElementById(id);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const sum = (values) => values.reduce((total, value) => total + value, 0);

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Numbers come as "bytes of each:base64".
const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: Float64Array };

function unpacked(text) {
  const [size, data] = text.split(":");
  return new ARRAYS[size](Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer);
}

function unpackedColumns(columns) {
  const isPacked = (value) => typeof value === "string" && /^[1248]:/.test(value);
  return Object.fromEntries(
    Object.entries(columns).map(([name, value]) => [name, isPacked(value) ? unpacked(value) : value]),
  );
}

for (const report of contents.reports) {
  report.rows = unpackedColumns(report.rows);
  report.tree = unpackedColumns(report.tree);
  report.tree.text = pathTexts(report.tree);
  if (report.rows.steps) report.rows.steps.ns = unpacked(report.rows.steps.ns);
  report.timeline.lanes = report.timeline.lanes.map(({ label, ...columns }) => ({ label, ...unpackedColumns(columns) }));
}

// The path of each range. A name that begins with a word joiner follows the one before it: layers.3 and .mlp.
function pathTexts({ name, parent }) {
  const texts = [];
  name.forEach((own, n) => {
    const around = parent[n] ? texts[parent[n] - 1] : "";
    if (!own.startsWith("\u2060")) texts.push(around ? `${around} > ${own}` : own);
    else texts.push(around ? around + own.slice(1) : own.slice(2));
  });
  return texts;
}

// The ranges from the outermost to this one.
function pathOf({ parent }, node) {
  const path = [];
  for (let n = node; n >= 0; n = parent[n] - 1) path.unshift(n);
  return path;
}

const lastName = (tree, node) => tree.name[node].replace(/^\u2060\.?/, "");

const grouped = (value, digits = 0) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (part) => (Number.isFinite(part) ? `${grouped(100 * part, 1)}%` : "–");
const count = (value) => grouped(value, Number.isInteger(value) ? 0 : 1);
// A GPU runs kernels that are launched, a CPU operators that are called.
const say = (text) => text.replace(/\b(kernels?|launch(es|ed)?)\b/g, (word) => contents.words[word] ?? word);
const timeIn = (unit, ns) => grouped(ns / unit.ns, unit.decimals);

function withUnit(ns) {
  const [scale, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([least]) => Math.abs(ns) >= least) ?? [1, "ns"];
  const value = ns / scale;
  return `${grouped(value, scale === 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${name}`;
}

// Colours are the style sheet's, so that they follow light and dark.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const toneName = (tone) => tone.replaceAll(" ", "-");
