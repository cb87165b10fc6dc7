// Dead letters: groups by reason and place, the letters of one group, one letter; dry run, replay, discard.

import { change, read, segment } from "./api.js";
import { foreign, h, plain, put } from "./dom.js";
import { bytes, count, number, sentence, time, withSeparators } from "./format.js";
import { groupQuery } from "./page_overview.js";
import { jsonTree } from "./values.js";
import { absent, address, button, confirm, copyButton, empty, facts, fillWith, freshLine, link, notice, pending, problem, section, tableOf, tableRow } from "./ui.js";

const MOST = 10_000; // letters that one request replays or discards
const LISTED = 50;
const MOST_REASONS = 5;
const LONGEST_ID = 60;

export function showDeadLetters(main, context) {
  const [, letter] = context.segments;
  if (letter) return showLetter(main, context, letter);
  const filter = chosenFilter(context.parameters);
  const isGroup = ["dataset", "reason", "place"].every((name) => filter[name] !== undefined);
  const fresh = h("div", { class: "fresh" });
  const body = h("div", {}, pending(10));
  put(main, h("h1", {}, "Dead letters"), fresh, chips(filter), body);
  const options = { signal: context.signal, parameters: filter };
  return fillWith(body, async () => {
    const answer = await read("/v1/dead-letters/groups", { signal: context.signal, parameters: { ...filter, limit: 200 } });
    put(fresh, freshLine(answer.as_of, context.reload));
    if (!answer.groups.length) return none(filter);
    if (!isGroup) return answer.groups.map((group) => card(group, context, answer.as_of));
    return [answer.groups.map((group) => card(group, context, answer.as_of, true)), section("Latest of them", await letters(options))];
  });
}

function chosenFilter(parameters) {
  const names = ["dataset", "reason", "place"].filter((name) => parameters.has(name));
  return Object.fromEntries(names.map((name) => [name, parameters.get(name)]));
}

function chips(filter) {
  const entries = Object.entries(filter);
  if (!entries.length) return h("p", { class: "quiet" }, "Events that could not land. Remove the cause, then replay them.");
  return h("p", { class: "chips" }, entries.map(([name, value]) => h("span", { class: "chip" }, `${name}: `, value ? foreign(value) : "none")), link(["dead-letters"], "Show all"));
}

function none(filter) {
  const isAll = !Object.keys(filter).length;
  return empty(isAll ? "No open dead letters." : "No open dead letters like these.", h("p", {}, "An event that cannot land is kept here with its reason, until it is replayed or discarded. By default POST /v1/collect refuses such events at once; a dataset keeps them if it was created with ", h("code", {}, '"on_invalid": "dead_letter"'), "."));
}

function card(group, context, asOf, isOpen = false) {
  const filter = { dataset: group.dataset ?? "", reason: group.reason, place: group.place };
  const title = [h("strong", {}, withSeparators(group.count)), " × ", h("code", {}, foreign(group.reason)), group.place ? [" at ", h("code", {}, foreign(group.place))] : null];
  const actions = h("div", { class: "actions" }, isOpen ? null : h("a", { class: "button", href: `${address("dead-letters")}?${groupQuery(group)}` }, "Look at them"), changes({ filter: { ...filter, until: asOf } }, group.count, context, isOpen));
  return h(
    "article",
    { class: "card" },
    h("h2", {}, title),
    h("p", {}, group.dataset === null ? "They name no dataset" : ["Dataset ", link(["datasets", group.dataset], foreign(group.dataset))], " · first ", time(group.oldest), " · last ", time(group.newest)),
    h("p", {}, "Example ", link(["dead-letters", group.example_id], foreign(group.example_id)), ": ", foreign(group.example_detail)),
    h("p", { class: "fix" }, "What to do: ", group.advice, "."),
    actions,
  );
}

/** An event id, which a sender may have made as long as the columns beside it. */
function shortened(text) {
  const characters = [...text];
  return characters.length > LONGEST_ID ? foreign(`${characters.slice(0, LONGEST_ID).join("")}…`, { title: plain(text) }) : foreign(text);
}

async function letters(options) {
  const box = h("tbody", { role: "rowgroup" });
  const columns = ["Letter", "Event id", "What is wrong", "Set aside"];
  const more = h("p", { class: "more" });
  const add = async (cursor) => {
    const page = await read("/v1/dead-letters", { ...options, parameters: { ...options.parameters, limit: LISTED, cursor } });
    box.append(...page.dead_letters.map((letter) => tableRow(columns, [link(["dead-letters", letter.id], foreign(letter.id)), letter.event_id === null ? "–" : shortened(letter.event_id), foreign(sentence(letter.detail)), time(letter.set_aside_at)])));
    put(more, page.next_cursor ? button("More", () => add(page.next_cursor)) : null);
  };
  await add(null);
  return [tableOf("Dead letters", columns, box), more];
}

