// Trace: what became of one event, as a line of steps with times.

import { read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { exact, sentence, time } from "./format.js";
import { address, code, facts, fillWith, freshLine, link, notice, pending } from "./ui.js";

const PLACE = /^(.*):(\d+):(\d+)$/s;
const ENDS = {
  __proto__: null, landed: "Landed", in_batch: "In a batch", waiting: "Waits for a batch", erased: "Erased", dead_lettered: "Dead letter",
  replayed: "Replayed", discarded: "Discarded", duplicate: "Duplicate", no_message: "No event", lost: "Lost",
};
const BAD = ["dead_lettered", "lost"];
const AGAIN_MS = 3_000;

export function showTrace(main, context) {
  const event = context.parameters.get("event") ?? "";
  const field = h("input", { id: "event", name: "event", value: event, autocomplete: "off", spellcheck: "false", placeholder: `o-1 or ${context.identity.topic}:0:17` });
  const form = h("form", { class: "line", role: "search", onsubmit: (submission) => {
    submission.preventDefault();
    if (field.value) context.go(`${address("trace")}?${new URLSearchParams({ event: field.value })}`);
  } }, h("label", { for: "event" }, "Event id, or its place as topic:partition:offset"), field, h("button", { class: "primary" }, "Trace"));
  const body = h("div", {}, event ? pending(8) : h("p", { class: "quiet" }, "The id is the event_id that its sender gave it. The topic of this tenant is ", h("code", {}, foreign(context.identity.topic)), "."));
  put(main, h("h1", {}, "Trace"), form, body);
  if (!event) return field.focus();
  return fillWith(body, () => load(event, body, context), unknown);
}

/** What the page shows where nothing is known of an event. */
function unknown(error) {
  const isSearched = error.status === 404 && error.document.type;
  const fix = isSearched ? "Compare it with what the sender has sent. An event that was refused as it was sent is not kept." : error.fix;
  return notice("error", h("p", { class: "what" }, foreign(error.message)), h("p", { class: "fix" }, fix));
}

async function load(event, body, context) {
  const place = PLACE.exec(event);
  const isPlace = place && place[1] === context.identity.topic;
  const path = isPlace ? `/v1/offsets/${place[2]}/${place[3]}` : `/v1/events/${segment(event)}`;
  const asOf = new Date().toISOString();
  const trace = await read(path, { signal: context.signal });
  if (!trace.settled) {
    const timer = setTimeout(() => fillWith(body, () => load(event, body, context), unknown), AGAIN_MS);
    context.signal.addEventListener("abort", () => clearTimeout(timer));
  }
  return [
    freshLine(asOf, context.reload, trace.settled ? "Settled" : "On its way; this page asks again every 3 s"),
    trace.fates.map(fateOf),
    trace.looked_at.length ? notice("info", h("p", {}, "Searched: ", foreign(trace.looked_at.join("; ")))) : null,
  ];
}

function fateOf(fate) {
  const { row, dead_letter: letter } = fate;
  const kind = BAD.includes(fate.state) ? "bad" : fate.state === "landed" ? "good" : "open";
  return h(
    "article",
    { class: "card" },
    h("h2", {}, ENDS[fate.state] ?? fate.state, fate.dataset ? [" · ", link(["datasets", fate.dataset], foreign(fate.dataset))] : null),
    h("p", {}, foreign(sentence(fate.detail))),
    h("ol", { class: "steps" }, steps(fate).map(([name, moment, note]) => h("li", { class: name === null ? kind : "done" }, h("strong", {}, name ?? ENDS[fate.state]), " ", moment ? h("span", { class: "when" }, time(moment), " · ", exact(moment)) : null, note ? h("div", { class: "quiet" }, note) : null))),
    facts([
      ["Place (partition:offset)", fate.offset === null ? null : h("code", {}, `${fate.partition}:${fate.offset}`)],
      ["Dead letter", letter ? link(["dead-letters", letter.id], foreign(letter.id), ": ", foreign(letter.reason)) : null],
      ["Copy of", fate.copy_of ? h("code", {}, foreign(fate.copy_of)) : null],
      ["Erasure", fate.erasure_id ? h("code", {}, foreign(fate.erasure_id)) : null],
      ["Day", row?.day],
      ["Trace id", row?.trace_id ? foreign(row.trace_id) : null],
      ["Schema version", row ? String(row.schema_version) : null],
    ]),
    row ? h("details", {}, h("summary", {}, "Its data file"), code(row.file, "Data file")) : null,
  );
}

/** Steps of an event's way: name (null: the last one), time, note. */
function steps(fate) {
  const { row, dead_letter: letter } = fate;
  const lines = [];
  if (row) lines.push(["Happened", row.timestamp, "the event's timestamp, by its sender"]);
  if (fate.received_at) lines.push(["Received", fate.received_at, "appended to the topic"]);
  if (fate.batch_id) lines.push(["In a batch", null, h("code", {}, foreign(fate.batch_id))]);
  if (letter) lines.push(["Set aside", letter.set_aside_at, foreign(sentence(letter.detail))]);
  const snapshot = row?.snapshot_id ? ["snapshot ", h("code", {}, foreign(String(row.snapshot_id)))] : null;
  lines.push([null, row?.landed_at ?? letter?.resolved_at ?? (letter ? null : fate.settled_at), snapshot]);
  for (const rebuild of row?.rebuilds ?? []) lines.push(["Rebuilt", rebuild.settled_at, ["by the backfill ", h("code", {}, foreign(rebuild.backfill_id))]]);
  return lines;
}
