// Elements without markup: text stays text, whatever it holds.

const SVG = "http://www.w3.org/2000/svg";
// Control, invisible and bidirectional characters, and halves of surrogate pairs: a reader must see them.
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\p{Cs}\\u{e0000}-\\u{e0fff}]",
  "gu",
);

/** An element: `on…` are listeners, true and false are attributes without a value, children may be nested lists. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace what an element holds. */
export function put(element, ...children) {
  element.replaceChildren();
  fill(element, {}, children);
  return element;
}

/** Text of somebody else: isolated from the text around it, with what cannot be seen written as its code. */
export function foreign(text, attributes = {}) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(UNSEEN)) {
    parts.push(text.slice(end, match.index), h("span", { class: "code-point", title: "a character that cannot be seen" }, codeOf(match[0])));
    end = match.index + match[0].length;
  }
  return h("bdi", attributes, parts, text.slice(end));
}

/** The same as plain text, for attributes. */
export function plain(text) {
  return text.replace(UNSEEN, codeOf);
}

function codeOf(character) {
  return `\\u{${character.codePointAt(0).toString(16)}}`;
}
