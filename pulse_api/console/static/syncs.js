// Runs of pipes, and other syncs of a dataset: what became of each, in words.

import { foreign, h } from "./dom.js";
import { number, sentence, time } from "./format.js";
import { table } from "./ui.js";

const STATES = {
  __proto__: null,
  open: ["being sent", "Parts of it are still to come"],
  sent: ["landing", "All of it is sent; its rows are on their way"],
  held: ["waits for a decision", "It would delete many entities: a person decides whether it may"],
  deleting: ["deleting", "Entities that are missing from it are being deleted"],
  done: ["done", ""],
  rolled_back: ["done, without deletions", "A person decided that it deletes nothing"],
  superseded: ["replaced by a newer one", "Another full sync began before this one had ended; it deletes nothing"],
  failed: ["failed", "It deletes nothing"],
  running: ["running", ""],
};
const BAD = ["failed", "held"];

function stateOf({ state }) {
  const [words, title] = STATES[state] ?? [state, ""];
  return h("span", { class: BAD.includes(state) ? "bad" : null, title: title || null }, words);
}

/** Syncs into a dataset, or deliveries to a sink: lists of the API, the latest first. */
export function runTable(label, runs) {
  const isOut = runs.some((run) => "upserted" in run);
  const counts = isOut ? [["Read", "versions"], ["Written", "upserted"], ["Deleted", "deleted"], ["Refused", "refused"]] : [["Created", "created"], ["Changed", "changed"], ["Unchanged", "unchanged"], ["Deleted", "deleted"], ["Refused", "refused"]];
  const hasReason = runs.some((run) => run.reason);
  const lines = runs.map((run) => [
    time(run.begun_at),
    stateOf(run),
    run.is_full ? "everything" : "changes",
    ...counts.map(([, name]) => number(run[name] ?? 0)),
    run.ended_at ? time(run.ended_at) : h("span", { class: "quiet" }, "not yet"),
    ...(hasReason ? [foreign(sentence(run.reason ?? ""))] : []),
  ]);
  const columns = ["Began", "State", "Copied", ...counts.map(([name]) => name), "Ended", ...(hasReason ? ["Why"] : [])];
  return table(label, columns, lines, ["", "", "", ...counts.map(() => "number"), "", hasReason ? "wide" : ""]);
}
