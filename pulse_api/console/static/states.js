// The state of a dataset: a key to type, its newest event, and its windows.

import { read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { count, exact, number, time } from "./format.js";
import { writeJson } from "./json.js";
import { jsonTree } from "./values.js";
import { address, button, facts, fillWith, freshLine, notice, pending, table } from "./ui.js";

const WINDOWS = [["5m", "5 minutes"], ["1h", "1 hour"], ["24h", "24 hours"]];

/** A field for a key, with some keys to choose from, and what is known of the chosen one. */
export function stateForm(path, state, context) {
  const field = h("input", { id: "key-of-state", autocomplete: "off", spellcheck: "false", maxlength: 512 });
  const result = h("div", { "aria-live": "polite" });
  const show = () => {
    if (!field.value) return field.focus();
    put(result, pending(6));
    const asOf = new Date().toISOString();
    const none = () => notice("info", h("p", {}, "There is no event with the key ", foreign(field.value), "."));
    return fillWith(result, async () => keyState(await read(`${path}/state/${segment(field.value)}`, { signal: context.signal }), asOf, show), none);
  };
  const choose = (key) => () => {
    field.value = key;
    return show();
  };
  return [
    h("p", { class: "quiet" }, "The newest event of each ", h("code", {}, foreign(state.latest_by)), ". ", count(state.keys, "key"), state.left_out > 0 ? "; it is full, and has left out newer ones" : null, state.complete ? null : "; it is being built, and may lack keys", "."),
    h("form", { class: "line", onsubmit: (submission) => { submission.preventDefault(); show(); } }, h("label", { for: "key-of-state" }, "Value of ", foreign(state.latest_by)), field, h("button", { class: "primary" }, "Show")),
    state.state.length ? h("p", { class: "chips" }, "Such as: ", state.state.map(({ key }) => button(foreign(key.length > 60 ? `${key.slice(0, 60)}…` : key), choose(key), { class: "chip" }))) : null,
    result,
  ];
}

function keyState(state, asOf, reload) {
  const trace = h("a", { href: `${address("trace")}?${new URLSearchParams({ event: state.event_id })}` }, foreign(state.event_id));
  return h(
    "article",
    { class: "card" },
    h("h3", {}, foreign(state.key)),
    freshLine(asOf, reload),
    facts([["Newest event", trace], ["Its time", time(state.timestamp)]]),
    state.data === null ? h("p", { class: "quiet" }, "Its data has more than 4,096 bytes: see it in the newest rows, or by its trace.") : jsonTree(writeJson(state.data)),
    state.windows ? windows(state.windows) : h("p", { class: "quiet" }, "The state has no windows."),
  );
}

function windows({ to, complete, session, ...all }) {
  const known = WINDOWS.map(([name, label]) => [label, all[name] ?? null]);
  const sums = [...new Set(known.flatMap(([, window]) => Object.keys(window?.sums ?? {})))];
  const lines = known.map(([label, window]) => (window ? [label, time(window.from), number(window.events), ...sums.map((name) => number(window.sums[name] ?? 0))] : [label, "not kept", "–", ...sums.map(() => "–")]));
  const heading = ["Last", "From", "Events", ...sums.map((name) => ["Sum of ", foreign(name)])];
  return [
    table("Windows", heading, lines, ["", "", "number", ...sums.map(() => "number")]),
    h("p", { class: "fresh" }, `Windows end at ${exact(to)}.`, complete ? null : " They are being built, and may lack events."),
    session ? h("p", {}, "Latest session: ", count(session.events, "event"), ", from ", time(session.first), " to ", time(session.last), session.open ? ", still open" : ", ended", session.complete ? null : "; more events may belong to it", ".") : null,
  ];
}
