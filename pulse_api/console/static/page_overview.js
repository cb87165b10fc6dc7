// Overview: what is wrong first, with the next step; then the datasets with rows and freshness.

import { read } from "./api.js";
import { smallBars } from "./chart.js";
import { foreign, h, put } from "./dom.js";
import { count, exact, number, sentence, time, withSeparators } from "./format.js";
import { address, code, empty, facts, fillWith, freshLine, link, notice, pending, section, table } from "./ui.js";

const LOW = 0.1; // of a quota, from which the overview warns

export function showOverview(main, context) {
  const wrong = h("div", {}, pending(3));
  const fresh = h("div", { class: "fresh" });
  const datasets = h("div", {}, pending(10));
  put(main, h("h1", {}, "Overview"), fresh, wrong, section("Datasets", datasets));
  const options = { signal: context.signal };
  const letters = read("/v1/dead-letters/groups", { ...options, parameters: { limit: 1000 } });
  const usage = read("/v1/usage", options);
  fillWith(wrong, async () => {
    const [groups, used, pipes, states, total] = await Promise.all([letters, usage, read("/v1/pipes", options), firstPage(options), read("/v1/dead-letters/summary", options)]);
    put(fresh, freshLine(groups.as_of, context.reload));
    return [issues(groups.groups, used, pipes.pipes, states.datasets), quota(used, total.total)];
  });
  fillWith(datasets, async () => {
    const [page, groups] = await Promise.all([firstPage(options), letters]);
    return datasetList(page, groups.groups, options, context);
  });
}

let page = null;

/** The first page of datasets, asked for once per visit of the page. */
function firstPage(options) {
  if (page?.signal !== options.signal) page = { signal: options.signal, datasets: read("/v1/freshness", options) };
  return page.datasets;
}

function issues(groups, usage, pipes, states) {
  const lines = [];
  for (const group of groups.slice(0, 5)) {
    const verb = Number(group.count) === 1 ? "event" : "events";
    lines.push([
      [h("strong", {}, withSeparators(group.count)), ` ${verb} `, group.dataset === null ? "without a dataset" : ["of ", foreign(group.dataset)], " could not land: ", foreign(group.example_detail), group.place ? [" (", h("code", {}, foreign(group.place)), ")"] : null, ", last ", time(group.newest)],
      [group.advice, ". ", h("a", { href: `${address("dead-letters")}?${groupQuery(group)}` }, "Look at them")],
    ]);
  }
  if (groups.length > 5) lines.push([[`${withSeparators(groups.length - 5)} more kinds of dead letters`], [link(["dead-letters"], "Look at all")]]);
  for (const pipe of pipes.filter(({ error }) => error)) {
    lines.push([["The last run of the pipe ", foreign(pipe.pipe), " failed: ", foreign(pipe.error)], [link(["pipes", pipe.pipe], "Look at the pipe")]]);
  }
  for (const state of states.filter(({ problem }) => problem)) {
    lines.push([["Of ", foreign(state.dataset), ": ", foreign(state.problem)], ["Tell the operators of Pulse."]]);
  }
  const limit = usage.limits.maxRecordsPerMonth;
  if (limit > 0 && usage.remaining_records < limit * LOW) {
    lines.push([[count(usage.remaining_records, "record"), " of ", withSeparators(limit), " are left this month"], ["Ask the operators for more. ", link(["usage"], "See usage")]]);
  }
  if (!lines.length) return notice("good", h("p", {}, "Nothing is wrong: no open dead letters, and no failed pipe."));
  return notice("warn", h("ul", { class: "issues" }, lines.map(([what, next]) => h("li", {}, h("div", {}, what), h("div", { class: "fix" }, next)))));
}

/** The query of the dead letters of a group. */
export function groupQuery(group) {
  return new URLSearchParams({ dataset: group.dataset ?? "", reason: group.reason, place: group.place });
}

function quota(usage, open) {
  const month = usage.months[0];
  const limit = usage.limits.maxRecordsPerMonth;
  return facts([
    ["Open dead letters", number(open)],
    ["Landed this month", month ? number(month.landed) : "0"],
    ["Monthly quota", limit > 0 ? [number(usage.remaining_records), " of ", number(limit), " left"] : "unlimited"],
    ["Datasets of events", usage.remaining_datasets === null ? number(usage.datasets) : [number(usage.datasets), " of ", number(usage.limits.maxDatasets)]],
  ]);
}

/** A field for a dataset's name, where they do not fit on one page. */
function findForm(context) {
  const field = h("input", { id: "dataset", autocomplete: "off", spellcheck: "false", required: true });
  const open = (submission) => {
    submission.preventDefault();
    context.go(address("datasets", field.value.trim()));
  };
  return h("form", { class: "line", role: "search", onsubmit: open }, h("label", { for: "dataset" }, "Name of a dataset"), field, h("button", {}, "Open"));
}

