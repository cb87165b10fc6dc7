// A dataset: newest rows, columns with their meaning, summaries, states, snapshots, and how engines connect.

import { canBeInPath, read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { number, time, withSeparators } from "./format.js";
import { newerVersion } from "./moves.js";
import { days, rollups } from "./summaries.js";
import { stateForm } from "./states.js";
import { runTable } from "./syncs.js";
import { grid } from "./values.js";
import { absent, address, code, empty, facts, fillWith, freshLine, link, notice, pending, section, table } from "./ui.js";

const ROWS = 100;
const SYNCS = 10;
const NO_STATE = 409; // the dataset exists, and no state is declared
const FIRST = ["timestamp", "id", "_is_deleted"];
const LAST = ["tenant_id", "dataset_id"]; // the same in all rows

export function showDataset(main, context) {
  const { segments: [, slug], signal, parameters } = context;
  const snapshot = parameters.get("snapshot");
  const options = { signal };
  const places = Object.fromEntries(["head", "rows", "columns", "days", "rollups", "state", "syncs", "snapshots", "connect"].map((name) => [name, h("div", {}, pending(name === "rows" ? 10 : 3))]));
  const newer = h("div", {});
  const ofEvents = [section("Events by hour and day", places.days), section("Rollups", places.rollups), section("State of a key", places.state)];
  const ofEntities = section("Syncs", places.syncs);
  const omit = (...sections) => sections.forEach((part) => part.remove());
  put(
    main,
    h("p", { class: "path" }, link([], "Datasets"), " / "),
    h("h1", {}, foreign(slug)),
    places.head,
    newer,
    section("Newest rows", snapshot ? past(slug, snapshot) : null, places.rows),
    section("Columns", places.columns),
    ofEvents,
    ofEntities,
    section("Snapshots", places.snapshots),
    section("Connect an engine", places.connect),
  );
  const show = (error) => put(main, h("p", { class: "path" }, link([], "Datasets"), " / "), h("h1", {}, foreign(slug)), absent("dataset", slug, [[], "All datasets"], error));
  if (!canBeInPath(slug)) return show();
  const path = `/v1/datasets/${segment(slug)}`;
  const dataset = read(path, options);
  const snapshots = read(`${path}/snapshots`, options);
  const asOf = new Date().toISOString();
  dataset.catch((error) => {
    if (error.isAbsence) show(error);
  });
  const letters = read("/v1/dead-letters/groups", { signal, parameters: { dataset: slug, limit: 1000 } });
  letters.catch(() => {});
  fillWith(places.head, async () => head(await dataset, await snapshots, await letters, asOf, context));
  fillWith(newer, async () => newerVersion(newer, await dataset, await read("/v1/schemas", options), context), () => []);
  fillWith(places.rows, async () => rows(await read(`${path}/preview`, { signal, parameters: { limit: ROWS, snapshot_id: snapshot } }), await dataset, context));
  const meaning = read(`${path}/meaning`, options);
  meaning.catch(() => {});
  fillWith(places.columns, async () => columns(await dataset, await meaning));
  const ofKind = async () => {
    const isOfEvents = (await dataset).kind === "events";
    omit(...(isOfEvents ? [ofEntities] : ofEvents));
    if (!isOfEvents) return fillWith(places.syncs, async () => syncsOf(await read(`${path}/syncs`, options)));
    fillWith(places.days, async () => days(await read(`${path}/summary`, options)));
    fillWith(places.rollups, async () => rollups(path, await meaning, options));
    return fillWith(places.state, async () => stateOf(path, slug, context));
  };
  ofKind().catch(() => omit(...ofEvents, ofEntities)); // the head shows the error
  fillWith(places.snapshots, async () => history(slug, await snapshots, snapshot));
  return fillWith(places.connect, async () => connections(await read("/v1/lake/connect", options)));
}

function past(slug, snapshot) {
  return notice("info", h("p", {}, "Rows as of the snapshot ", h("code", {}, foreign(snapshot)), ". ", link(["datasets", slug], "Show the newest")));
}

function head(dataset, { snapshots }, { groups }, asOf, context) {
  const newest = snapshots[0];
  const open = groups.reduce((sum, group) => sum + Number(group.count), 0);
  const queryOf = (label, sql) => h("a", { href: `${address("query")}?${new URLSearchParams({ q: sql })}` }, label);
  const isOfEntities = dataset.kind === "entities";
  return [
    freshLine(asOf, context.reload, newest ? ["Last commit ", time(newest.committed_at)] : "No commit yet"),
    facts([
      ["Rows", number(newest?.total_rows ?? 0)],
      ["Holds", dataset.kind === "entities" ? "versions of entities" : "events"],
      ["Table", h("code", {}, nameOfTable(dataset.table))],
      ["Schema", schemaLink(dataset.schema_uri)],
      ["Invalid events", dataset.on_invalid === "refuse" ? "are refused" : "become dead letters"],
      ["Open dead letters", open ? h("a", { class: "bad", href: `${address("dead-letters")}?${new URLSearchParams({ dataset: dataset.slug })}` }, withSeparators(open)) : number(0)],
      ["Created", time(dataset.created_at)],
    ]),
    h("p", {}, isOfEntities ? [queryOf("Query its latest state", `SELECT * FROM "${dataset.slug}__latest" LIMIT 100`), " · "] : null, queryOf(isOfEntities ? "Query its versions" : "Query its rows", `SELECT * FROM "${dataset.slug}" ORDER BY timestamp DESC LIMIT 100`)),
  ];
}

/** Namespace and name: a line breaks between them first. */
function nameOfTable(text) {
  const [namespace, name] = text.split(".");
  return [foreign(`${namespace}.`), h("wbr"), foreign(name)];
}

function schemaLink(uri) {
  const [name] = uri.split("/").slice(-2);
  return link(["schemas", name], foreign(uri));
}

function rows(answer, dataset) {
  if (!answer.rows.length) {
    return empty("No rows yet.", h("p", {}, "Send an event with POST /v1/collect; its row is here about a minute later. If it is not, look for its id in ", link(["trace"], "Trace"), "."));
  }
  const names = Object.keys(answer.rows[0]);
  const own = new Set(dataset.columns.map((column) => column.name));
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) - 9 : own.has(name) ? 0 : LAST.includes(name) ? 3 : name.startsWith("_") ? 2 : 1);
  const ordered = [...names].sort((one, other) => rank(one) - rank(other));
  return grid(`Newest rows of ${dataset.slug}`, ordered, answer.rows);
}

