// @ts-check
/** The messages of a topic or queue: newest or oldest first, at an offset or a time, by key, tag and filter, live. */

import { ask, events, get, path } from "../api.js";
import { append, fill, h } from "../dom.js";
import { ago, bodyBytes, bytes, counted, duration, number, time } from "../format.js";
import { DataTable, asCode, box, explained, heading, pager, py, pythonClient, spark, tabs } from "../parts.js";

const PAGE = 50;
const MOST_LIVE = 200;

/** Return the columns of a table of messages. @param {string} topic @param {boolean} oneQueue @returns {import("../parts.js").Column[]} */
export function messageColumns(topic, oneQueue) {
  return [
    { title: "Stored", cell: (row) => h("time", { datetime: new Date(row.store_timestamp_ms).toISOString(), title: ago(row.store_timestamp_ms) }, time(row.store_timestamp_ms)), class: "when" },
    { title: "Place", cell: (row) => h("a", { href: linkTo(row), title: row.message_id }, oneQueue ? number(row.offset) : `${row.queue} : ${number(row.offset)}`), class: "number" },
    { title: "Key", cell: (row) => row.key ?? h("span", { class: "quiet" }, "–"), class: "name" },
    { title: "Tag", cell: (row) => row.tag && h("span", { class: "tag" }, row.tag) },
    { title: "Body", cell: preview, class: "preview" },
    { title: "Size", cell: (row) => bytes(bodyBytes(row).length), class: "number" },
  ];
}

/** @param {any} row */
export const linkTo = (row) => `#${path`/topics/${row.topic}/messages/${row.message_id}`}`;

/** @param {any} row */
export function preview(row) {
  if (row.body === undefined) return h("span", { class: "quiet" }, "bytes");
  return row.body.slice(0, 200).replace(/\s+/g, " ");
}

/** Return what the address asks the broker for: the offsets and the time of the browse request. @param {import("../console.js").Page} page */
function requestOf({ names: [topic], query }) {
  const order = query.order === "oldest" ? "oldest" : "newest";
  const shared = { max_messages: PAGE, tag: query.tag, filter: query.filter };
  if (query.key) return { path: path`/v1/topics/${topic}/messages/search`, query: { key: query.key, limit: PAGE } };
  /** @type {import("../api.js").Query} */
  const browse = { order, queue: query.queue, ...shared };
  if (query.at) Object.assign(browse, { offsets: query.at, queue: null });
  else if (query.offset !== undefined && query.queue !== undefined) {
    // Newest first begins at the named message, so the offset after the message is the bound.
    const offset = BigInt(query.offset) + (order === "newest" ? 1n : 0n);
    Object.assign(browse, { offsets: `${query.queue}:${offset}`, queue: null });
  } else if (query.time) browse.timestamp_ms = query.time;
  return { path: path`/v1/topics/${topic}/messages/browse`, query: browse };
}

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { names: [name], query, signal } = page;
  const topic = await get(path`/v1/topics/${name}`, {}, signal);
  const life = await lifeOf(topic, signal);
  const results = h("div");
  const table = DataTable.of({
    label: `Messages of ${name}`,
    columns: messageColumns(name, query.queue !== undefined || topic.queue_count === 1),
    key: (row) => row.message_id,
    href: linkTo,
    empty: emptyText(topic, query),
  });
  const request = requestOf(page);
  const view = h("div", null,
    heading([h("a", { href: `#${path`/topics/${name}`}` }, name), " messages"], [h("a", { class: "button", href: `#/publish?topic=${encodeURIComponent(name)}` }, "Publish")],
      life ? `${counted(kept(topic), "message")} in ${counted(topic.queue_count, "queue")}, stored between ${time(life.first)} and ${time(life.last)}` : `No messages yet in ${counted(topic.queue_count, "queue")}.`),
    controls(page, topic, life), results, table);
  if (query.live) await follow(page, table, results);
  else await load(page, topic, request, table, results);
  append(view, asCode(query.live ? liveRequest(page) : request, code(page)));
  return view;
}