function datasetList(first, groups, options, context) {
  if (!first.datasets.length) return firstSteps(context.identity);
  const open = new Map();
  for (const { dataset, count: many } of groups) open.set(dataset, (open.get(dataset) ?? 0) + Number(many));
  const box = h("div", {});
  const rows = [];
  const lines = new Map(); // places of small lines, by dataset
  const drawHours = async (parameters) => {
    try {
      const answer = await read("/v1/hours", { ...options, parameters });
      for (const hours of answer.datasets) put(lines.get(hours.dataset) ?? h("span"), lastDay(hours));
      for (const line of lines.values()) if (line.textContent === "…") put(line, h("span", { class: "quiet" }, "holds entities"));
    } catch (error) {
      if (error.name === "AbortError") return;
      for (const line of lines.values()) if (line.textContent === "…") put(line, h("span", { class: "quiet", title: error.message }, "unknown"));
    }
  };
  const search = findForm(context);
  const draw = (next) => {
    const columns = ["Dataset", "Rows", "Events of the last 24 h", "Newest landing", "Open dead letters"];
    put(box, table("Datasets", columns, rows, ["", "number", "", "", "number"]));
    if (first.next_after) box.prepend(search);
    if (!next) return;
    const more = h("button", { type: "button", onclick: async () => add(await read("/v1/freshness", { ...options, parameters: { after: next, limit: 100 } }), { after: next, limit: 100 }) }, "More datasets");
    box.append(h("p", { class: "more" }, more));
  };
  const add = (state, parameters = {}) => {
    for (const one of state.datasets) {
      const many = open.get(one.dataset) ?? 0;
      const line = h("span", { class: "last-day" }, "…");
      lines.set(one.dataset, line);
      rows.push([
        link(["datasets", one.dataset], foreign(one.dataset)),
        one.problem ? h("span", { class: "bad" }, foreign(sentence(one.problem))) : number(one.rows),
        line,
        time(one.events_landed_last, "nothing yet"),
        many ? h("a", { class: "bad", href: `${address("dead-letters")}?dataset=${encodeURIComponent(one.dataset)}` }, withSeparators(many)) : number(0),
      ]);
    }
    draw(state.next_after);
    drawHours(parameters);
  };
  add(first);
  return box;
}

/** The hours of a dataset's last day: a small line, and their number as far as it is known. */
function lastDay({ hours, computed_at: computed, changed_since: isStale }) {
  const known = hours.filter(({ events }) => events !== null);
  if (!known.length || (!computed && isStale)) return h("span", { class: "quiet", title: "The summary of these days follows a landing by about a minute" }, "being counted");
  const total = known.reduce((sum, { events }) => sum + Number(events), 0);
  const asOf = computed ? `, computed ${exact(computed)}${isStale ? ", and some have landed since" : ""}` : "";
  return [smallBars(`${count(total, "event")} from ${exact(hours[0].from)} until now, by hour${asOf}`, hours.map(({ events }) => events)), known.length < hours.length ? "at least " : null, number(total)];
}

/** Which key the first steps need, and where it comes from: a key issues keys of its own scopes only. */
function keyOfSteps({ tenant, scopes }) {
  const command = h("code", {}, `pulse key create ${tenant} --name first --scope manage --scope collect`);
  const what = ["Put a key with the scopes manage and collect in the place of ", h("code", {}, "YOUR_KEY"), ". "];
  if (["manage", "collect"].every((scope) => scopes.includes(scope))) return h("p", {}, what, link(["keys"], "Keys"), " makes one, and yours is one.");
  return h("p", {}, what, "Yours is none, and cannot make one; an operator makes it: ", command);
}

function firstSteps(identity) {
  const api = location.origin;
  const steps = `export PULSE=${api} KEY=YOUR_KEY
curl $PULSE/v1/schemas -H "Authorization: Bearer $KEY" \\
  --json '{"name": "orders", "fields": {"country": "string", "amount": "number"}, "required": ["country"]}'
curl $PULSE/v1/datasets -H "Authorization: Bearer $KEY" \\
  --json '{"slug": "orders", "schema_uri": "pulse://${identity.tenant}/orders/1"}'
curl $PULSE/v1/collect -H "Authorization: Bearer $KEY" \\
  --json '{"event_id": "o-1", "dataset": "orders", "timestamp": "${new Date().toISOString()}",
           "data": {"country": "DE", "amount": 12.5}}'`;
  return empty(
    "There are no datasets yet.",
    h("p", {}, "Publish a schema, create a dataset that follows it, and send an event. Its row is here about a minute later."),
    keyOfSteps(identity),
    code(steps, "First steps"),
  );
}
