// Elements from data. Nothing here, and nothing on this page, ever parses text as HTML: what an agent
// wrote becomes a text node or an attribute, whatever it looks like.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `attributes`: `class`, `data-…`, `on…` handlers; false and null leave one out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Give an element other children. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set text only where it differs: an unchanged page costs nothing. */
export function tell(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Controls, bidirectional overrides and other characters that hide or turn text around.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text with everything visible that would not be seen. */
export function clean(text) {
  return String(text ?? "").replace(UNSEEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Text on one line, at most `most` characters. */
export function line(text, most = 200) {
  const flat = clean(String(text ?? "").slice(0, most * 4).replace(/\s+/g, " ")).trim();
  return flat.length > most ? `${flat.slice(0, most - 1)}…` : flat;
}