/** @param {any} topic */
const kept = (topic) => topic.queues.reduce((/** @type {number} */ sum, /** @type {any} */ queue) => sum + queue.max_offset - queue.min_offset, 0);

/** Return the times of the first and the last message of a topic; null if it has none.
 * @param {any} topic @param {AbortSignal} signal */
async function lifeOf(topic, signal) {
  if (!kept(topic)) return null;
  const reply = await get(path`/v1/topics/${topic.topic}/messages/browse`, { order: "oldest", max_messages: 1 }, signal);
  const last = Math.max(...topic.queues.map((/** @type {any} */ queue) => queue.newest_timestamp_ms ?? 0));
  const first = reply.messages[0]?.store_timestamp_ms ?? last;
  return { first, last: Math.max(last, first) };
}

/** @param {any} topic @param {Record<string, string>} query */
function emptyText(topic, query) {
  if (query.live) return "Waiting for messages…";
  if (!kept(topic)) return "The topic has no messages.";
  if (query.key) return `No message has the key “${query.key}”.`;
  if (query.tag || query.filter) return "No message here matches the tag and filter.";
  return query.order === "oldest" ? "There is no later message." : "There is no earlier message.";
}

/** @param {import("../console.js").Page} page @param {any} topic @param {any} request @param {DataTable} table @param {Element} results */
async function load(page, topic, request, table, results) {
  const { query, signal } = page;
  const reply = await ask(request, signal);
  table.rows = reply.messages;
  if (query.key) return fill(results, notes(reply), h("p", { class: "quiet" }, reply.messages.length === PAGE ? `The newest ${PAGE} messages with this key.` : ""));
  const at = reply.queues.map((/** @type {any} */ queue) => `${queue.queue}:${queue.next_offset}`).join(",");
  const isOldest = query.order === "oldest";
  const forward = reply.more ? page.link({ at, offset: null, time: null }) : null;
  const isStart = !query.at && query.offset === undefined && !query.time;
  const back = isStart ? null : () => goBack(page, request, reply);
  const found = reply.messages;
  const range = found.length ? `${counted(found.length, "message")}: ${time(found[0].store_timestamp_ms)} to ${time(found.at(-1).store_timestamp_ms)}` : "";
  fill(results, seekNote(query, reply), notes(reply),
    pager("Pages of messages", [[isOldest ? "‹ Older" : "‹ Newer", back], [isOldest ? "Newer ›" : "Older ›", forward], ["Newest", page.link({ order: null, at: null, offset: null, time: null })], ["Oldest", page.link({ order: "oldest", at: null, offset: null, time: null })]], range || (reply.more ? "Nothing matches in the scanned part; go on with the next page." : "")));
}

/** Go to the page before this one: read the other way from where this page begins. @param {import("../console.js").Page} page @param {any} request @param {any} reply */
async function goBack(page, request, reply) {
  const starts = reply.queues.map((/** @type {any} */ queue) => `${queue.queue}:${queue.start_offset}`).join(",");
  const other = { ...request.query, order: request.query.order === "newest" ? "oldest" : "newest", offsets: starts, queue: null, timestamp_ms: null };
  const before = await get(request.path, other, page.signal);
  const at = before.queues.map((/** @type {any} */ queue) => `${queue.queue}:${queue.next_offset}`).join(",");
  page.go(before.more ? { at, offset: null, time: null } : { at: null, offset: null, time: null });
}

/** Say what became of an offset or a time outside of the queue. @param {Record<string, string>} query @param {any} reply */
function seekNote(query, reply) {
  if (query.at || query.offset === undefined || query.queue === undefined) return null;
  const queue = reply.queues.find((/** @type {any} */ each) => String(each.queue) === query.queue);
  const offset = BigInt(query.offset);
  if (queue.min_offset === queue.max_offset) return box("info", `Queue ${queue.queue} has no messages.`, `The next message gets offset ${number(queue.max_offset)}.`);
  if (offset < BigInt(queue.min_offset)) return box("info", `Offset ${query.offset} was deleted by retention.`, `The first message that is kept has offset ${number(queue.min_offset)}.`);
  if (offset >= BigInt(queue.max_offset)) return box("info", `Offset ${query.offset} is not written yet.`, `The last message has offset ${number(queue.max_offset - 1)}.`);
  return null;
}