function showLetter(main, context, id) {
  const body = h("div", {}, pending(10));
  put(main, h("p", { class: "path" }, link(["dead-letters"], "Dead letters"), " / "), h("h1", {}, "Dead letter ", foreign(id)), body);
  const asOf = new Date().toISOString();
  return fillWith(body, async () => {
    const letter = await read(`/v1/dead-letters/${segment(id)}`, { signal: context.signal });
    const isOpen = letter.state === "open";
    return [
      freshLine(asOf, context.reload),
      notice(isOpen ? "warn" : "info", h("p", { class: "what" }, h("code", {}, foreign(letter.reason)), ": ", foreign(letter.detail)), isOpen ? null : h("p", {}, `It was ${letter.state} `, time(letter.resolved_at), ".")),
      facts([
        ["Dataset", letter.dataset === null ? "none" : link(["datasets", letter.dataset], foreign(letter.dataset))],
        ["Event id", letter.event_id === null ? "none" : h("a", { href: `${address("trace")}?${new URLSearchParams({ event: letter.event_id })}` }, foreign(letter.event_id))],
        ["Place in the event", letter.pointer ? h("code", {}, foreign(letter.pointer)) : null],
        ["Received", time(letter.received_at)],
        ["Set aside", time(letter.set_aside_at)],
        ["Size", bytes(letter.size)],
        ["Batch", h("code", {}, foreign(letter.batch_id))],
      ]),
      isOpen ? adviceOn(letter, context) : null,
      isOpen ? h("div", { class: "actions" }, changes({ ids: [letter.id] }, 1, context)) : null,
      section("The event as it was received", h("div", { class: "actions" }, copyButton(letter.payload ?? letter.payload_base64, letter.payload === null ? "Copy as base64" : "Copy")), letter.payload === null ? notice("info", h("p", {}, "Its bytes are not UTF-8. Copy them as base64.")) : jsonTree(letter.payload, { marked: letter.pointer || null })),
    ];
  }, (error) => absent("dead letter", id, [["dead-letters"], "All dead letters"], error));
}

/** What to do about a letter, and the way to those with the same cause. */
function adviceOn(letter, context) {
  const group = { dataset: letter.dataset, reason: letter.reason, place: placeOf(letter.pointer) };
  const line = h("p", { class: "fix" });
  const all = h("a", { href: `${address("dead-letters")}?${groupQuery(group)}` }, "Look at all like it");
  fillWith(line, async () => {
    const { groups } = await read("/v1/dead-letters/groups", { signal: context.signal, parameters: { ...Object.fromEntries(groupQuery(group)), limit: 1 } });
    return groups.length ? ["What to do: ", groups[0].advice, ". ", Number(groups[0].count) > 1 ? [all, ` (${withSeparators(groups[0].count)})`] : null] : null;
  });
  return line;
}

/** The place of a group: a pointer without the numbers of list items. */
function placeOf(pointer) {
  return (pointer ?? "").replace(/\/[0-9]+(?=\/|$)/g, "/*");
}

