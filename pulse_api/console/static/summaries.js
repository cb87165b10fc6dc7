// Summaries of a dataset's days as charts: events by hour and by day, and every other rollup.

import { read } from "./api.js";
import { barsByName, barsOverTime } from "./chart.js";
import { foreign, h, plain, put } from "./dom.js";
import { count, exact, isNumber, time, withSeparators } from "./format.js";
import { grid } from "./values.js";
import { fillWith, pending } from "./ui.js";

const MAX_BARS = 40;

/** Events by hour and by day, by the rollup `daily`. */
export function days(summary) {
  const computed = summary.days.filter((day) => day.rows.length);
  if (!computed.length) {
    const why = summary.days.length ? "Pulse is computing the summary." : "No events have a timestamp in the last days.";
    return h("p", { class: "quiet" }, why, " Summaries follow a landing by about a minute.");
  }
  const bar = (label, events) => ({ label, amount: Number(events), text: count(events, "event") });
  const hours = computed.flatMap(({ day, rows: [{ by_hour: byHour = [] }] }) => hoursOf(day, byHour ?? []).map(([hour, events]) => bar(hour, events)));
  return [
    hours.length ? [h("h3", {}, "By hour, of days with events"), barsOverTime("Events by hour", hours)] : null,
    h("h3", {}, "By day"),
    barsOverTime("Events by day", computed.map(({ day, rows: [{ events }] }) => bar(day, events))),
    asOf(summary),
  ];
}

/** The hours of a day, those without events included; of today, those that have begun. */
function hoursOf(day, byHour) {
  if (!byHour.length) return [];
  const amounts = new Map(byHour.map(({ hour, events }) => [Number(hour), events]));
  const now = new Date().toISOString();
  const last = day === now.slice(0, 10) ? Math.max(Number(now.slice(11, 13)), ...amounts.keys()) : 23;
  return Array.from({ length: last + 1 }, (_, hour) => [`${day} ${String(hour).padStart(2, "0")}:00 UTC`, amounts.get(hour) ?? 0]);
}

function asOf({ from, to, days: listed }) {
  const newest = listed.map((day) => day.computed_at).filter(Boolean).sort().at(-1);
  const stale = listed.some((day) => day.changed_since);
  return h("p", { class: "fresh" }, `${exact(from)} to ${exact(to)} · computed `, time(newest), stale ? " · some days have changed since" : null);
}

/** The rollups other than `daily`: a chart of one measure each. */
export function rollups(path, { rollups: all }, options) {
  const others = all.filter(({ name, table }) => name !== "daily" && table);
  if (!others.length) return h("p", { class: "quiet" }, "This dataset has no rollups but that of events by hour and day. A schema that names an actor (x-pulse-actor) has the rollup behaviour; your platform team adds others.");
  return others.map((rollup) => {
    const place = h("div", {}, pending(3));
    fillWith(place, async () => chartOf(rollup, await read(`${path}/summary`, { ...options, parameters: { rollup: rollup.name } })));
    return h("article", { class: "card" }, h("h3", {}, foreign(rollup.name)), h("p", { class: "quiet" }, foreign(rollup.description)), place);
  });
}

function chartOf(rollup, summary) {
  const filled = summary.days.filter((day) => day.rows.length);
  const failed = summary.days.filter((day) => day.error).map((day) => h("p", { class: "bad" }, `${day.day}: `, foreign(day.error)));
  if (!filled.length) return [failed, h("p", { class: "quiet" }, "No day of the last week is computed.")];
  const rows = filled.flatMap((day) => day.rows.map((row) => ({ day: day.day, ...row })));
  const measures = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !summary.grain.includes(name) && rows.some((row) => isNumber(row[name])));
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const chart = h("div", {});
  const select = h("select", { onchange: () => draw() }, measures.map((name) => h("option", { value: name }, plain(name))));
  const draw = () => put(chart, drawn(rollup.name, summary.grain, filled, measures[select.selectedIndex], rollup.columns[measures[select.selectedIndex]]));
  if (measures.length) draw();
  return [
    failed,
    measures.length ? h("label", { class: "check" }, "Measure ", select) : null,
    chart,
    asOf(summary),
    h("details", {}, h("summary", {}, "All rows"), grid(`Rows of ${plain(rollup.name)}`, columns, rows)),
  ];
}

/** One measure: over days where a day has one row, else by the names of the newest day's rows. */
function drawn(name, grain, days_, measure, meaning) {
  const value = (label, amount) => ({ label, amount: Math.max(Number(amount), 0), text: withSeparators(amount) });
  const has = (row) => isNumber(row[measure]) && Number.isFinite(Number(row[measure]));
  const about = meaning ? h("p", { class: "quiet" }, foreign(meaning)) : null;
  if (!grain.length) {
    const values = days_.filter(({ rows }) => has(rows[0])).map(({ day, rows }) => value(day, rows[0][measure]));
    return [about, values.length ? barsOverTime(`${plain(measure)} by day`, values) : h("p", { class: "quiet" }, "It has no value on these days.")];
  }
  const { day, rows } = days_.at(-1);
  const labelled = rows.filter(has).sort((one, other) => Number(other[measure]) - Number(one[measure]));
  const values = labelled.slice(0, MAX_BARS).map((row) => value(grain.map((column) => String(row[column] ?? "null")).join(", "), row[measure]));
  const rest = labelled.length - values.length;
  return [about, h("p", {}, `On ${day}, by ${grain.map(plain).join(" and ")}`, rest ? `; the greatest ${MAX_BARS} of ${withSeparators(labelled.length)}` : ""), values.length ? barsByName(`${plain(measure)} of ${plain(name)}`, values) : null];
}