/** @param {any} reply */
function notes(reply) {
  return (reply.skipped ?? []).map((/** @type {any} */ lost) =>
    box("warn", `Queue ${lost.queue}: offsets ${number(lost.start_offset)} to ${number(lost.end_offset - 1)} cannot be read (${lost.reason}).`, "See “Overview” for the damage and what to do."));
}

// -- live tail ---------------------------------------------------------------------------------

/** @param {import("../console.js").Page} page */
function liveRequest({ names: [topic], query }) {
  const shared = { from: "latest", tag: query.tag, filter: query.filter };
  return query.queue === undefined ? { path: path`/v1/topics/${topic}/messages`, query: shared } : { path: path`/v1/topics/${topic}/queues/${query.queue}/messages`, query: shared };
}

/** Show messages as they arrive. @param {import("../console.js").Page} page @param {DataTable} table @param {Element} results */
async function follow(page, table, results) {
  /** @type {any[]} */
  let rows = [];
  let count = 0;
  const since = Date.now();
  table.rows = rows;
  const words = () => fill(results, h("p", { class: "live", role: "status" }, `Live: ${counted(count, "message")} in ${duration((Date.now() - since) / 1000)}${count > MOST_LIVE ? `, the last ${MOST_LIVE} are shown` : ""}`));
  words();
  const run = async () => {
    let isDirty = false;
    const draw = () => {
      isDirty = false;
      table.rows = rows;
      words();
    };
    while (!page.signal.aborted) {
      try {
        for await (const { event, data } of events(liveRequest(page), page.signal)) {
          if (event === "problem") throw new Error(data.detail);
          if (event !== "message") continue;
          count += 1;
          rows = [data, ...rows].slice(0, MOST_LIVE);
          if (!isDirty) {
            isDirty = true;
            requestAnimationFrame(draw);
          }
        }
      } catch (error) {
        if (page.signal.aborted) return;
        fill(results, explained(error), h("p", { class: "quiet" }, "The console connects again in two seconds."));
      }
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  };
  run();
}

// -- controls ----------------------------------------------------------------------------------

/** @param {import("../console.js").Page} page @param {any} topic @param {{first: number, last: number} | null} life */
function controls(page, topic, life) {
  const { query } = page;
  const seek = { at: null, live: null };
  const queue = h("select", { "aria-label": "Queue", onchange: () => page.go({ ...seek, queue: queue.value, offset: null }) },
    h("option", { value: "" }, "All queues"),
    topic.queues.map((/** @type {any} */ each) => h("option", { value: each.queue, selected: String(each.queue) === query.queue }, `Queue ${each.queue}: ${number(each.min_offset)} to ${number(each.max_offset)}`)));
  const offset = h("input", { type: "text", inputMode: "numeric", pattern: "[0-9]{1,18}", name: "offset", placeholder: query.queue === undefined && topic.queue_count > 1 ? "choose a queue" : "offset", value: query.offset ?? "", disabled: query.queue === undefined && topic.queue_count > 1, "aria-label": "Offset" });
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ hint) => h("input", { type: "search", name, "aria-label": label, placeholder: hint, value: query[name] ?? "" });
  const key = field("key", "Key", "key");
  const tag = field("tag", "Tags", "tag,tag");
  const filter = field("filter", "Filter", "amount > 10 AND region = 'eu'");
  filter.className = "wide";
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const isSought = offset.value && offset.value !== (query.offset ?? "");
    page.go({ ...seek, key: key.value, tag: tag.value, filter: filter.value, offset: offset.value, ...(offset.value ? { queue: query.queue ?? 0 } : {}), ...(isSought ? { time: null } : {}) });
  };
  const order = query.order === "oldest" ? "oldest" : "newest";
  return h("div", { class: "controls" },
    h("form", { onsubmit: submit, class: "row" }, queue, offset, key, tag, filter, h("button", { class: "primary" }, "Show"),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: order === "oldest", onchange: () => page.go({ ...seek, order: order === "oldest" ? null : "oldest" }) }), "oldest first"),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: Boolean(query.live), disabled: Boolean(query.key), onchange: () => page.go({ at: null, offset: null, time: null, live: query.live ? null : 1 }) }), "live")),
    life && life.last > life.first && slider(page, life));
}

