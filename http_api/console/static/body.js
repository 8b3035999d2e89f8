// @ts-check
/** A message's body: as a tree of JSON, as text, as hexadecimal. */

import { append, button, fill, h } from "./dom.js";
import { bodyBytes, bytes } from "./format.js";
import { tabs } from "./parts.js";

const MOST_TEXT = 64 * 1024;
const MOST_HEX = 4 * 1024;
const MOST_ENTRIES = 100;

/** Return the parsed JSON of a text that is an object or a list, otherwise undefined. @param {string | undefined} text */
export function parsedJson(text) {
  if (text === undefined || !/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Return the body of a message with a choice of forms. @param {any} message */
export function bodyView(message) {
  const shown = h("div", { class: "body", tabindex: 0, role: "region", "aria-label": "Body" });
  const content = bodyBytes(message);
  const json = parsedJson(message.body);
  /** @type {[string, () => void][]} */
  const forms = [];
  if (json !== undefined) forms.push(["JSON", () => fill(shown, tree(json, 0))]);
  if (message.body !== undefined) forms.push(["Text", () => fill(shown, cut(message.body, MOST_TEXT, (text) => h("pre", null, text)))]);
  forms.push(["Hex", () => fill(shown, cutHex(content, MOST_HEX))]);
  return h("section", { class: "body-view" }, tabs("Form of the body", forms, h("span", { class: "quiet" }, bytes(content.length))), shown);
}

/** @param {string} text @param {number} most @param {(text: string) => Node} show */
function cut(text, most, show) {
  if (text.length <= most) return show(text);
  const place = h("div", null, show(text.slice(0, most)));
  append(place, button(`Show all ${bytes(text.length)}`, () => fill(place, show(text))));
  return place;
}

/** @param {Uint8Array} content @param {number} most */
function cutHex(content, most) {
  const place = h("div", null, h("pre", null, hex(content.subarray(0, most)) || "(empty)"));
  if (content.length > most) append(place, button(`Show the next ${bytes(Math.min(content.length - most, 64 * 1024))}`, () => place.replaceWith(cutHex(content, most + 64 * 1024))));
  return place;
}

/** Return a hex dump: offset, sixteen bytes, their ASCII characters. @param {Uint8Array} content */
export function hex(content) {
  const lines = [];
  for (let at = 0; at < content.length; at += 16) {
    const row = [...content.subarray(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.slice(0, 8).join(" ").padEnd(23)}  ${digits.slice(8).join(" ").padEnd(23)}  ${text}`);
  }
  return lines.join("\n");
}

/** Return a JSON value as a tree. Inner values are made when they are opened. @param {any} value @param {number} depth
 * @param {string} [name] the name of the value in its parent @returns {Node} */
function tree(value, depth, name) {
  const label = name === undefined ? null : [h("span", { class: "json-name" }, name), ": "];
  if (value === null || typeof value !== "object")
    return h("span", null, label, h("span", { class: `json-${value === null ? "null" : typeof value}` }, JSON.stringify(value)));
  const entries = Array.isArray(value) ? value.map((each, index) => [String(index), each]) : Object.entries(value);
  if (!entries.length) return h("span", null, label, Array.isArray(value) ? "[]" : "{}");
  const summary = Array.isArray(value) ? `list of ${entries.length}` : `${entries.length} ${entries.length === 1 ? "field" : "fields"}`;
  const inner = h("ul", { class: "json" });
  const details = h("details", { ontoggle: () => details.open && !inner.hasChildNodes() && more(0) }, h("summary", null, label, summary), inner);
  /** @param {number} from */
  const more = (from) => {
    for (const [field, each] of entries.slice(from, from + MOST_ENTRIES))
      append(inner, h("li", null, tree(each, depth + 1, field)));
    if (from + MOST_ENTRIES < entries.length) {
      const next = button(`${entries.length - from - MOST_ENTRIES} more`, () => {
        next.remove();
        more(from + MOST_ENTRIES);
      });
      append(inner, next);
    }
  };
  if (depth < 2) {
    details.open = true;
    more(0);
  }
  return details;
}
