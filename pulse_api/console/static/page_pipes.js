// Pipes: their state, and the last runs of one.

import { change, read, segment } from "./api.js";
import { foreign, h, plain, put } from "./dom.js";
import { number, time, withSeparators } from "./format.js";
import { runTable } from "./syncs.js";
import { absent, button, code, empty, facts, fillWith, freshLine, link, notice, pending, problem, section, table } from "./ui.js";

const COUNTS = ["Created", "Changed", "Unchanged", "Deleted", "Refused"];
const MODES = { __proto__: null, full: "all rows each time", incremental: "rows beyond the last cursor", changes: "changes, from the source's log" };
const PERIODS = [[86_400, "day"], [3_600, "hour"], [60, "minute"]];

export function showPipes(main, context) {
  const body = h("div", {}, pending(8));
  put(main, h("h1", {}, "Pipes"), body);
  const asOf = new Date().toISOString();
  fillWith(body, async () => {
    const { pipes } = await read("/v1/pipes", { signal: context.signal });
    if (!pipes.length) return empty("There are no pipes yet.", h("p", {}, "A pipe copies a table, files or a feed into a dataset, or a dataset to a sink. POST /v1/pipes creates one, after an operator has set its source."));
    const lines = pipes.map((pipe) => [link(["pipes", pipe.pipe], foreign(pipe.pipe)), stateOf(pipe), wayOf(pipe), time(pipe.settled_at)]);
    return [freshLine(asOf, context.reload), table("Pipes", ["Pipe", "State", "Way", "Last settled"], lines)];
  });
}

/** From where to where, in the order of the way. */
function wayOf(pipe) {
  const ends = [pipe.transform ? h("span", { title: plain(pipe.transform) }, "a query") : foreign(pipe.other_end), link(["datasets", pipe.dataset], foreign(pipe.dataset))];
  const [from, to] = pipe.direction === "in" ? ends : ends.reverse();
  return [from, " → ", to];
}

function stateOf(pipe) {
  if (pipe.error) return h("span", { class: "bad" }, "failed");
  return pipe.state === "paused" ? h("span", { class: "quiet" }, "paused") : "active";
}

export function showPipe(main, context) {
  const [, name] = context.segments;
  const body = h("div", {}, pending(10));
  put(main, h("p", { class: "path" }, link(["pipes"], "Pipes"), " / "), h("h1", {}, foreign(name)), body);
  const asOf = new Date().toISOString();
  const missing = (error) => absent("pipe", name, [["pipes"], "All pipes"], error);
  fillWith(body, async () => {
    const path = `/v1/pipes/${segment(name)}`;
    const pipe = await read(path, { signal: context.signal });
    return [
      freshLine(asOf, context.reload, "Settled last ", time(pipe.settled_at)),
      pipe.error ? notice("error", h("p", { class: "what" }, "Its last run failed: ", foreign(pipe.error)), h("p", { class: "fix" }, "Remove the cause, then run it.")) : null,
      facts([
        ["State", stateOf(pipe)],
        [pipe.direction === "in" ? "From" : "To", pipe.transform ? "a query" : foreign(pipe.other_end)],
        [pipe.direction === "in" ? "Into the dataset" : "From the dataset", link(["datasets", pipe.dataset], foreign(pipe.dataset))],
        ["Reads", pipe.mode && (MODES[pipe.mode] ?? pipe.mode)],
        ["Runs", pipe.every_seconds === null ? "only on request" : period(pipe.every_seconds)],
        ["Behind by", pipe.behind === null ? null : [number(pipe.behind), " versions"]],
        ["Last run began", time(pipe.begun_at)],
      ]),
      pipe.transform ? code(pipe.transform, "Query of the pipe") : null,
      pipe.computes ? h("p", { class: "quiet" }, "Its last run computed ", foreign(pipe.computes), ".") : null,
      actions(path, pipe, context),
      section("Last 24 hours", facts(COUNTS.map((outcome) => [outcome, number(pipe.last_day[outcome.toLowerCase()])]))),
      section("Last runs", runs(pipe)),
    ];
  }, missing);
}

/** How often, in the largest unit that divides it. */
function period(seconds) {
  const [length, unit] = PERIODS.find(([size]) => Number(seconds) % size === 0) ?? [1, "second"];
  const many = Number(seconds) / length;
  return many === 1 ? `every ${unit}` : `every ${withSeparators(many)} ${unit}s`;
}

function actions(path, pipe, context) {
  if (!context.may("manage")) return h("p", { class: "quiet" }, "Running and pausing need a key with the scope manage.");
  const result = h("div", { class: "result" });
  const send = (action, body) => async () => {
    try {
      await change("POST", `${path}/${action}`, body);
      context.reload();
    } catch (error) {
      put(result, problem(error));
    }
  };
  return h("div", { class: "actions" }, button("Run now", send("run", {})), pipe.state === "paused" ? button("Resume", send("resume")) : button("Pause", send("pause")), result);
}

function runs({ deliveries, syncs, direction }) {
  const entries = direction === "out" ? deliveries : syncs;
  return entries.length ? runTable("Last runs", entries) : h("p", { class: "quiet" }, "It has not run yet.");
}
