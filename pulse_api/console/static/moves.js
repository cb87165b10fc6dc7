// Moves of a dataset to a newer version of its schema: what one would change, the request, and its progress.

import { change, read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { sentence, time, withSeparators } from "./format.js";
import { writeJson } from "./json.js";
import { address, button, code, confirm, notice, problem } from "./ui.js";

const OPEN = ["planned", "running"];
const AGAIN_MS = 3_000;

/** A move under way; else, that a version is published which the dataset does not follow. Nothing: it follows the newest. */
export async function newerVersion(place, dataset, { schemas }, context) {
  const [name] = dataset.schema_uri.split("/").slice(-2);
  const latest = schemas.filter((schema) => schema.name === name).at(-1);
  if (!latest || Number(latest.version) <= Number(dataset.schema_version)) return [];
  const path = `/v1/datasets/${segment(dataset.slug)}`;
  const { moves: [last] } = await read(`${path}/moves`, { signal: context.signal });
  if (last && OPEN.includes(last.state)) return underWay(place, path, last, context);
  const versions = new URLSearchParams({ from: dataset.schema_version, version: latest.version });
  const differences = h("a", { href: `${address("schemas", name)}?${versions}` }, "See the differences");
  const failed = last?.state === "failed" && last.schema_uri === latest.schema_uri;
  return notice(
    failed ? "warn" : "info",
    h("p", {}, `The dataset follows version ${dataset.schema_version} of its schema; version ${latest.version} is published. `, differences, "."),
    failed ? h("p", {}, "The last move there failed ", time(last.ended_at), ", and changed nothing: ", foreign(last.error ?? "")) : null,
    context.may("manage") ? moveButton(path, dataset, latest, context) : byCommand(dataset, latest, context),
  );
}

function byCommand(dataset, latest, { identity }) {
  return [h("p", { class: "quiet" }, "Moving needs a key with the scope manage. An operator moves it with:"), code(`pulse dataset move ${identity.tenant} ${dataset.slug} ${latest.schema_uri}`, "Command of the move")];
}

/** Progress of a move, read again until it has ended. */
function underWay(place, path, move, context) {
  const timer = setTimeout(async () => {
    try {
      const now = await read(`${path}/moves/${segment(move.move_id)}`, { signal: context.signal });
      if (OPEN.includes(now.state)) put(place, underWay(place, path, now, context));
      else context.reload();
    } catch (error) {
      if (error.name !== "AbortError") put(place, problem(error));
    }
  }, AGAIN_MS);
  context.signal.addEventListener("abort", () => clearTimeout(timer));
  const progress = move.state === "planned" ? "it waits for a run" : move.files === null ? "it has begun" : `${withSeparators(move.files_written)} of ${withSeparators(move.files)} data files are written`;
  return notice(
    "info",
    h("p", { role: "status" }, "The dataset moves to ", foreign(move.schema_uri), `: ${progress}. Until it is done, events land as before.`),
    move.error ? h("p", {}, `Attempt ${move.attempt}, since the one before failed: `, foreign(move.error)) : null,
  );
}

function moveButton(path, dataset, latest, context) {
  const result = h("div", { class: "result" });
  const ask = async () => {
    put(result, h("p", { class: "quiet" }, "Comparing the versions …"));
    try {
      const { schema } = await read(`/v1/schemas/${segment(latest.name)}/${latest.version}`, { signal: context.signal });
      const body = `{"name": ${JSON.stringify(latest.name)}, "schema": ${writeJson(schema)}}`;
      const trial = await change("POST", `/v1/schemas/check?${new URLSearchParams({ dataset: dataset.slug })}`, body, { signal: context.signal });
      put(result);
      askToMove(path, dataset, latest, trial, context);
    } catch (error) {
      if (error.name !== "AbortError") put(result, problem(error));
    }
  };
  return h("div", { class: "actions" }, button("Move …", ask), result);
}

function askToMove(path, dataset, latest, { columns, incompatibilities: obstacles }, context) {
  if (obstacles.length) return confirm({ title: "It cannot move there", body: [obstaclesOf(obstacles), h("p", {}, "Publish a compatible version, or create another dataset.")] });
  const dialog = confirm({
    title: `Move ${dataset.slug} to version ${latest.version}?`,
    body: consequences(dataset, latest, columns),
    label: "Move",
    action: async () => {
      const answer = await change("POST", `${path}/schema`, { schema_uri: latest.schema_uri });
      dialog.addEventListener("close", () => context.reload());
      return h("p", {}, answer.move_id ? "A run will write the data files again. The dataset's page shows its progress." : `Done: the dataset follows version ${latest.version}.`);
    },
  });
  return dialog;
}

/** What changes for tables, for events, and for good. */
function consequences(dataset, latest, columns) {
  const known = new Map(dataset.columns.map((column) => [column.name, column.type]));
  const added = columns.filter(({ name }) => !known.has(name));
  const replaced = columns.filter(({ name, type }) => known.has(name) && known.get(name) !== type);
  const names = (list, text) => list.map((column, at) => [at ? ", " : null, h("code", {}, foreign(column.name)), text(column)]);
  return h(
    "ul",
    { class: "issues" },
    h("li", {}, added.length ? ["It adds columns to the table: ", names(added, ({ type }) => ` (${type})`), "."] : "It adds no columns to the table."),
    replaced.length ? h("li", {}, "These get another type: ", names(replaced, ({ name, type }) => ` (${known.get(name)} to ${type})`), ". A run writes the data files again; until it is done, the dataset is as it is, and events land as before.") : null,
    h("li", {}, `Events that wait, and those to come, are validated by version ${latest.version}, unless they name another.`),
    h("li", {}, "A dataset cannot move back to an earlier version."),
  );
}

/** Why a dataset cannot move to a schema. */
export function obstaclesOf(obstacles) {
  return notice("warn", h("p", { class: "what" }, "The dataset cannot move to this schema:"), h("ul", {}, obstacles.map((one) => h("li", {}, one.pointer ? [h("code", {}, foreign(one.pointer)), ": "] : null, foreign(sentence(one.change)), ": ", foreign(one.reason)))));
}
