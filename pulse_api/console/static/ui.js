// Parts that several pages use: sections, notices, dialogs, buttons.

import { foreign, h, put } from "./dom.js";
import { time } from "./format.js";
import { Problem } from "./api.js";

export const HOME = "/console";
const LONG_FACT = 24; // characters from which a fact takes two columns

/** The address of a page, of path segments that need no encoding yet. */
export function address(...segments) {
  return [HOME, ...segments.map((text) => encodeURIComponent(text.replace(/\p{Surrogate}/gu, "\ufffd")))].join("/");
}

export function link(segments, ...children) {
  return h("a", { href: address(...segments) }, children);
}

/** A section with a heading, and a body that a page fills later. */
export function section(title, ...children) {
  return h("section", {}, title ? h("h2", {}, title) : null, children);
}

/** A place for what is still loading: it keeps `lines` lines free, so that nothing jumps. */
export function pending(lines = 3) {
  return h("div", { class: `pending lines-${lines}`, "aria-busy": "true" }, h("span", {}, "Loading …"));
}

export function notice(kind, ...children) {
  const role = kind === "error" ? "alert" : kind === "good" ? "status" : null;
  return h("div", { class: `notice ${kind}`, role }, children);
}

/** What teaches the first step where there is nothing yet. */
export function empty(title, ...children) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), children);
}

/** An error with what to do about it. */
export function problem(error) {
  if (!(error instanceof Problem)) {
    console.error(error);
    return notice("error", h("p", { class: "what" }, "The console cannot show this."), h("p", { class: "fix" }, "Reload the page; if it stays, tell the operators of Pulse: ", h("code", {}, foreign(String(error.message)))));
  }
  const { understood = [], incompatibilities = [], request_id: id } = error.document;
  return notice(
    "error",
    report(error.message),
    understood.length ? h("p", {}, "Understood: ", foreign(understood.join("; "))) : null,
    incompatibilities.length ? h("ul", {}, incompatibilities.map((entry) => h("li", {}, foreign(Object.values(entry).join(": "))))) : null,
    h("p", { class: "fix" }, foreign(error.fix)),
    id ? h("p", { class: "quiet" }, "Request ", h("code", {}, foreign(id))) : null,
  );
}

/** What is wrong, line by line; a line of SQL with the caret below it keeps its alignment. */
function report(message) {
  const at = message.search(/^LINE \d+:/m);
  const [what, ...more] = message.slice(0, at < 0 ? undefined : at).trim().split(/\n+/);
  const place = at < 0 ? null : h("pre", { class: "report", tabindex: 0, "aria-label": "Place in the query" }, foreign(message.slice(at)));
  return [h("p", { class: "what" }, foreign(what)), more.map((line) => h("p", {}, foreign(line))), place];
}

/** What a page shows of a name that the tenant has nothing under: `list` is the page that has all, and its label. */
export function absent(noun, name, [list, label], error = null) {
  const fix = error?.document.fix;
  const guess = typeof fix === "string" && fix.startsWith("Did you mean") ? `${fix} ` : "";
  const why = "The address is mistyped, or it was deleted, or it belongs to another tenant. ";
  return notice("error", h("p", { class: "what" }, `There is no ${noun} `, foreign(name), "."), h("p", { class: "fix" }, foreign(guess), why, link(list, label)));
}

/** Fill a place with what `load` gives, or with its error; where there is nothing, with what `missing` makes of it. */
export async function fillWith(place, load, missing = problem) {
  try {
    put(place, await load());
  } catch (error) {
    if (error.name === "AbortError") return;
    put(place, error.isAbsence ? missing(error) : problem(error));
  }
  place.removeAttribute("aria-busy");
}

export function button(label, action, attributes = {}) {
  const element = h("button", { type: "button", ...attributes, onclick: () => busyWhile(element, action) }, label);
  return element;
}

/** A button does nothing more until its action has ended. */
async function busyWhile(element, action) {
  if (element.getAttribute("aria-disabled") === "true") return;
  element.setAttribute("aria-disabled", "true");
  try {
    await action();
  } finally {
    element.removeAttribute("aria-disabled");
  }
}

export function copyButton(text, label = "Copy") {
  const element = button(label, async () => {
    await navigator.clipboard.writeText(typeof text === "function" ? text() : text).then(
      () => (element.textContent = "Copied"),
      () => (element.textContent = "Not allowed by the browser"),
    );
    setTimeout(() => (element.textContent = label), 1_500);
  }, { class: "small" });
  return element;
}

/** Code to copy. */
export function code(text, label) {
  return h("div", { class: "code" }, copyButton(text), h("pre", { tabindex: 0, "aria-label": label }, h("code", {}, foreign(text))));
}

/** How fresh what a page shows is, and a way to ask again. */
export function freshLine(asOf, reload, ...more) {
  return h("p", { class: "fresh" }, more, more.length ? " · " : null, "As of ", time(asOf), " · ", button("Refresh", reload, { class: "link" }));
}

/** Name and value pairs. */
export function facts(pairs) {
  const pairsWithValue = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", {}, pairsWithValue.map(([name, value]) => {
    const description = h("dd", {}, value);
    return h("div", { class: description.textContent.length > LONG_FACT ? "long" : null }, h("dt", {}, name), description);
  }));
}

/** A table of rows that are lists of cells; `kinds` are classes of the columns. On a narrow screen each row is a block. */
export function table(label, columns, rows, kinds = []) {
  return tableOf(label, columns, h("tbody", { role: "rowgroup" }, rows.map((cells) => tableRow(columns, cells, kinds))), kinds);
}

/** A table with a body of `tableRow`s. Its roles stay when a narrow screen shows it in blocks. */
export function tableOf(label, columns, body, kinds = []) {
  const headings = columns.map((name, at) => h("th", { scope: "col", role: "columnheader", class: kinds[at] }, name));
  const head = h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, headings));
  return h("div", { class: "scroll stack", tabindex: 0, role: "region", "aria-label": label }, h("table", { role: "table" }, head, body));
}

/** A row of a table; each cell knows the name of its column, for narrow screens. */
export function tableRow(columns, cells, kinds = []) {
  const nameOf = (column) => (typeof column === "string" ? column : h("span", {}, column).textContent);
  return h("tr", { role: "row" }, cells.map((cell, at) => h("td", { role: "cell", class: kinds[at], "data-column": nameOf(columns[at]) }, cell)));
}

/** Ask before something happens; the dialog shows the action's result or its error. Without an action it only tells. */
export function confirm({ title, body, action = null, label, danger = false }) {
  const about = h("div", {}, body);
  const result = h("div", {});
  const go = button(label, async () => {
    try {
      put(result, notice("good", await action()));
      about.remove();
      go.remove();
      cancel.textContent = "Close";
      cancel.focus();
    } catch (error) {
      put(result, problem(error));
    }
  }, { class: danger ? "danger" : "primary" });
  const cancel = button(action ? "Cancel" : "Close", () => dialog.close());
  const dialog = openDialog(title, about, result, h("div", { class: "actions" }, cancel, action ? go : null));
  cancel.focus();
  return dialog;
}

export function openDialog(title, ...children) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), children);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
