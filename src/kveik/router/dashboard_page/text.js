"use strict";
// Values as text, each with its unit, and elements that hold text and nothing else.

const NONE = "–";
const SVG = "http://www.w3.org/2000/svg";

const known = (value) => typeof value === "number" && Number.isFinite(value);

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const places = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en-US", { maximumFractionDigits: places });
}

const rounded = (value, unit) => (known(value) ? [digits(value), unit] : [NONE, ""]);
const share = (value) => (known(value) ? [digits(Math.round(value * 1000) / 10), "%"] : [NONE, ""]);

function seconds(value) {
  if (!known(value)) return [NONE, ""];
  if (value < 1) return [digits(value * 1000), "ms"];
  return value < 120 ? [digits(value), "s"] : [digits(value / 60), "min"];
}

function bytes(value) {
  if (!known(value)) return [NONE, ""];
  let unit = 0;
  while (value >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  return [digits(value), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]];
}

const words = ([figure, unit]) => (unit ? `${figure} ${unit}` : figure);

function span(value) {
  if (!known(value)) return NONE;
  if (value < 100) return `${Math.max(0, Math.round(value))} s`;
  if (value < 6000) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

function clock(atS, withSeconds = true) {
  const at = new Date(atS * 1000);
  const pair = (n) => String(n).padStart(2, "0");
  return `${pair(at.getHours())}:${pair(at.getMinutes())}${withSeconds ? `:${pair(at.getSeconds())}` : ""}`;
}

function day(atS, nowS) {
  const at = new Date(atS * 1000);
  if (nowS - atS < 72000) return clock(atS);
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${clock(atS, false)}`;
}

// What engines and models are called comes from outside: children are nodes or text, never markup.
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const figure = ([text, unit], more) => [text, unit ? element("small", {}, `\u00a0${unit}`) : null, more];

// Replaces what a node shows only where that changed, so that a selection outlives the next answer.
function show(node, key, make) {
  const text = JSON.stringify(key);
  if (node.shown !== text) {
    node.shown = text;
    node.replaceChildren(...[make()].flat().filter((child) => child !== null && child !== undefined && child !== false));
  }
}
