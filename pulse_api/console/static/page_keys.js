// Keys: list, issue (shown once), revoke.

import { change, read, segment } from "./api.js";
import { foreign, h, put } from "./dom.js";
import { count, time } from "./format.js";
import { button, code, confirm, fillWith, freshLine, notice, openDialog, pending, problem, section, table } from "./ui.js";

// What a key with a scope can do.
const MEANINGS = {
  __proto__: null, read: "see everything in this console", collect: "send events", manage: "change schemas and datasets, replay, issue keys",
  "lake:read": "read tables with an engine", "lake:write": "change the tenant's own tables with an engine",
};

export function showKeys(main, context) {
  const body = h("div", {}, pending(8));
  put(main, h("h1", {}, "Keys"), body);
  if (!context.may("manage")) return put(body, notice("info", h("p", {}, "Seeing, issuing and revoking keys need a key with the scope manage. Yours has: ", context.identity.scopes.join(", "), ".")));
  const asOf = new Date().toISOString();
  return fillWith(body, async () => {
    const answer = await read("/v1/keys", { signal: context.signal });
    const line = (key) => [[foreign(key.name), key.key_id === context.identity.key_id ? h("span", { class: "quiet" }, " (yours)") : null], h("code", {}, foreign(key.key_id)), key.scopes.join(", "), stateOf(key), time(key.last_used_at), time(key.created_at), isInForce(key) ? button("Revoke …", () => revoke(key, context), { class: "small danger" }) : null];
    const list = (label, keys) => table(label, ["Name", "Id", "Scopes", "State", "Last used", "Created", ""], keys.map(line), ["wide", "", "wide", "", "", "", ""]);
    const ended = answer.keys.filter((key) => !isInForce(key));
    return [
      freshLine(asOf, context.reload),
      list("Keys", answer.keys.filter(isInForce)),
      ended.length ? h("details", {}, h("summary", {}, `${count(ended.length, "key")} revoked or expired`), list("Ended keys", ended)) : null,
      section("Issue a key", form(context)),
    ];
  });
}

function isInForce(key) {
  return !key.revoked_at && !(key.expires_at && new Date(key.expires_at) < new Date());
}

function stateOf(key) {
  if (key.revoked_at) return h("span", { class: "quiet" }, "revoked ", time(key.revoked_at));
  if (!isInForce(key)) return h("span", { class: "quiet" }, "expired ", time(key.expires_at));
  return key.expires_at ? ["expires ", time(key.expires_at)] : "in force";
}

function form(context) {
  const { scopes, expires_at: expires } = context.identity;
  const name = h("input", { id: "name", required: true, maxlength: 200, autocomplete: "off" });
  const days = h("input", { id: "days", type: "number", min: 1, max: 3650, placeholder: "never" });
  const boxes = scopes.map((scope) => h("label", { class: "check" }, h("input", { type: "checkbox", value: scope, checked: scope === "read" }), ` ${scope}`, MEANINGS[scope] ? h("span", { class: "quiet" }, `: ${MEANINGS[scope]}`) : null));
  const result = h("div", {});
  const submit = async (submission) => {
    submission.preventDefault();
    const selectedScopes = boxes.map((box) => box.firstChild).filter((box) => box.checked).map((box) => box.value);
    try {
      const key = await change("POST", "/v1/keys", { name: name.value, scopes: selectedScopes, ...(days.value ? { expires_in_days: Number(days.value) } : {}) });
      const dialog = openDialog("The new key", notice("warn", h("p", {}, "Copy it now: it is shown this once.")), code(key.key, "The new key"), h("p", {}, key.expires_at ? ["It expires ", time(key.expires_at), "."] : "It does not expire."), h("div", { class: "actions" }, button("Close", () => dialog.close())));
      dialog.addEventListener("close", context.reload);
    } catch (error) {
      put(result, problem(error));
    }
  };
  return h(
    "form",
    { class: "fields", onsubmit: submit },
    h("div", {}, h("label", { for: "name" }, "Name of the person or service"), name),
    h("fieldset", { class: "scopes" }, h("legend", {}, "Scopes"), boxes, h("p", { class: "quiet" }, "A key issues keys with its own scopes only.")),
    h("div", {}, h("label", { for: "days" }, "Expires after days"), days),
    h("button", { class: "primary" }, "Issue"),
    expires ? notice("warn", h("p", {}, "Your own key expires ", time(expires), ", and keys that it issues end with it. For a key that lasts, sign in with one.")) : null,
    result,
  );
}

function revoke(key, context) {
  const isOwn = key.key_id === context.identity.key_id;
  const dialog = confirm({
    title: "Revoke this key?",
    body: h("p", {}, "The key ", foreign(key.name), " (", h("code", {}, key.key_id), ") and every key that it issued end at once, and for good.", isOwn ? " It is the key that you are signed in with." : null),
    label: "Revoke",
    danger: true,
    action: async () => {
      const done = await change("DELETE", `/v1/keys/${segment(key.key_id)}`);
      dialog.addEventListener("close", context.reload);
      return h("p", {}, done.revoked_with_it.length ? `Revoked, and with it: ${done.revoked_with_it.join(", ")}` : "Revoked.");
    },
  });
}
