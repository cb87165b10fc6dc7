// Query: SQL or a question in plain language; the result with its snapshots, as a grid or as CSV.

import { change, read } from "./api.js";
import { chartOfRows } from "./chart.js";
import { foreign, h, put } from "./dom.js";
import { count, exact, sentence, time } from "./format.js";
import { grid } from "./values.js";
import { address, button, code, empty, fillWith, link, notice, pending, problem, section } from "./ui.js";

const SQL = /^\s*(select|with|from|explain|describe|show|values|--|\/\*|\()/i;
const HISTORY = "pulse.queries";
const KEPT = 30;
const SHOWN_TABLES = 100;

export function showQuery(main, context) {
  const text = context.parameters.get("q") ?? "";
  const field = h("textarea", { id: "q", rows: 5, spellcheck: "false", "aria-describedby": "q-help" });
  field.value = text;
  const result = h("div", { "aria-live": "polite" });
  const fill = (query) => {
    field.value = query;
    field.focus();
  };
  const example = h("span", {});
  const help = h("p", { id: "q-help", class: "quiet" }, example, "Ctrl+Enter runs it.");
  const history = h("div", {});
  let running = null;
  const stop = button("Stop", () => running?.abort(), { hidden: true });
  const run = async () => {
    const query = field.value.trim();
    if (!query) return field.focus();
    window.history.replaceState(null, "", `${address("query")}?${new URLSearchParams({ q: query })}`);
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    context.signal.addEventListener("abort", () => running?.abort());
    stop.hidden = false;
    put(result, pending(6));
    try {
      const show = SQL.test(query) ? await runSql(query, signal) : await ask(query, signal);
      remember(context.identity.tenant, query);
      put(result, show);
    } catch (error) {
      if (error.name === "AbortError") put(result, notice("info", h("p", {}, "Stopped.")));
      else put(result, error.document?.understood ? notUnderstood(error) : problem(error));
    }
    stop.hidden = true;
    return drawHistory();
  };
  field.addEventListener("keydown", (key) => {
    if (key.key === "Enter" && (key.ctrlKey || key.metaKey)) run();
  });
  const drawHistory = () => {
    const queries = readHistory(context.identity.tenant);
    const items = queries.map((query) => h("li", {}, button(foreign(query), () => fill(query), { class: "link" })));
    put(history, queries.length ? h("ul", { class: "history" }, items) : h("p", { class: "quiet" }, "Queries of this tab appear here."));
  };
  put(
    main,
    h("h1", {}, "Query"),
    h("label", { for: "q" }, "A SELECT, or a question in English"),
    field,
    help,
    h("div", { class: "actions" }, h("button", { type: "button", class: "primary", onclick: run }, "Run"), stop),
    result,
    section("Tables", tablesOf(context, fill, example)),
    section("Queries of this tab", history),
  );
  drawHistory();
  if (!text) field.focus();
}

/** A query and a question about one of the tenant's own datasets, if any has a column to count by. */
function examplesOf(datasets, fill) {
  const isText = ({ type }) => type === "string";
  const dataset = datasets.find(({ kind, columns }) => kind === "events" && columns.some(isText)) ?? datasets.find(({ columns }) => columns.some(isText));
  if (!dataset) return null;
  const { name } = dataset.columns.find(isText);
  const sql = `SELECT ${quoted(name)}, count(*) FROM ${tableOf(dataset)} GROUP BY ALL`;
  const question = `How many ${dataset.slug.replaceAll("_", " ")} were there by ${name.replaceAll("_", " ")}?`;
  return ["Such as: ", button(foreign(sql), () => fill(sql), { class: "link" }), " or: ", button(foreign(question), () => fill(question), { class: "link" }), " "];
}

/** The table in which each event, or each entity, has one row. */
function tableOf({ slug, kind }) {
  return quoted(kind === "entities" ? `${slug}__latest` : slug);
}

/** A name in SQL. */
function quoted(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

function tablesOf(context, fill, example) {
  const box = h("div", {}, pending(1));
  fillWith(box, async () => {
    const { datasets, next_after: next } = await read("/v1/datasets", { signal: context.signal, parameters: { limit: SHOWN_TABLES } });
    if (!datasets.length) return empty("There are no datasets yet.", h("p", {}, link([], "The overview"), " says how to create the first."));
    put(example, examplesOf(datasets, fill));
    return h("p", { class: "chips" }, datasets.map((dataset) => button(foreign(dataset.slug), () => fill(`SELECT * FROM ${tableOf(dataset)} ORDER BY timestamp DESC LIMIT 100`), { class: "chip" })), next ? [h("span", { class: "quiet" }, "and more: "), link([], "the overview lists all")] : null);
  });
  return box;
}

async function runSql(sql, signal) {
  const result = await change("POST", "/v1/sql", { sql }, { signal });
  return [resultOf(sql, result), freshness(result.snapshots, null)];
}

async function ask(question, signal) {
  const answer = await change("POST", "/v1/ask", { question }, { signal });
  return [
    notice("info", h("p", {}, "Understood: ", foreign(answer.understood))),
    resultOf(answer.sql, answer),
    freshness(answer.snapshots, answer.freshness),
    h("details", {}, h("summary", {}, "The SQL that ran"), code(answer.sql, "SQL")),
  ];
}

function resultOf(sql, { columns, rows, query_id: id }) {
  const names = columns.map(({ name }) => name);
  const failure = h("div", {});
  const save = (label, type, title) => button(label, async () => {
    try {
      const answer = await change("POST", "/v1/sql", { sql }, { accept: type });
      const file = URL.createObjectURL(new Blob([answer.text], { type: "text/csv" }));
      h("a", { href: file, download: `${id}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(file), 10_000);
    } catch (error) {
      put(failure, problem(error));
    }
  }, { class: "small", title });
  const again = "Runs the query again, and saves its rows";
  return [
    h("div", { class: "actions" }, h("strong", {}, count(rows.length, "row")), save("CSV", "text/csv", again), save("For a spreadsheet", "text/csv;for=spreadsheet", `${again}, without text that a spreadsheet takes for a formula`), h("span", { class: "quiet" }, "Query ", h("code", {}, foreign(id)))),
    failure,
    chartOfRows(names, rows),
    rows.length ? grid("Result", names, rows) : h("p", { class: "quiet" }, "The query has no rows."),
  ];
}

/** What the tables were read at. */
function freshness(snapshots, landed) {
  const lines = Object.entries(snapshots).map(([name, snapshot]) => h("li", {}, foreign(name), snapshot === null ? ": no rows yet" : [" at snapshot ", h("code", {}, foreign(String(snapshot)))], landed?.[name] ? [", events landed last ", time(landed[name])] : null));
  return h("div", { class: "fresh" }, `Read ${exact(new Date().toISOString().slice(0, 19) + "Z")}`, h("ul", {}, lines));
}

function notUnderstood(error) {
  const { understood, known = {} } = error.document;
  return notice(
    "warn",
    h("p", { class: "what" }, foreign(error.message)),
    understood.length ? h("ul", {}, understood.map((line) => h("li", {}, foreign(sentence(line))))) : null,
    Object.keys(known).length ? h("details", {}, h("summary", {}, "What can be asked for"), Object.entries(known).map(([slug, names]) => h("p", {}, h("strong", {}, foreign(slug)), ": ", foreign(names.join(", "))))) : null,
    h("p", { class: "fix" }, foreign(error.fix)),
  );
}

function readHistory(tenant) {
  return JSON.parse(sessionStorage.getItem(`${HISTORY}.${tenant}`) ?? "[]");
}

function remember(tenant, query) {
  const queries = [query, ...readHistory(tenant).filter((other) => other !== query)].slice(0, KEPT);
  sessionStorage.setItem(`${HISTORY}.${tenant}`, JSON.stringify(queries));
}
