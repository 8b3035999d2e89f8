// @ts-check
/** One message: its body, its neighbours in the queue, and its way through the groups. */

import { get, path } from "../api.js";
import { append, button, copy, fill, h } from "../dom.js";
import { bodyView } from "../body.js";
import { ago, idAfter, number, splitId, time } from "../format.js";
import { DataTable, asCode, explained, facts, heading, pager, py, pythonClient, spark } from "../parts.js";
import { linkTo, messageColumns } from "./messages.js";

const NEIGHBOURS = 3;

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { names: [topic, id], signal } = page;
  const request = { path: path`/v1/messages/${id}` };
  const place = splitId(id);
  const offset = Number(place.offset);
  const view = h("div", null, heading([h("a", { href: `#${path`/topics/${topic}`}` }, topic), ` ${place.queue} : ${number(offset)}`], [
    button("Copy link", () => copy(location.href, "Link")),
    h("a", { class: "button", href: `#/publish?topic=${encodeURIComponent(topic)}&again=${id}` }, "Publish again"),
  ]));
  append(view, pager("Neighbours", [
    ["‹ Earlier", hashOf(topic, idAfter(id, -1))],
    ["Later ›", hashOf(topic, idAfter(id, 1))],
    ["In its queue", `#${path`/topics/${topic}/messages`}?queue=${place.queue}&offset=${place.offset}`],
  ]));
  let message = null;
  try {
    message = await get(request.path, {}, signal);
  } catch (error) {
    append(view, explained(error));
  }
  if (message) append(view, [describe(message), bodyView(message), properties(message)]);
  const way = h("section", null, h("h2", null, "Its way through the groups"));
  const near = h("section", null, h("h2", null, "Neighbours in its queue"));
  append(view, [way, near, asCode(request, {
    python: pythonClient(`message = client.message(${py(id)})\nprint(message.key, message.body)`),
    spark: spark({ topic, assign: JSON.stringify({ [topic]: [place.queue] }), startingOffsets: `{"${place.queue}": ${place.offset}}`, endingOffsets: `{"${place.queue}": ${place.offset + 1n}}` }),
  })]);
  await Promise.all([showWay(way, id, page), showNear(near, topic, place, page)]);
  return view;
}

/** @param {string} topic @param {string | null} id */
const hashOf = (topic, id) => (id === null ? null : `#${path`/topics/${topic}/messages/${id}`}`);

/** @param {any} message */
function describe(message) {
  return facts([
    ["Stored", `${time(message.store_timestamp_ms)}, ${ago(message.store_timestamp_ms)}`],
    ["Born", message.born_timestamp_ms ? time(message.born_timestamp_ms) : null],
    ["Key", message.key === null ? "none" : h("a", { href: `#${path`/topics/${message.topic}/messages`}?key=${encodeURIComponent(message.key)}`, title: "All messages with this key" }, message.key)],
    ["Tag", message.tag ?? "none"],
    ["Id", h("code", null, message.message_id)],
  ]);
}

/** @param {any} message */
function properties(message) {
  const pairs = Object.entries(message.properties);
  if (!pairs.length) return null;
  const table = DataTable.of({
    label: "Properties", key: ([name]) => name,
    columns: [{ title: "Property", cell: ([name]) => name, class: "name" }, { title: "Value", cell: ([, value]) => value, class: "preview" }],
  });
  table.rows = pairs;
  return h("section", null, h("h2", null, "Properties"), table);
}

/** What each state of a message in a group means. @type {Record<string, (state: any) => string>} */
const STATES = {
  settled: (state) => (state.last_value ? "done, or superseded by a later message with its key" : "done"),
  available: (state) => (state.attempt ? "waits to be delivered again" : "waits for a member"),
  leased: (state) => `with ${state.member || "a member without a name"} since ${time(state.delivered_ms)}, ${state.until_ms ? `until ${time(state.until_ms)}` : "as long as its link lasts"}`,
  delayed: (state) => `waits until ${time(state.until_ms)} after a failure`,
  "restart-wait": (state) => `may be with a member from before a restart, until ${time(state.until_ms)}`,
  dying: () => "goes to the dead-letter topic now",
  dead: (state) => (state.dead_letter_id ? "dead letter" : "dead, and not kept"),
  expired: () => "expired before it was delivered",
  deleted: () => "deleted by retention",
  read: () => "before the stored offset: done",
  unread: () => "after the stored offset: not read",
};

/** @param {Element} section @param {string} id @param {import("../console.js").Page} page */
async function showWay(section, id, page) {
  const table = DataTable.of({
    label: "States in the groups", key: (row) => row.group,
    columns: [
      { title: "Group", cell: (row) => h("a", { href: `#${path`/groups/${row.group}`}` }, row.group), class: "name" },
      { title: "State", cell: (row) => [h("span", { class: `state-word ${row.state}` }, row.state), " ", row.dead_letter_id ? h("a", { href: `#${path`/topics/${row.dead_letter_topic}/messages/${row.dead_letter_id}`}` }, "its dead letter") : STATES[row.state]?.(row)] },
      { title: "Deliveries", cell: (row) => row.attempt ?? "", class: "number" },
      { title: "Failures", cell: (row) => row.failures ?? "", class: "number" },
    ],
    empty: "No group reads this topic.",
  });
  const steps = h("div");
  append(section, [table, steps]);
  /** @param {string | null} after */
  const load = async (after) => {
    const reply = await get(path`/v1/messages/${id}/groups`, { limit: 20, after }, page.signal);
    table.rows = reply.groups;
    fill(steps, (after || reply.next) && pager("Pages of groups", [["First", () => load(null)], ["Next ›", reply.next === null ? null : () => load(reply.next)]]));
  };
  try {
    await load(null);
  } catch (error) {
    fill(section, h("h2", null, "Its way through the groups"), explained(error));
  }
}

/** @param {Element} section @param {string} topic @param {{queue: number, offset: bigint}} place @param {import("../console.js").Page} page */
async function showNear(section, topic, place, page) {
  try {
    const reply = await get(path`/v1/topics/${topic}/messages/browse`, { order: "newest", offsets: `${place.queue}:${place.offset + BigInt(NEIGHBOURS + 1)}`, max_messages: 2 * NEIGHBOURS + 1 }, page.signal);
    const table = DataTable.of({
      label: "Neighbours", columns: messageColumns(topic, true), key: (row) => row.message_id, href: linkTo,
      mark: (row) => (BigInt(row.offset) === place.offset ? "current" : ""),
    });
    table.rows = reply.messages;
    append(section, table);
  } catch (error) {
    append(section, explained(error));
  }
}
