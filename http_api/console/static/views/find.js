// @ts-check
/** Find a message by its id, messages by their key, topics and groups by a part of their name. */

import { get, path } from "../api.js";
import { append, fill, h } from "../dom.js";
import { DataTable, asCode, explained, heading } from "../parts.js";
import { linkTo, messageColumns } from "./messages.js";

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { query } = page;
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ hint) => h("label", null, label, h("input", { type: "search", name, value: query[name] ?? "", placeholder: hint }));
  const form = h("form", {
    class: "fields",
    onsubmit: (/** @type {any} */ event) => {
      event.preventDefault();
      const data = new FormData(event.target);
      page.go({ q: null, topic: null, key: null, ...Object.fromEntries([...data].map(([name, value]) => [name, String(value).trim()])) });
    },
  }, field("q", "Message id, or a part of a topic's or group's name", "0000000100000000…, or orders"), field("key", "Key", "customer-7"), field("topic", "… in topic", "orders"), h("div", { class: "row wide" }, h("button", { class: "primary" }, "Find")));
  const results = h("div");
  const view = h("div", null, heading("Find"), form, results);
  try {
    if (/^[0-9A-Fa-f]{32}$/.test(query.q ?? "")) {
      const message = await get(path`/v1/messages/${query.q}`, {}, page.signal);
      location.replace(linkTo(message));
    } else if (query.q) await names(results, query.q, page);
    if (query.key && query.topic) await byKey(results, query.topic, query.key, page);
    else if (query.key) fill(results, h("p", { class: "quiet" }, "Name the topic too: keys are looked up in one topic."));
  } catch (error) {
    append(results, explained(error));
  }
  return view;
}

/** @param {Element} results @param {string} part @param {import("../console.js").Page} page */
async function names(results, part, page) {
  for (const kind of ["topic", "group"]) {
    const request = { path: "/v1/names", query: { kind, contains: part, limit: 25 } };
    const { names, next } = await get(request.path, request.query, page.signal);
    const link = (/** @type {string} */ name) => `#${path`/${`${kind}s`}/${name}`}`;
    const table = DataTable.of({ label: `${kind}s`, key: (name) => name, href: link, columns: [{ title: kind === "topic" ? "Topic" : "Group", cell: (name) => h("a", { href: link(name) }, name), class: "name" }], empty: `No ${kind} has “${part}” in its name.` });
    table.rows = names;
    append(results, [table, next && h("p", null, h("a", { href: `#/${kind}s?contains=${encodeURIComponent(part)}` }, "All of them")), asCode(request)]);
  }
}

/** @param {Element} results @param {string} topic @param {string} key @param {import("../console.js").Page} page */
async function byKey(results, topic, key, page) {
  const request = { path: path`/v1/topics/${topic}/messages/search`, query: { key, limit: 50 } };
  const { messages } = await get(request.path, request.query, page.signal);
  const table = DataTable.of({ label: "Messages with the key", columns: messageColumns(topic, false), key: (row) => row.message_id, href: linkTo, empty: `No message of ${topic} has the key “${key}”.` });
  table.rows = messages;
  append(results, [table, asCode(request)]);
}
