// Schemas: their versions, and two versions side by side with the differences marked.

import { change, read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { count, number, sentence, time, withSeparators } from "./format.js";
import { writeJson } from "./json.js";
import { obstaclesOf } from "./moves.js";
import { absent, address, button, code, copyButton, empty, fillWith, freshLine, link, notice, pending, section, table } from "./ui.js";

const LISTED = 20; // datasets that follow a schema
const OFFERED = 1000; // names of datasets that the field suggests

export function showSchemas(main, context) {
  const body = h("div", {}, pending(8));
  put(main, h("h1", {}, "Schemas"), body);
  const asOf = new Date().toISOString();
  main.append(section("Check a schema, or try it on a day", checkForm(context)));
  fillWith(body, async () => {
    const { schemas } = await read("/v1/schemas", { signal: context.signal });
    if (!schemas.length) return empty("No schema is published yet.", h("p", {}, "A schema says what events hold. ", link([], "The overview"), " says how to publish the first."));
    const latest = new Map(schemas.map((schema) => [schema.name, schema]));
    const lines = [...latest.values()].map((schema) => [link(["schemas", schema.name], foreign(schema.name)), number(schema.version), time(schema.published_at), h("code", {}, foreign(schema.schema_uri))]);
    return [freshLine(asOf, context.reload), table("Schemas", ["Schema", "Versions", "Latest published", "Address"], lines, ["", "number", "", ""])];
  });
}

/** A document to paste: its columns, what events may cost, and whether a dataset can move to it. */
function checkForm(context) {
  const field = h("textarea", { id: "document", rows: 8, spellcheck: "false", placeholder: '{"type": "object", "properties": {"country": {"type": "string"}}}' });
  const names = h("datalist", { id: "names-of-datasets" });
  const dataset = h("input", { id: "follows", autocomplete: "off", spellcheck: "false", list: names.id });
  const loadNames = () => fillWith(names, async () => (await read("/v1/datasets", { signal: context.signal, parameters: { limit: OFFERED } })).datasets.map(({ slug }) => h("option", { value: slug })), () => []);
  dataset.addEventListener("focus", loadNames, { once: true });
  const result = h("div", { "aria-live": "polite" });
  const check = async () => {
    put(result, pending(3));
    const query = dataset.value.trim() ? `?${new URLSearchParams({ dataset: dataset.value.trim() })}` : "";
    // The document goes as it was pasted: reading it here could lose digits.
    await fillWith(result, async () => checkAnswer(await change("POST", `/v1/schemas/check${query}`, `{"name": "pasted", "schema": ${field.value}\n}`, { signal: context.signal })));
  };
  const day = h("input", { id: "of-day", type: "date", value: new Date(Date.now() - 86_400_000).toISOString().slice(0, 10) });
  const tryOnDay = async () => {
    const slug = dataset.value.trim();
    if (!slug || !day.value) return (slug ? day : dataset).focus();
    put(result, pending(3));
    const query = new URLSearchParams({ dataset: slug, day: day.value });
    return fillWith(result, async () => trialAnswer(await change("POST", `/v1/schemas/try?${query}`, `{"name": "pasted", "schema": ${field.value}\n}`, { signal: context.signal })));
  };
  return [
    h("p", { class: "quiet" }, "Nothing is published or stored."),
    h("label", { for: "document" }, "JSON Schema"),
    field,
    h("div", { class: "actions" }, h("label", { for: "follows" }, "Dataset that is to follow it (optional for the check)"), dataset, names, button("Check", check, { class: "primary" })),
    h("div", { class: "actions" }, h("label", { for: "of-day" }, "Day (UTC) of the dataset's events"), day, button("Try on this day", tryOnDay)),
    result,
  ];
}

/** What a day's events would become. */
function trialAnswer({ day, events, refused, refused_already: already, examples, complete, incompatibilities }) {
  const all = complete ? "" : "the first ";
  const kind = Number(refused) || incompatibilities.length ? "warn" : "good";
  const what = Number(events) ? `Of ${all}${count(events, "event")} of ${day}, ${withSeparators(refused)} would be refused.` : `There are no events of ${day}.`;
  const place = (one) => (one.pointer ? h("code", {}, foreign(one.pointer)) : "–");
  return [
    notice(kind, h("p", { class: "what" }, what), Number(already) ? h("p", {}, `The present schema refuses ${withSeparators(already)} more, too.`) : null, complete ? null : h("p", {}, "The day has more: pulse schema try validates all of it.")),
    examples.length ? table("Events that would be refused", ["Event id", "Reason", "Place", "What is wrong"], examples.map((one) => [foreign(one.event_id ?? "–"), h("code", {}, foreign(one.reason)), place(one), foreign(sentence(one.detail))])) : null,
    incompatibilities.length ? obstaclesOf(incompatibilities) : null,
  ];
}

function checkAnswer(answer) {
  const { columns, incompatibilities: obstacles } = answer;
  return [
    obstacles?.length ? obstaclesOf(obstacles) : null,
    obstacles && !obstacles.length ? notice("good", h("p", {}, "The dataset can move to this schema.")) : null,
    h("p", {}, "It can be published. Validating an event of ", number(answer.largest_event_bytes), ` bytes takes at most ${answer.largest_event_seconds} s; the limit is ${answer.limit_seconds} s.`),
    columns.length ? table("Columns", ["Property", "Column", "Type", "Meaning"], columns.map((column) => [foreign(column.field), h("code", {}, foreign(column.name)), column.type, foreign(column.description)])) : h("p", { class: "quiet" }, "It declares no columns: everything is in _extra."),
  ];
}

export function showSchema(main, context) {
  const [, name] = context.segments;
  const body = h("div", {}, pending(12));
  put(main, h("p", { class: "path" }, link(["schemas"], "Schemas"), " / "), h("h1", {}, foreign(name)), body);
  const asOf = new Date().toISOString();
  const get = (version) => read(`/v1/schemas/${segment(name)}/${version}`, { signal: context.signal });
  fillWith(body, async () => {
    const { schemas } = await read("/v1/schemas", { signal: context.signal });
    const versions = schemas.filter((schema) => schema.name === name).map((schema) => Number(schema.version)).sort((one, other) => other - one);
    if (!versions.length) return absent("schema", name, [["schemas"], "All schemas"]);
    const right = Number(context.parameters.get("version") ?? versions[0]);
    const left = Number(context.parameters.get("from") ?? right - 1);
    const select = (label, current, parameter) => h("label", {}, label, " ", h("select", { onchange: (choice) => context.go(`${address("schemas", name)}?${new URLSearchParams({ from: left, version: right, [parameter]: choice.target.value })}`) }, versions.map((version) => h("option", { value: version, selected: version === current }, String(version)))));
    if (!versions.includes(right)) return absent("version", context.parameters.get("version"), [["schemas", name], `The latest version of ${name}`]);
    const [newer, following] = await Promise.all([get(right), read("/v1/datasets", { signal: context.signal, parameters: { schema: name, limit: LISTED } })]);
    const text = writeJson(newer.schema);
    const head = [freshLine(asOf, context.reload, "Published ", time(newer.published_at)), h("p", {}, h("code", {}, foreign(newer.schema_uri)), " ", copyButton(text, "Copy this version")), followers(following)];
    if (!versions.includes(left)) return [head, h("div", { class: "actions" }, select("Version", right, "version")), code(text, "Schema")];
    const older = await get(left);
    return [head, h("div", { class: "actions" }, select("From version", left, "from"), select("to", right, "version")), section("Differences", differences(writeJson(older.schema), text))];
  });
}

/** Which datasets follow a schema, and in which version. */
function followers({ datasets, next_after: next }) {
  if (!datasets.length) return h("p", { class: "quiet" }, "No dataset follows it.");
  const listed = datasets.map(({ slug, schema_version: version }, at) => [at ? ", " : null, link(["datasets", slug], foreign(slug)), ` (version ${version})`]);
  return h("p", {}, "Followed by ", listed, next ? " and more" : null, ".");
}

/** Lines of two texts side by side, those that differ marked. */
function differences(older, newer) {
  const rows = alignLines(older.split("\n"), newer.split("\n")).map(([left, right]) => {
    const differs = left !== right;
    const side = (line, kind) => h("td", { class: line === null ? "blank" : differs ? kind : "" }, h("code", {}, differs && line !== null ? h("span", { class: "sign" }, kind === "removed" ? "− " : "+ ") : "  ", line === null ? "" : foreign(line)));
    return h("tr", {}, side(left, "removed"), side(right, "added"));
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Differences" }, h("table", { class: "differences" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Before"), h("th", { scope: "col" }, "After"))), h("tbody", {}, rows)));
}

/** Pairs of lines by their longest common subsequence; null where a side has none. */
function alignLines(left, right) {
  if (left.length * right.length > 4_000_000) return left.map((line, at) => [line, right[at] ?? null]);
  const lengths = Array.from({ length: left.length + 1 }, () => new Uint32Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = left[i] === right[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) pairs.push([left[i++], right[j++]]);
    else if (j >= right.length || (i < left.length && lengths[i + 1][j] >= lengths[i][j + 1])) pairs.push([left[i++], null]);
    else pairs.push([null, right[j++]]);
  }
  return pairs;
}
