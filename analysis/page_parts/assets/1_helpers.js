"use strict";
// What all parts share: the page's data, the libraries packed into it, numbers and names as text, colours, choices.

const contents = JSON.parse(document.getElementById("contents").textContent);
const at = (id) => document.getElementById(id);
const sum = (values) => values.reduce((total, value) => total + value, 0);

async function library(id) {
  const packed = Uint8Array.from(atob(at(id).textContent), (character) => character.charCodeAt(0));
  const script = await new Response(
    new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")),
  ).blob();
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const loaded = await import(address);
  URL.revokeObjectURL(address);
  return loaded;
}

// Numbers.
const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (part) => (Number.isFinite(part) ? `${grouped(100 * part, 1)}%` : "–");
const count = (value) => grouped(value, Number.isInteger(value) ? 0 : 1);
const microseconds = (ns) => grouped(ns / 1e3, 1);
const signed = (text, value) => (value > 0 ? `+${text}` : text.replace("-", "−"));

function unitFor(ns) {
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  const [scale, name] = units.find(([least]) => Math.abs(ns) >= least) ?? [1, "ns"];
  return { ns: scale, name };
}

const timeIn = (unit, ns) => grouped(ns / unit.ns, unit.ns > 1 ? 2 : 0);
const withUnit = (ns) => `${timeIn(unitFor(ns), ns)} ${unitFor(ns).name}`;

// Names come from whoever wrote the program: inert in HTML, and in Plotly's labels, which read HTML too.
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const inert = (text) => String(text).replace(/[&<>"']/g, (character) => ENTITIES[character]);
const shortened = (text, length) =>
  text.length <= length ? text : `${text.slice(0, Math.ceil(length / 2) - 1)}…${text.slice(1 - Math.floor(length / 2))}`;
const wrapped = (text) => inert(shortened(text, 420).replace(/(.{1,64})(?:\s+|$)|(.{64})/g, "$1$2\n")).trim().replaceAll("\n", "<br>");
const pathText = (path) => path.join(" > ");

// Colours: those of phases and surfaces are the style sheet's, so that they follow light and dark.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const CATEGORY_COLOURS = {
  gemm: "#4f5bd5", attention: "#e5484d", convolution: "#ab4aba", elementwise: "#12a594", reduction: "#f0a30a",
  softmax: "#d6409f", normalization: "#8e4ec6", copy: "#8b8d98", index: "#29a3e8", rng: "#a18072", scan: "#7d66d9",
  optimizer: "#46a758", communication: "#f76b15", other: "#b5b8c0",
};
const phaseColour = (phase) => css(["forward", "backward", "optimizer"].includes(phase) ? phase : "other");

function mixed(one, two, share) {
  const parts = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  const [a, b] = [parts(one), parts(two)];
  return `#${a.map((value, i) => Math.round(value + (b[i] - value) * share).toString(16).padStart(2, "0")).join("")}`;
}

function layout(more) {
  const axis = { gridcolor: css("line"), zerolinecolor: css("line"), linecolor: css("line"), automargin: true, fixedrange: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("text") },
    hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("text"), size: 12 }, align: "left" },
    legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, xanchor: "left", traceorder: "normal" },
    margin: { l: 8, r: 8, t: 8, b: 32 }, dragmode: false,
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

const CHART = {
  responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [["toImage"]],
  toImageButtonOptions: { format: "svg", filename: "kernel-time" },
};

// A group of buttons of which one is chosen; `chosen` is called now and at every change.
function choice(id, chosen, first) {
  const buttons = [...at(id).querySelectorAll("button")];
  const choose = (value) => {
    for (const button of buttons) button.setAttribute("aria-checked", String(button.dataset.value === value));
    chosen(value);
  };
  for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.value));
  if (buttons.length) choose(first ?? buttons[0].dataset.value);
}

function redrawn(table) {
  if (table) table.destroy();
}
