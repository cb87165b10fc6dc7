// Numbers, sizes and times as people read them, the exact value on hover.

import { h } from "./dom.js";
import { Digits } from "./json.js";

const UNITS = [[" year", 31_536_000], [" month", 2_592_000], [" day", 86_400], [" h", 3_600], [" min", 60], [" s", 1]];
const WORDS = [" year", " month", " day"];
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

/** Digits as they came, with separators in the whole part. */
export function withSeparators(value) {
  const [, sign, whole, rest] = /^(-?)(\d+)(.*)$/s.exec(String(value)) ?? [null, "", "", String(value)];
  return sign + whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") + rest;
}

export function number(value) {
  return h("span", { class: "number" }, withSeparators(value));
}

/** A text of the API where it stands alone: its first word begins with a capital, unless it may be a name. */
export function sentence(text) {
  return text.replace(/^[a-z](?=[a-z']*[ ,])/, (letter) => letter.toUpperCase());
}

/** A count with its noun: 1 event, 2 events. */
export function count(value, noun, plural = `${noun}s`) {
  return `${withSeparators(value)} ${Number(value) === 1 ? noun : plural}`;
}

export function bytes(value) {
  let size = Number(value);
  let unit = "B";
  for (const next of ["kB", "MB", "GB", "TB", "PB"]) {
    if (size < 1000) break;
    size /= 1000;
    unit = next;
  }
  const text = `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
  return h("span", { class: "number", title: `${withSeparators(value)} bytes` }, text);
}

export function isNumber(value) {
  return typeof value === "number" || value instanceof Digits;
}

export function isTime(text) {
  return typeof text === "string" && TIME.test(text);
}

/** How long ago, or until when: `3 min ago`. */
export function relative(moment, now = Date.now()) {
  const seconds = (now - new Date(moment).getTime()) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return "now";
  const [unit, length] = UNITS.find(([, many]) => size >= many);
  const many = Math.floor(size / length);
  const text = `${many}${unit}${WORDS.includes(unit) && many > 1 ? "s" : ""}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

/** A time, relative, kept up to date; the exact one on hover. */
export function time(moment, absent = "never") {
  if (!moment) return h("span", { class: "quiet" }, absent);
  return h("time", { datetime: moment, title: exact(moment), "data-relative": true }, relative(moment));
}

export function exact(moment) {
  return moment.replace("T", " ").replace(/(\.\d{3})000/, "$1").replace(/Z$|\+00:00$/, " UTC");
}

/** Keep the relative times of the page right. */
export function keepTimes() {
  setInterval(() => {
    for (const element of document.querySelectorAll("time[data-relative]")) {
      const text = relative(element.getAttribute("datetime"));
      if (element.textContent !== text) element.textContent = text;
    }
  }, 5_000);
}
