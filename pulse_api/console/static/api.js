// Requests to /v1 with the key of the tab. Reads wait until the API is back; changes are sent once.

import { sentence } from "./format.js";
import { readJson } from "./json.js";
import { currentKey } from "./session.js";

const PAUSE_MS = 2_000;
const MAX_BUSY = 5; // answers 503 in a row, which can mean that the request itself takes too long

const RELOAD = "Reload the page; if it stays, tell the operators of Pulse";
// Words for the developers of a client of the API, who see requests and headers.
const OF_REQUESTS = /\b(GET|POST|PUT|PATCH|DELETE) \/|request_id|Retry-After|\bheaders?\b|\/openapi\.json/;
const FIXES = {
  404: "Check the address: it may be mistyped, or what it names was deleted",
  422: "Check the address of this page, and what you typed",
  429: "Wait a moment, then try again",
  500: "Tell the operators of Pulse the number of the request",
};
const INVALID = [400, 422];

/** An answer that is an error: the problem document, with `status`, and `message` and `fix` for a reader of pages. */
export class Problem extends Error {
  constructor(document, status) {
    super(sentence(wordsOf(document) ?? "The answer is not one of Pulse"));
    this.status = status;
    this.document = document;
    this.fix = typeof document.fix === "string" && !OF_REQUESTS.test(document.fix) ? document.fix : (FIXES[status] ?? RELOAD);
  }

  /** Whether there is nothing under a name, or nothing can have it. */
  get isAbsence() {
    return this.status === 404 || (INVALID.includes(this.status) && Array.isArray(this.document.errors));
  }
}

/** What is wrong, without the places of a request's parameters. */
function wordsOf({ detail, errors }) {
  if (Array.isArray(errors) && errors.length) return errors.map(({ at, problem }) => `${String(at).split(".").slice(1).join(".") || at}: ${problem}`).join("; ");
  return typeof detail === "string" ? detail : null;
}

/** Whether a path can have the name as a part: browsers take some for steps in it, however they are encoded. */
export function canBeInPath(name) {
  return !["", ".", ".."].includes(name);
}

/** A name as a part of a path of the API. Throws Problem: a path cannot have it. */
export function segment(name) {
  if (!canBeInPath(name)) throw new Problem({ detail: `An address cannot have the name “${name}”`, fix: "Use the command line of Pulse for it" }, 404);
  return encodeURIComponent(name.replace(/\p{Surrogate}/gu, "\ufffd"));
}

export const listeners = { busy: () => {}, away: () => {}, refused: () => {} };
let running = 0;

/** An answer of GET, as `readJson` gives it. Repeats while the API is away, until `signal` ends it. */
export async function read(path, { signal, parameters = {} } = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
  const address = query.size ? `${path}?${query}` : path;
  for (let refusals = 0; ; ) {
    let pause = PAUSE_MS;
    try {
      const answer = await send("GET", address, { signal });
      listeners.away(false);
      return answer.json;
    } catch (error) {
      const isAway = !(error instanceof Problem) && error.name !== "AbortError";
      if (!isAway && ![429, 503].includes(error.status)) throw error;
      if (error.status === 429 && !error.retryAfter) throw error;
      if (error.status === 503 && (refusals += 1) === MAX_BUSY) throw error;
      if (isAway || error.status === 503) listeners.away(true, error.status ? error.message : null);
      pause = Math.min((error.retryAfter ?? 2) * 1000, 30_000);
    }
    await sleep(pause, signal);
  }
}

/** A change, or a query: sent once. Throws Problem; with the status 0 if no answer came. */
export async function change(method, path, body, { signal, accept } = {}) {
  try {
    const answer = await send(method, path, { body, signal, accept });
    listeners.away(false);
    return accept ? answer : answer.json;
  } catch (error) {
    if (error instanceof Problem || error.name === "AbortError") throw error;
    const detail = "the API did not answer, so it is unknown whether this was done";
    throw new Problem({ title: "No answer", detail, fix: "Look at the list, then try again" }, 0);
  }
}

async function send(method, path, { body, signal, accept = "application/json" }) {
  const headers = { Authorization: `Bearer ${currentKey()}`, Accept: accept };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const content = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  listeners.busy((running += 1));
  try {
    const response = await fetch(path, { method, headers, body: content, signal, credentials: "omit", cache: "no-store" });
    const text = await response.text();
    if (!response.ok) {
      const problem = new Problem(documentOf(text), response.status);
      problem.retryAfter = Number(response.headers.get("Retry-After")) || null;
      if (response.status === 401) listeners.refused(problem);
      throw problem;
    }
    return { text, json: accept === "application/json" ? answerOf(text, response.status) : null };
  } finally {
    listeners.busy((running -= 1));
  }
}

/** The answer as a value. Throws Problem: something between here and Pulse has answered. */
function answerOf(text, status) {
  try {
    return readJson(text);
  } catch {
    throw new Problem({}, status);
  }
}

function documentOf(text) {
  try {
    const document = readJson(text);
    return document !== null && typeof document === "object" ? document : {};
  } catch {
    return {};
  }
}

function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("the page was left", "AbortError"));
    });
  });
}
