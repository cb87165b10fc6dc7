// The key of this tab. It is kept in the tab's session only, and never in an address.

const NAME = "pulse.key";
const PATTERN = /pulse_(?:[0-9a-f]{32}|operator)_[0-9a-f]{12}_[A-Za-z0-9_-]{43}/;

/** Take the key out of the address's fragment, before anything else looks at the address. */
export function takeKeyFromAddress() {
  const match = PATTERN.exec(location.hash);
  if (!match && !location.hash.startsWith("#key=")) return;
  history.replaceState(null, "", location.pathname + location.search);
  if (match) keepKey(match[0]);
}

export function keepKey(text) {
  sessionStorage.setItem(NAME, text.trim());
}

export function currentKey() {
  return sessionStorage.getItem(NAME);
}

export function forgetKey() {
  sessionStorage.removeItem(NAME);
}

/** Forget the key, and the queries of the tab. */
export function forgetSession() {
  sessionStorage.clear();
}

/** Whether a text is a tenant's key by its form. */
export function looksLikeKey(text) {
  return PATTERN.test(text) && !text.startsWith("pulse_operator");
}