function syncsOf({ syncs }) {
  return syncs.length ? runTable("Syncs", syncs.slice(0, SYNCS)) : h("p", { class: "quiet" }, "No sync yet: entities were sent one by one, or not at all.");
}

function columns(dataset, meaning) {
  if (!dataset.columns.length) return empty("The schema declares no properties.", h("p", {}, "What events hold is in the column _extra."));
  const fields = new Map(meaning.fields.map((field) => [field.name, field]));
  const text = ({ title, description }) => [title, description].filter(Boolean).join(". ");
  const hasUnits = meaning.fields.some(({ unit }) => unit);
  const hasMeaning = meaning.fields.some((field) => text(field) || field.values.length);
  const lines = dataset.columns.map((column) => {
    const field = fields.get(column.name) ?? { values: [] };
    const values = field.values.length ? h("span", { class: "quiet" }, " One of: ", foreign(field.values.slice(0, 20).join(", "))) : null;
    return [h("code", {}, foreign(column.name)), column.type, ...(hasUnits ? [field.unit ? foreign(field.unit) : null] : []), ...(hasMeaning ? [text(field) || values ? [foreign(text(field)), values] : null] : [])];
  });
  return table("Columns", ["Column", "Type", ...(hasUnits ? ["Unit"] : []), ...(hasMeaning ? ["Meaning"] : [])], lines);
}

/** The form for a key of the state, or how to declare one. */
async function stateOf(path, slug, context) {
  try {
    return stateForm(path, await read(`${path}/state`, { signal: context.signal, parameters: { limit: 10 } }), context);
  } catch (error) {
    if (error.status === NO_STATE) return noState(slug, context.identity.tenant);
    throw error;
  }
}

function noState(slug, tenant) {
  return empty("No state is declared.", h("p", {}, "A state has the newest event of each value of a column, and its last minutes and hours. Declare one: ", h("code", {}, `pulse state declare ${tenant} `, foreign(slug), " COLUMN --windows")));
}

function history(slug, { snapshots }, current) {
  if (!snapshots.length) return h("p", { class: "quiet" }, "No snapshot yet: the first batch that lands makes one.");
  const lines = snapshots.slice(0, 20).map((one) => [
    h("a", { href: `${address("datasets", slug)}?snapshot=${encodeURIComponent(one.snapshot_id)}`, "aria-current": one.snapshot_id === current ? "true" : null }, h("code", {}, foreign(String(one.snapshot_id)))),
    time(one.committed_at),
    foreign(one.operation),
    number(one.added_rows),
    number(one.total_rows),
    one.batch_id ? h("code", {}, foreign(one.batch_id)) : "upkeep",
  ]);
  const table_ = table("Snapshots", ["Snapshot", "Committed", "Operation", "Rows added", "Rows", "Batch"], lines, ["", "", "", "number", "number", ""]);
  return snapshots.length > 20 ? [table_, h("p", { class: "quiet" }, `The newest 20 of ${withSeparators(snapshots.length)} that the API lists`)] : table_;
}

const ENGINES = { __proto__: null, duckdb: "DuckDB", pyiceberg: "PyIceberg", spark: "Spark", trino: "Trino" };

function connections({ engines, placeholder }) {
  return [
    h("p", {}, "Put a key with the scope lake:read in the place of ", h("code", {}, placeholder), "; ", link(["keys"], "Keys"), " makes one."),
    engines.map(({ engine, paste }) => h("details", {}, h("summary", {}, ENGINES[engine] ?? engine), code(paste, `Configuration of ${engine}`))),
  ];
}