/** Return the slider over the life of a topic. @param {import("../console.js").Page} page @param {{first: number, last: number}} life */
function slider(page, { first, last }) {
  const chosen = page.query.time ? Math.min(Math.max(Number(page.query.time), first), last) : page.query.order === "oldest" ? first : last;
  const label = h("output", null, `${time(chosen)}, ${ago(chosen)}`);
  // The slider has at most 10,000 steps, and its ends are exactly the first and the last message.
  const steps = Math.min(last - first, 10000);
  const at = (/** @type {string} */ value) => (Number(value) >= steps ? last : Math.round(first + (Number(value) / steps) * (last - first)));
  const range = h("input", {
    type: "range", min: "0", max: String(steps), step: "1", "aria-label": "Time",
    oninput: () => fill(label, `${time(at(range.value))}, ${ago(at(range.value))}`),
    onchange: () => page.go({ time: at(range.value), at: null, offset: null, live: null, key: null }),
  });
  range.value = String(Math.round(((chosen - first) / (last - first)) * steps));
  range.setAttribute("aria-valuetext", time(chosen));
  const exact = h("input", { type: "datetime-local", step: "0.001", "aria-label": "Exact time", onchange: () => exact.value && page.go({ time: new Date(exact.value).getTime(), at: null, offset: null, live: null, key: null }) });
  return h("div", { class: "slider" }, h("span", { class: "quiet" }, time(first)), range, h("span", { class: "quiet" }, time(last)), label, exact);
}

// -- code --------------------------------------------------------------------------------------

/** @param {import("../console.js").Page} page */
function code(page) {
  const { names: [topic], query } = page;
  /** @type {Record<string, string>} */
  const options = { topic };
  if (query.queue !== undefined) options.assign = JSON.stringify({ [topic]: [Number(query.queue)] });
  const isOldest = query.order === "oldest";
  if (query.at || query.offset !== undefined) {
    const pairs = query.at ? query.at.split(",").map((pair) => pair.split(":")) : [[query.queue ?? "0", String(BigInt(query.offset) + (isOldest ? 0n : 1n))]];
    options[isOldest ? "startingOffsets" : "endingOffsets"] = `{${pairs.map(([queue, offset]) => `"${queue}": ${offset}`).join(", ")}}`;
    if (!query.at) options.assign = JSON.stringify({ [topic]: [Number(query.queue ?? 0)] });
  } else if (query.time) options[isOldest ? "startingTimestamp" : "endingTimestamp"] = isOldest ? query.time : String(Number(query.time) + 1);
  if (query.tag) options.tag = query.tag;
  if (query.filter) options.filter = query.filter;
  let read = spark(options);
  if (query.key) read = read.replace("rows.show()", `rows.where(rows.key == ${py(query.key)}).orderBy(rows.store_timestamp.desc()).show(${PAGE})`);
  else read = read.replace("rows.show()", `rows.orderBy(rows.store_timestamp${isOldest ? "" : ".desc()"}).show(${PAGE})`);
  /** @type {{python?: string, spark: string}} */
  const found = { spark: read };
  if (query.key) found.python = pythonClient(`for message in client.search(${py(topic)}, ${py(query.key)}, limit=${PAGE}):\n    print(message.queue, message.offset, message.body)`);
  return found;
}
