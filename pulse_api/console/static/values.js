// Values of rows and events: cells, trees of JSON, and a grid of rows.

import { foreign, h, plain, put } from "./dom.js";
import { isNumber, isTime, relative, withSeparators } from "./format.js";
import { readJson, writeJson } from "./json.js";
import { button, copyButton } from "./ui.js";

const LONG = 80;
const SHOWN_ROWS = 200;
const SHOWN_ITEMS = 200;

/** A value as a tree; the value at the JSON pointer `marked` stands out. */
export function tree(value, { marked = null, pointer = "" } = {}) {
  const isMarked = marked !== null && pointer === marked;
  const element = branch(value, { marked, pointer });
  return isMarked ? h("mark", { title: "What is wrong", class: element.classList.contains("tree") ? "block" : null }, element) : element;
}

function branch(value, { marked, pointer }) {
  const isMap = value instanceof Map;
  if (!isMap && !Array.isArray(value)) return h("span", { class: kindOf(value) }, foreign(writeJson(value)));
  const members = isMap ? [...value] : value.map((item, at) => [String(at), item]);
  if (!members.length) return h("span", {}, isMap ? "{ }" : "[ ]");
  const lines = members.slice(0, SHOWN_ITEMS).map(([name, item]) => {
    const inner = `${pointer}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    return h("li", {}, isMap ? [foreign(name, { class: "member" }), ": "] : null, tree(item, { marked, pointer: inner }));
  });
  const rest = members.length - lines.length;
  return h(isMap ? "ul" : "ol", { class: "tree", start: isMap ? null : 0 }, lines, rest > 0 ? h("li", {}, `… ${rest} more`) : null);
}

function kindOf(value) {
  return value === null ? "null" : isNumber(value) ? "number-value" : typeof value === "string" ? "text-value" : "word-value";
}

/** JSON text as a tree, or as text if it is no JSON. */
export function jsonTree(text, options) {
  try {
    return h("div", { class: "json" }, tree(readJson(text, true), options));
  } catch {
    return h("pre", { class: "json" }, foreign(text));
  }
}

/** The text of a value, as the API sent it. */
export function textOf(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : typeof value === "object" ? writeJson(value, "", "") .replaceAll("\n", " ") : String(value);
}

function isNested(value) {
  return value !== null && typeof value === "object" && !isNumber(value);
}

function looksNested(text) {
  return text.length > 2 && (text[0] === "{" || text[0] === "[");
}

/** A cell: numbers with all digits, times relative on hover, long and nested values open in a dialog. */
function cell(value, column, open) {
  if (value === null || value === undefined) return h("td", { class: "null" }, h("span", { title: "null" }, "–"));
  if (isNumber(value)) return h("td", { class: "number", title: String(value) }, withSeparators(value));
  const text = textOf(value);
  const nested = isNested(value) || (typeof value === "string" && looksNested(text));
  if (nested || text.length > LONG) {
    return h("td", {}, h("button", { type: "button", class: "cell", title: `Open ${plain(column)}`, onclick: () => open(column, value) }, foreign(text.slice(0, LONG)), " …"));
  }
  if (typeof value === "boolean") return h("td", {}, String(value));
  return h("td", { title: isTime(text) ? relative(text) : null }, foreign(isTime(text) ? text.replace("T", " ") : text));
}

/** A grid of rows (objects by column), sorted by a click on a heading, the first rows at first. */
export function grid(label, columns, rows) {
  let order = null;
  let rowLimit = SHOWN_ROWS;
  const body = h("tbody", {});
  const more = h("p", { class: "more" });
  const detail = h("div", { class: "cell-detail", "aria-live": "polite" });

  function open(column, value) {
    const text = textOf(value);
    const close = button("Close", () => put(detail), { class: "small" });
    const content = isNested(value) ? h("div", { class: "json" }, tree(toMaps(value))) : jsonTree(text);
    put(detail, h("div", { class: "detail-box" }, h("div", { class: "actions" }, h("strong", {}, foreign(column)), copyButton(text), close), content));
    detail.scrollIntoView({ block: "nearest" });
    close.focus();
  }

  function draw() {
    const sorted = order ? [...rows].sort((one, other) => compare(one[order.column], other[order.column]) * order.sign) : rows;
    put(body, sorted.slice(0, rowLimit).map((row) => h("tr", {}, columns.map((column) => cell(row[column], column, open)))));
    put(more, rows.length > rowLimit ? button(`Show ${Math.min(SHOWN_ROWS, rows.length - rowLimit)} more of ${withSeparators(rows.length)} rows`, () => { rowLimit += SHOWN_ROWS; draw(); }) : null);
  }

  const headings = columns.map((column) => {
    const isNumeric = rows.some((row) => isNumber(row[column]));
    const heading = h("th", { scope: "col", class: isNumeric ? "number" : null }, h("button", { type: "button", class: "sort", onclick: () => sort(column, heading) }, foreign(column)));
    return heading;
  });

  function sort(column, heading) {
    order = { column, sign: order?.column === column ? -order.sign : 1 };
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
    draw();
  }

  draw();
  const scroll = h("div", { class: "scroll grid", tabindex: 0, role: "region", "aria-label": label }, h("table", {}, h("thead", {}, h("tr", {}, headings)), body));
  return h("div", {}, scroll, more, detail);
}

/** A value with Maps for objects, as `tree` takes it. */
function toMaps(value) {
  if (Array.isArray(value)) return value.map(toMaps);
  if (!isNested(value) || value instanceof Map) return value;
  return new Map(Object.entries(value).map(([name, item]) => [name, toMaps(item)]));
}

function compare(one, other) {
  if (one === null || other === null || one === undefined || other === undefined) return (one == null) - (other == null);
  if (isNumber(one) && isNumber(other)) return Number(one) - Number(other);
  return textOf(one) < textOf(other) ? -1 : textOf(one) > textOf(other) ? 1 : 0;
}
