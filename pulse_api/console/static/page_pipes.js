// Pipes: their state, and the last runs of one.

import { change, read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { number, time } from "./format.js";
import { absent, button, empty, facts, fillWith, freshLine, link, notice, pending, problem, section, table } from "./ui.js";

const COUNTS = ["created", "changed", "unchanged", "deleted", "refused"];

export function showPipes(main, context) {
  const body = h("div", {}, pending(8));
  put(main, h("h1", {}, "Pipes"), body);
  const asOf = new Date().toISOString();
  fillWith(body, async () => {
    const { pipes } = await read("/v1/pipes", { signal: context.signal });
    if (!pipes.length) return empty("There are no pipes yet.", h("p", {}, "A pipe copies a table, files or a feed into a dataset, or a dataset to a sink. POST /v1/pipes creates one, after an operator has set its source."));
    const lines = pipes.map((pipe) => [link(["pipes", pipe.pipe], foreign(pipe.pipe)), stateOf(pipe), pipe.direction === "in" ? [foreign(pipe.other_end), " → ", link(["datasets", pipe.dataset], foreign(pipe.dataset))] : [link(["datasets", pipe.dataset], foreign(pipe.dataset)), " → ", foreign(pipe.other_end)], time(pipe.settled_at)]);
    return [freshLine(asOf, context.reload), table("Pipes", ["Pipe", "State", "Way", "Last settled"], lines)];
  });
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
        ["Way", pipe.direction === "in" ? "into a dataset" : "out to a sink"],
        ["Other end", foreign(pipe.other_end)],
        ["Dataset", link(["datasets", pipe.dataset], foreign(pipe.dataset))],
        ["Mode", pipe.mode],
        ["Runs", pipe.every_seconds === null ? "only on request" : `every ${pipe.every_seconds} s`],
        ["Behind by", pipe.behind === null ? null : [number(pipe.behind), " versions"]],
        ["Last run began", time(pipe.begun_at)],
      ]),
      actions(path, pipe, context),
      section("Last 24 hours", facts(COUNTS.map((outcome) => [outcome, number(pipe.last_day[outcome])]))),
      section("Last runs", runs(pipe)),
    ];
  }, missing);
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
  if (!entries.length) return h("p", { class: "quiet" }, "It has not run yet.");
  const names = Object.keys(entries[0]).filter((name) => entries.some((entry) => entry[name] !== null && typeof entry[name] !== "object"));
  const cell = (name, value) => (value === null || value === undefined || typeof value === "object" ? "–" : name.endsWith("_at") ? time(value) : typeof value === "number" ? number(value) : typeof value === "boolean" ? (value ? "yes" : "no") : foreign(String(value)));
  return table("Last runs", names.map((name) => name.replaceAll("_", " ")), entries.map((entry) => names.map((name) => cell(name, entry[name]))), names.map((name) => (entries.some((entry) => typeof entry[name] === "number") ? "number" : "")));
}
