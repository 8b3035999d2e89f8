// @ts-check
/** One topic: its queues, its settings in words, its readers; change and delete it. */

import { ApiError, ask, get, path } from "../api.js";
import { append, fill, h, notify } from "../dom.js";
import { ago, bytes, counted, number, rate, retention, time } from "../format.js";
import { DataTable, actButton, asCode, chart, confirmAct, facts, heading, observeRate, pager, py, pythonClient, spark } from "../parts.js";
import { settingsDialog, settingsOf, totals } from "./topics.js";

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { names: [name], signal, session } = page;
  const request = { path: path`/v1/topics/${name}` };
  const top = h("div");
  const queues = DataTable.of({
    label: "Queues", key: (row) => String(row.queue),
    href: (row) => `#${path`/topics/${name}/messages`}?queue=${row.queue}`,
    columns: [
      { title: "Queue", cell: (row) => h("a", { href: `#${path`/topics/${name}/messages`}?queue=${row.queue}` }, row.queue) },
      { title: "First", cell: (row) => number(row.min_offset), class: "number" },
      { title: "End", cell: (row) => number(row.max_offset), class: "number" },
      { title: "Messages", cell: (row) => number(row.max_offset - row.min_offset), class: "number" },
      { title: "Size", cell: (row) => bytes(row.bytes), class: "number" },
      { title: "Newest", cell: (row) => (row.newest_timestamp_ms ? h("span", { title: time(row.newest_timestamp_ms) }, ago(row.newest_timestamp_ms)) : h("span", { class: "quiet" }, "no message")) },
    ],
  });
  /** @type {any} */
  let topic;
  await page.every(3000, async () => {
    topic = await get(request.path, {}, signal);
    const sum = totals(topic);
    fill(top, h("div", { class: "charts" }, chart("Messages in", observeRate(`topic ${name}`, sum.end), rate)), facts([
      ["Messages", number(sum.messages)], ["Size", bytes(sum.bytes)], ["Newest", sum.newest ? `${time(sum.newest)}, ${ago(sum.newest)}` : "none"],
      ["Created", time(topic.created_timestamp_ms)],
      ["Kept by readers", topic.read_leases ? `${counted(topic.read_leases.count, "read lease")} until ${time(topic.read_leases.until_ms)}` : null],
    ]));
    queues.rows = topic.queues;
  });
  const readers = h("section", null, h("h2", null, "Readers"));
  await showReaders(readers, name, page);
  return h("div", null,
    heading(name, [
      h("a", { class: "button primary", href: `#${path`/topics/${name}/messages`}` }, "Messages"),
      h("a", { class: "button", href: `#/publish?topic=${encodeURIComponent(name)}` }, "Publish"),
      actButton(session, "Change…", () => change(topic)),
      actButton(session, "Delete…", () => remove(name), { class: "danger" }),
    ], words(topic)), top, h("section", null, h("h2", null, "Queues"), queues), readers,
    asCode(request, { python: pythonClient(`topic = client.describe_topic(${py(name)})\nprint(topic.queues)`), spark: spark({ topic: name }) }));
}

/** @param {any} topic */
function words({ config, queue_count }) {
  const levels = config.priority_levels ? `, in ${counted(config.priority_levels, "priority level")}` : "";
  const most = config.max_bytes ? ` Publishing is refused above ${bytes(config.max_bytes)}.` : "";
  return `${counted(queue_count, "queue")}${levels}; messages are ${retention(config)}. A publish is acknowledged when ${config.durability === "fsync" ? "it is on the disk" : "the operating system has it"}.${most}`;
}

/** Show the groups that read the topic. @param {Element} section @param {string} name @param {import("../console.js").Page} page */
async function showReaders(section, name, page) {
  const table = DataTable.of({
    label: "Readers", key: (row) => row.group, href: (row) => `#${path`/groups/${row.group}`}`,
    columns: [
      { title: "Group", cell: (row) => h("a", { href: `#${path`/groups/${row.group}`}` }, row.group), class: "name" },
      { title: "Kind", cell: (row) => row.mode?.replace("_", " ") ?? "stores offsets" },
      { title: "Behind", cell: (row) => number(row.lag_messages), class: "number" },
    ],
    empty: "No group reads this topic.",
  });
  const steps = h("div");
  append(section, [table, steps]);
  /** @param {string | null} after */
  const load = async (after) => {
    try {
      const reply = await get(path`/v1/topics/${name}/groups`, { limit: 25, after }, page.signal);
      table.rows = reply.groups;
      fill(steps, (after || reply.next) && pager("Pages of readers", [["First", () => load(null)], ["Next ›", reply.next === null ? null : () => load(reply.next)]]));
    } catch (error) {
      if (!(error instanceof ApiError) || ![401, 403].includes(error.status)) throw error;
      fill(steps, h("p", { class: "quiet" }, error.message));
    }
  };
  await load(null);
}

/** @param {any} topic */
async function change(topic) {
  const done = await settingsDialog(`Change ${topic.topic}`, topic, (form) => ask({ method: "PATCH", path: path`/v1/topics/${topic.topic}`, body: settingsOf(form) }));
  if (done) {
    notify("The topic is changed.");
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** @param {string} name */
async function remove(name) {
  const act = () => ask({ method: "DELETE", path: path`/v1/topics/${name}`, query: { confirm: name } });
  if (await confirmAct(`Delete ${name}?`, "All its messages and the offsets that groups have stored for it are gone. This cannot be undone.", "Delete", act, { danger: true, typed: name })) {
    notify(`Topic ${name} is deleted.`);
    location.hash = "#/topics";
  }
}
