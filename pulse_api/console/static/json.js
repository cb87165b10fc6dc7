// A reader of JSON that loses nothing: numbers keep their digits, members keep their order and their names.

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
const TEXT = /"(?:[^"\\]|\\.)*"/sy;

/** A number that a double does not write as it came. */
export class Digits {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  valueOf() {
    return Number(this.text);
  }
}

/** A document's value: objects are Maps if `ordered`, else objects without a prototype. Throws SyntaxError. */
export function readJson(text, ordered = false) {
  let at = 0;

  function match(pattern) {
    pattern.lastIndex = at;
    const [part] = pattern.exec(text) ?? [null];
    if (part !== null) at += part.length;
    return part;
  }

  function fail() {
    throw new SyntaxError(`no JSON at character ${at}`);
  }

  function skip(character) {
    match(SPACE);
    if (text[at] !== character) return false;
    at += 1;
    match(SPACE);
    return true;
  }

  function readText() {
    return JSON.parse(match(TEXT) ?? fail());
  }

  function readObject() {
    const map = new Map();
    if (!skip("}")) {
      do {
        const name = readText();
        if (!skip(":")) fail();
        map.set(name, readValue());
      } while (skip(","));
      if (!skip("}")) fail();
    }
    if (ordered) return map;
    const object = Object.create(null);
    for (const [name, value] of map) object[name] = value;
    return object;
  }

  function readArray() {
    const items = [];
    if (skip("]")) return items;
    do items.push(readValue());
    while (skip(","));
    return skip("]") ? items : fail();
  }

  function readNumber() {
    const part = match(NUMBER) || fail();
    return String(Number(part)) === part ? Number(part) : new Digits(part);
  }

  function readValue() {
    match(SPACE);
    if (skip("{")) return readObject();
    if (skip("[")) return readArray();
    if (text[at] === '"') return readText();
    for (const [word, value] of [["true", true], ["false", false], ["null", null]]) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return value;
      }
    }
    return readNumber();
  }

  const value = readValue();
  match(SPACE);
  return at === text.length ? value : fail();
}

/** JSON text of a value of `readJson`, with all digits. */
export function writeJson(value, indent = "", step = "  ") {
  const inner = indent + step;
  const join = (parts, open, close) =>
    parts.length ? `${open}\n${parts.map((part) => inner + part).join(",\n")}\n${indent}${close}` : open + close;
  if (value instanceof Digits) return value.text;
  if (Array.isArray(value)) return join(value.map((item) => writeJson(item, inner, step)), "[", "]");
  if (value !== null && typeof value === "object") {
    const members = value instanceof Map ? [...value] : Object.entries(value);
    return join(members.map(([name, item]) => `${JSON.stringify(name)}: ${writeJson(item, inner, step)}`), "{", "}");
  }
  return JSON.stringify(value);
}
