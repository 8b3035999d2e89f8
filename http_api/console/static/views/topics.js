// @ts-check
/** All topics: how many messages and bytes, how old, how fast, how long they are kept. Create one. */

import { ask, get, inParallel, path } from "../api.js";
import { button, dialog, fill, h, notify } from "../dom.js";
import { ago, bytes, number, rate, retention } from "../format.js";
import { DataTable, actButton, asCode, explained, heading, observeRate, pager, pythonClient } from "../parts.js";
import { nameSearch } from "./groups.js";

const PAGE = 50;

/** Return the sums over the queues of a topic. @param {any} topic */
export function totals(topic) {
  const sum = { messages: 0, bytes: 0, end: 0, newest: 0 };
  for (const queue of topic.queues) {
    sum.messages += queue.max_offset - queue.min_offset;
    sum.bytes += queue.bytes;
    sum.end += queue.max_offset;
    sum.newest = Math.max(sum.newest, queue.newest_timestamp_ms ?? 0);
  }
  return sum;
}

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { query, signal, session } = page;
  const link = (/** @type {any} */ row) => `#${path`/topics/${row.topic}`}`;
  const table = DataTable.of({
    label: "Topics", key: (row) => row.topic, href: link,
    columns: [
      { title: "Topic", cell: (row) => h("a", { href: link(row) }, row.topic), class: "name" },
      { title: "Queues", cell: (row) => number(row.queue_count), class: "number" },
      { title: "Messages", cell: (row) => number(row.sum.messages), class: "number" },
      { title: "Size", cell: (row) => bytes(row.sum.bytes), class: "number" },
      { title: "In", cell: (row) => (row.rate ? rate(row.rate) : h("span", { class: "quiet" }, "–")), class: "number" },
      { title: "Newest", cell: (row) => (row.sum.newest ? ago(row.sum.newest) : h("span", { class: "quiet" }, "–")) },
      { title: "Retention", cell: (row) => retention(row.config) },
      { title: "Acknowledged", cell: (row) => (row.config.durability === "fsync" ? "on the disk" : "in memory") },
    ],
    empty: query.contains ? `No topic has “${query.contains}” in its name.` : "There are no topics yet.",
  });
  const steps = h("div");
  const request = query.contains ? { path: "/v1/names", query: { kind: "topic", contains: query.contains, limit: PAGE, after: query.after } } : { path: "/v1/topics", query: { limit: PAGE, after: query.after } };
  await page.every(5000, async () => {
    const reply = await get(request.path, request.query, signal);
    const names = query.contains ? reply.names : reply.topics.map((/** @type {any} */ each) => each.topic);
    const described = await inParallel(names, (name) => get(path`/v1/topics/${name}`, {}, signal).catch((error) => (error.status === 404 ? null : Promise.reject(error))));
    table.rows = described.filter(Boolean).map((topic) => {
      const sum = totals(topic);
      return { ...topic, sum, rate: observeRate(`topic ${topic.topic}`, sum.end).at(-1)?.[1] ?? 0 };
    });
    fill(steps, pager("Pages of topics", [["First", query.after ? page.link({ after: null }) : null], ["Next ›", reply.next === null ? null : page.link({ after: reply.next })]]));
  });
  return h("div", null, heading("Topics", [nameSearch(page, "topic"), actButton(session, "New topic…", create, { class: "primary" })]), table, steps,
    asCode(request, query.contains ? {} : { python: pythonClient("for topic in client.topics():\n    print(topic.topic, topic.queue_count)") }));
}

/** Return the fields of a topic's settings. @param {any} [topic] null for a new topic */
export function settingsFields(topic) {
  const { config } = topic ?? { config: {} };
  const input = (/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ value, /** @type {any} */ more) => h("label", null, label, h("input", { name, value: value ?? "", ...more }));
  const whole = { inputMode: "numeric", pattern: "[0-9]*" };
  return h("div", { class: "fields" },
    topic ? null : input("topic", "Name", "", { required: true, pattern: "[A-Za-z0-9_.\\-]{1,127}" }),
    input("queues", topic ? "Queues (can only grow)" : "Queues", topic ? topic.queue_count / (config.priority_levels ?? 1) : 4, whole),
    h("label", null, "Acknowledged when", h("select", { name: "durability" }, h("option", { value: "fsync", selected: config.durability !== "written" }, "it is on the disk"), h("option", { value: "written", selected: config.durability === "written" }, "the system has it: faster, lost with the machine"))),
    input("retention_hours", "Keep for hours (empty: for ever)", config.retention_ms ? config.retention_ms / 3600000 : "", { inputMode: "decimal" }),
    input("retention_mib", "Keep at most MiB (empty: no limit)", config.retention_bytes ? config.retention_bytes / 1048576 : "", { inputMode: "decimal" }));
}

/** Return the settings that a form gives. @param {HTMLFormElement} form */
export function settingsOf(form) {
  const data = new FormData(form);
  const scaled = (/** @type {string} */ name, /** @type {number} */ unit) => (data.get(name) ? Math.round(Number(data.get(name)) * unit) : null);
  return { queues: Number(data.get("queues")), durability: data.get("durability"), retention_ms: scaled("retention_hours", 3600000), retention_bytes: scaled("retention_mib", 1048576) };
}

/** Show a form for settings and send it. @param {string} title @param {any} topic @param {(form: HTMLFormElement) => Promise<unknown>} send */
export function settingsDialog(title, topic, send) {
  return dialog(title, (done) => {
    const problem = h("div", { role: "alert" });
    return h("form", {
      onsubmit: async (/** @type {any} */ event) => {
        event.preventDefault();
        try {
          await send(event.target);
          done(true);
        } catch (error) {
          fill(problem, explained(error));
        }
      },
    }, settingsFields(topic), problem, h("div", { class: "buttons" }, button("Cancel", () => done(null)), h("button", { class: "primary" }, topic ? "Change" : "Create")));
  });
}

async function create() {
  let name = "";
  const done = await settingsDialog("New topic", null, (form) => {
    name = String(new FormData(form).get("topic"));
    return ask({ method: "PUT", path: path`/v1/topics/${name}`, body: settingsOf(form) });
  });
  if (done) {
    notify(`Topic ${name} exists.`);
    location.hash = `#${path`/topics/${name}`}`;
  }
}
