// Overview: what is wrong first, with the next step; then the datasets with rows and freshness.

import { read } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { count, number, time, withSeparators } from "./format.js";
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
    return datasetList(page, groups.groups, options, context.identity);
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

function datasetList(first, groups, options, identity) {
  if (!first.datasets.length) return firstSteps(identity);
  const open = new Map();
  for (const { dataset, count: many } of groups) open.set(dataset, (open.get(dataset) ?? 0) + Number(many));
  const box = h("div", {});
  const rows = [];
  const draw = (next) => {
    const columns = ["Dataset", "Rows", "Newest landing", "Open dead letters"];
    put(box, table("Datasets", columns, rows, ["", "number", "", "number"]));
    if (!next) return;
    const more = h("button", { type: "button", onclick: async () => add(await read("/v1/freshness", { ...options, parameters: { after: next, limit: 100 } })) }, "More datasets");
    box.append(h("p", { class: "more" }, more));
  };
  const add = (state) => {
    for (const one of state.datasets) {
      const many = open.get(one.dataset) ?? 0;
      rows.push([
        link(["datasets", one.dataset], foreign(one.dataset)),
        one.problem ? h("span", { class: "bad" }, foreign(one.problem)) : number(one.rows),
        time(one.events_landed_last, "nothing yet"),
        many ? h("a", { class: "bad", href: `${address("dead-letters")}?dataset=${encodeURIComponent(one.dataset)}` }, withSeparators(many)) : number(0),
      ]);
    }
    draw(state.next_after);
  };
  add(first);
  return box;
}

function firstSteps(identity) {
  const api = location.origin;
  const steps = `export PULSE=${api} KEY=<your key>
curl $PULSE/v1/schemas -H "Authorization: Bearer $KEY" \\
  --json '{"name": "orders", "fields": {"country": "string", "amount": "number"}, "required": ["country"]}'
curl $PULSE/v1/datasets -H "Authorization: Bearer $KEY" \\
  --json '{"slug": "orders", "schema_uri": "pulse://${identity.tenant}/orders/1"}'
curl $PULSE/v1/collect -H "Authorization: Bearer $KEY" \\
  --json '{"event_id": "o-1", "dataset": "orders", "timestamp": "${new Date().toISOString()}",
           "data": {"country": "DE", "amount": 12.5}}'`;
  return empty(
    "There are no datasets yet.",
    h("p", {}, "Publish a schema, create a dataset that follows it, and send an event. Its row is here about a minute later. The key needs the scopes manage and collect."),
    code(steps, "First steps"),
  );
}
