// The console's start: the key, the frame around every page, and which page an address shows.

import { listeners, read } from "./api.js";
import { foreign, h, plain, put } from "./dom.js";
import { keepTimes, time } from "./format.js";
import { currentKey, forgetKey, forgetSession, keepKey, looksLikeKey, takeKeyFromAddress } from "./session.js";
import { address, HOME, notice, pending, problem } from "./ui.js";
import { showDataset } from "./page_dataset.js";
import { showDeadLetters } from "./page_dead_letters.js";
import { showKeys } from "./page_keys.js";
import { showOverview } from "./page_overview.js";
import { showPipe, showPipes } from "./page_pipes.js";
import { showQuery } from "./page_query.js";
import { showSchema, showSchemas } from "./page_schemas.js";
import { showTrace } from "./page_trace.js";
import { showUsage } from "./page_usage.js";

takeKeyFromAddress();

// First segment of an address: the page, the page of one thing, and the label in the navigation.
const PAGES = {
  __proto__: null,
  "": { show: showOverview, label: "Overview" },
  "dead-letters": { show: showDeadLetters, showOne: showDeadLetters, label: "Dead letters" },
  trace: { show: showTrace, label: "Trace" },
  query: { show: showQuery, label: "Query" },
  schemas: { show: showSchemas, showOne: showSchema, label: "Schemas" },
  pipes: { show: showPipes, showOne: showPipe, label: "Pipes" },
  keys: { show: showKeys, label: "Keys" },
  usage: { show: showUsage, label: "Usage" },
  datasets: { show: showOverview, showOne: showDataset },
};

const main = h("main", { id: "main", tabindex: -1 });
const away = h("div", { class: "away", role: "status" });
const progress = h("div", { class: "progress", role: "progressbar", "aria-label": "Loading", hidden: true });
let leave = new AbortController();
let identity = null;

listeners.busy = (running) => {
  progress.hidden = running === 0;
};
listeners.away = (isAway, reason) => {
  if (isAway) put(away, notice("warn", reason ? foreign(reason) : "The API does not answer. The console asks again every 2 seconds."));
  else if (away.firstChild) put(away);
};
listeners.refused = () => {
  forgetKey();
  identity = null;
  const what = h("p", {}, "This key is not in force.");
  showSignIn(notice("error", what, h("p", { class: "fix" }, "It is mistyped, was revoked, or has expired. An operator issues another: pulse key create")));
};

function frame(segments) {
  const items = Object.entries(PAGES).filter(([, page]) => page.label);
  const current = segments[0] === "datasets" ? "" : segments[0] ?? "";
  const links = items.map(([name, page]) => h("a", { href: name ? address(name) : HOME, "aria-current": name === current ? "page" : null }, page.label));
  const leaveButton = h("button", { type: "button", class: "small", onclick: signOut }, "Sign out");
  const expires = identity.expires_at ? [" · expires ", time(identity.expires_at)] : null;
  return h(
    "header",
    {},
    h("a", { class: "skip", href: "#main", onclick: skip }, "Skip to content"),
    h("div", { class: "brand" }, h("a", { href: HOME }, "Pulse"), h("span", { class: "tenant" }, foreign(identity.tenant))),
    h("nav", { "aria-label": "Pages" }, links),
    h("div", { class: "who" }, h("span", { title: `Scopes: ${identity.scopes.join(", ")}` }, "Key: ", foreign(identity.name), expires), leaveButton),
  );
}

function skip(click) {
  click.preventDefault();
  main.focus();
}

function signOut() {
  forgetSession();
  identity = null;
  showSignIn();
}

function showSignIn(reason = null) {
  leave.abort();
  document.title = "Sign in · Pulse";
  const field = h("input", { id: "key", name: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true, autofocus: true });
  const message = h("div", {}, reason);
  const form = h(
    "form",
    {
      class: "sign-in",
      onsubmit: (submission) => {
        submission.preventDefault();
        const text = field.value.trim();
        if (!looksLikeKey(text)) return put(message, notice("error", h("p", {}, "This is not a tenant's key."), h("p", { class: "fix" }, "A key begins with pulse_ and 32 digits. An operator issues one with: pulse key create")));
        keepKey(text);
        return show();
      },
    },
    h("h1", {}, "Pulse"),
    message,
    h("label", { for: "key" }, "Key of your tenant"),
    field,
    h("button", { class: "primary" }, "Sign in"),
    h("p", { class: "quiet" }, "The key stays in this tab, until you close it. It needs the scope read. Without a key: ", h("code", {}, "pulse console <tenant>"), " prints an address with a key of an hour."),
  );
  document.body.replaceChildren(progress, away, h("main", { id: "main" }, form));
  field.focus();
}

/** Show what the address names. */
async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  if (!currentKey()) return showSignIn();
  try {
    if (!identity) {
      document.body.replaceChildren(progress, away, h("main", {}, pending(6)));
      identity = await read("/v1/keys/current", { signal });
    }
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) return undefined;
    forgetKey();
    return showSignIn(problem(error));
  }
  const segments = location.pathname.slice(HOME.length).split("/").filter(Boolean).map(decodeSegment);
  const page = PAGES[segments[0] ?? ""];
  const render = segments.length > 1 ? page?.showOne : page?.show;
  put(main);
  document.body.replaceChildren(frame(segments), progress, away, main);
  const context = {
    signal,
    segments,
    identity,
    may: (scope) => identity.scopes.includes(scope),
    parameters: new URLSearchParams(location.search),
    reload: show,
    go,
  };
  if (render) {
    const name = segments.length > 1 ? `${segments.slice(1).join("/")} · ${page.label ?? "Dataset"}` : page.label ?? "Overview";
    document.title = `${plain(name)} · ${identity.tenant} · Pulse`;
    render(main, context);
  } else {
    document.title = "No such page · Pulse";
    put(main, h("h1", {}, "No such page"), h("p", {}, h("a", { href: HOME }, "Go to the overview")));
  }
  return undefined;
}

/** A segment of an address as text; one that is no encoded UTF-8 stays as it is. */
function decodeSegment(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** Go to a page of the console. */
function go(path) {
  history.pushState(null, "", path);
  show();
  main.focus();
  scrollTo(0, 0);
}

document.addEventListener("click", (click) => {
  const target = click.target.closest("a[href]");
  const isPlain = !click.defaultPrevented && click.button === 0 && !click.metaKey && !click.ctrlKey && !click.shiftKey && !click.altKey;
  if (!target || !isPlain || target.origin !== location.origin || target.hash) return;
  if (target.pathname !== HOME && !target.pathname.startsWith(`${HOME}/`)) return;
  click.preventDefault();
  go(target.pathname + target.search);
});
addEventListener("popstate", show);
addEventListener("hashchange", () => {
  if (!location.hash.includes("pulse_")) return;
  takeKeyFromAddress();
  identity = null;
  show();
});
keepTimes();
show();
