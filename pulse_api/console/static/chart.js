// Charts: bars over time, and bars by name. The numbers stand in a table beside them, for screen readers, too.

import { h, plain, svg } from "./dom.js";
import { isNumber, withSeparators } from "./format.js";

const HEIGHT = 60;
const LINE = 36;
const MAX_BAR = 8; // percent of the width: a bar of few is no block
const MAX_NAMES = 40;
const LONGEST_NAME = 36;
const DAY = /^\d{4}-\d\d-\d\d/;

/** Upright bars in the order of `values`: objects of a label, an amount, and the amount's text. */
export function barsOverTime(title, values) {
  const most = Math.max(...values.map(({ amount }) => amount), 1);
  const greatest = values.reduce((one, other) => (other.amount > one.amount ? other : one));
  const share = 100 / values.length;
  const width = Math.min(share, MAX_BAR) * 0.8;
  const shapes = values.map(({ label, amount, text }, at) => {
    const height = Math.max((amount / most) * (HEIGHT - 2), 1);
    const box = { x: `${at * share + (share - width) / 2}%`, y: HEIGHT - height, width: `${width}%`, height };
    return svg("rect", box, svg("title", {}, `${plain(label)}: ${text}`));
  });
  const ends = [values[0].label, `at most ${greatest.text}`, values.at(-1).label].map(plain);
  return figure(`${title}, from ${ends[0]} to ${ends[2]}, ${ends[1]}`, HEIGHT, shapes, ends);
}

/** A row of bars as small as a word, beside numbers that say the same; null is an amount that is unknown. */
export function smallBars(title, amounts) {
  const most = Math.max(...amounts.map(Number), 1);
  const shapes = amounts.map((amount, at) => {
    const height = amount === null ? 1 : Math.max((Number(amount) / most) * 18, Number(amount) ? 2 : 1);
    return svg("rect", { x: at * 5, y: 20 - height, width: 4, height, class: amount === null || !Number(amount) ? "none" : null });
  });
  return svg("svg", { role: "img", "aria-label": title, class: "small-bars", width: amounts.length * 5, height: 20 }, svg("title", {}, title), shapes);
}

export function barsByName(title, values) {
  const most = Math.max(...values.map(({ amount }) => amount), Number.MIN_VALUE);
  const shapes = values.flatMap(({ label, amount, text }, at) => {
    const name = [...plain(label)];
    const shown = name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1).join("")}…` : name.join("");
    const hover = svg("title", {}, `${name.join("")}: ${text}`);
    return [
      svg("text", { x: 0, y: at * LINE + 13 }, shown),
      svg("text", { x: "100%", y: at * LINE + 13, "text-anchor": "end" }, text),
      svg("rect", { x: 0, y: at * LINE + 18, width: `${(amount / most) * 100}%`, height: 8 }, hover),
    ];
  });
  return figure(`${title}, ${values.length} bars`, values.length * LINE, shapes, []);
}

/** A chart of rows with a name or a time and an amount; null if they have another shape. */
export function chartOfRows(columns, rows) {
  if (columns.length !== 2 || rows.length < 2) return null;
  const [nameColumn, amountColumn] = columns;
  const amounts = rows.map((row) => row[amountColumn]);
  const names = rows.map((row) => row[nameColumn]);
  const isAmount = (value) => isNumber(value) && Number.isFinite(Number(value)) && Number(value) >= 0;
  if (!amounts.every(isAmount) || !names.every((name) => typeof name === "string")) return null;
  const values = names.map((label, at) => ({ label, amount: Number(amounts[at]), text: withSeparators(amounts[at]) }));
  const title = `${plain(amountColumn)} by ${plain(nameColumn)}`;
  const isOverTime = names.every((name, at) => DAY.test(name) && (at === 0 || names[at - 1] < name));
  if (isOverTime) return barsOverTime(title, values);
  return values.length <= MAX_NAMES ? barsByName(title, values) : null;
}

function figure(label, height, shapes, captions) {
  const caption = captions.length ? h("figcaption", {}, captions.map((text) => h("span", {}, text))) : null;
  const image = svg("svg", { role: "img", "aria-label": label, height, width: "100%" }, shapes);
  return h("figure", { class: "chart" }, image, caption);
}