/** Buttons for what can be done with letters: a dry run, a replay, a discard. */
function changes(choice, size, context, hasVersion = true) {
  if (!context.may("manage")) return h("p", { class: "quiet" }, "Replaying and discarding need a key with the scope manage.");
  const result = h("div", { class: "result" });
  const body = (more) => ("filter" in choice ? { ...choice, ...more, limit: MOST } : { ...choice, ...more });
  const send = (name, more = {}) => change("POST", `/v1/dead-letters/${name}`, body(more), { signal: context.signal });
  const version = h("input", { type: "number", min: 1, max: 2_147_483_647, placeholder: "its own", title: "A version that the dataset follows or followed; empty: the one that each event names, or the dataset's", class: "version" });
  const asVersion = () => (version.value ? { schema_version: Number(version.value) } : {});
  const dryRun = async () => {
    put(result, h("p", { class: "pending" }, "Checking each event …"));
    await fillWith(result, async () => notice("info", outcome(await send("replay", { dry_run: true, ...asVersion() }))));
  };
  const replay = async () => {
    put(result, h("p", { class: "pending" }, "Checking each event …"));
    try {
      const chosen = asVersion();
      const trial = await send("replay", { dry_run: true, ...chosen });
      put(result);
      const many = trial.counts.would_land ?? 0;
      confirm({ title: many ? `Replay ${count(many, "event")}${chosen.schema_version ? ` as schema version ${chosen.schema_version}` : ""}?` : "No event would land", body: outcome(trial), label: `Replay ${withSeparators(many)}`, action: many ? async () => finish(await send("replay", chosen), context) : null });
    } catch (error) {
      put(result, problem(error));
    }
  };
  const discard = async () => {
    try {
      const trial = await send("discard", { dry_run: true });
      const many = trial.counts.discarded ?? 0;
      confirm({ title: `Discard ${count(many, "dead letter")}?`, body: h("p", {}, `${count(many, "event")} will not land, and cannot be replayed afterwards. Their bytes stay.`), label: `Discard ${withSeparators(many)}`, danger: true, action: async () => finish(await send("discard"), context) });
    } catch (error) {
      put(result, problem(error));
    }
  };
  const label = Number(size) > MOST ? ` (the oldest ${withSeparators(MOST)})` : "";
  return [hasVersion ? h("label", { class: "check" }, "As schema version ", version) : null, button(`Dry run${label}`, dryRun), button("Replay …", replay), button("Discard …", discard, { class: "danger" }), result];
}

const OUTCOMES = { __proto__: null, would_land: "would land", published: "are on their way to land", duplicate: "have landed before", rejected: "still cannot land", discarded: "are discarded", already_replayed: "were replayed before", already_discarded: "were discarded before", already_landed: "have landed by a backfill", already_erased: "are erased", not_found: "do not exist" };
const SINGULAR = { __proto__: null, are: "is", have: "has", were: "was", do: "does", their: "its" };

function wordsOf(outcomeName, many) {
  const words = OUTCOMES[outcomeName] ?? outcomeName;
  return Number(many) === 1 ? words.replace(/\b(are|have|were|do|their)\b/g, (word) => SINGULAR[word]) : words;
}

/** What happened to letters, or would, in a sentence, with why some cannot land. */
function outcome(result) {
  const parts = Object.entries(result.counts).filter(([, many]) => Number(many)).map(([name, many]) => `${withSeparators(many)} ${wordsOf(name, many)}`);
  return h(
    "div",
    {},
    h("p", { class: "what" }, parts.length ? `Of ${count(result.total, "event")}: ${parts.join(", ")}.` : "There is nothing to do: the list has changed."),
    Number(result.counts.published) ? h("p", {}, "Their rows are there about a minute later; the page Trace shows the way of each.") : null,
    reasonsOf(result),
    result.next_cursor ? h("p", { class: "quiet" }, "There are more: repeat this afterwards.") : null,
  );
}

/** Why letters cannot land, by reason and place with an example, in lines that add up to their number. */
function reasonsOf(result) {
  const groups = new Map();
  for (const { outcome: end, dataset, reason, pointer, detail } of result.verdicts) {
    if (end !== "rejected") continue;
    const place = placeOf(pointer);
    const name = JSON.stringify([dataset, reason, place]);
    const group = groups.get(name) ?? { count: 0, reason, place, detail };
    groups.set(name, { ...group, count: group.count + 1 });
  }
  if (!groups.size) return null;
  const sorted = [...groups.values()].sort((one, other) => other.count - one.count);
  const listed = sorted.slice(0, MOST_REASONS);
  const ofOthers = sorted.slice(MOST_REASONS).reduce((sum, group) => sum + group.count, 0);
  const unlisted = Number(result.counts.rejected) - sorted.reduce((sum, group) => sum + group.count, 0);
  const line = ({ count: many, reason, place, detail }) => h("li", {}, number(many), " × ", h("code", {}, foreign(reason ?? "")), place ? [" at ", h("code", {}, foreign(place))] : null, many > 1 ? ", such as: " : ": ", foreign(detail ?? ""));
  return h(
    "ul",
    {},
    listed.map(line),
    ofOthers ? h("li", {}, "… and ", number(ofOthers), ` more in ${count(sorted.length - listed.length, "group")}`) : null,
    unlisted > 0 ? h("li", {}, "… and ", number(unlisted), " more, beyond the first letters whose reasons are listed") : null,
  );
}

function finish(result, context) {
  document.querySelector("dialog")?.addEventListener("close", () => context.reload(), { once: true });
  return outcome(result);
}
