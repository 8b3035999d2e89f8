// @ts-check
/** One group: what it is behind, who holds what and since when, who waits; seek and delete. */

import { ask, get, path } from "../api.js";
import { append, fill, h, notify } from "../dom.js";
import { bytes, counted, duration, number, rate, time } from "../format.js";
import { DataTable, actButton, asCode, box, chart, confirmAct, explained, facts, heading, observe, pager, py, pythonClient, spark } from "../parts.js";
import { count, judge, sums } from "./groups.js";

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { names: [name], signal, session } = page;
  const request = { path: path`/v1/groups/${name}` };
  const top = h("div");
  const members = memberTable();
  const leases = h("section");
  let group = await get(request.path, {}, signal);
  const hasLeases = group.config !== undefined;
  const queues = queueTable(group.config?.last_value);
  const letters = group.config?.dead_letter_topic;
  await page.every(4000, async () => {
    group = await get(request.path, {}, signal);
    fill(top, summary(group));
    queues.rows = group.topics.flatMap((/** @type {any} */ topic) => topic.queues.map((/** @type {any} */ queue) => ({ ...queue, topic: topic.topic })));
    if (hasLeases) members.rows = group.members;
  });
  if (hasLeases) await holders(leases, page);
  return h("div", null,
    heading(name, [
      letters && h("a", { class: "button", href: `#${path`/groups/${name}/letters`}` }, "Dead letters"),
      actButton(session, "Seek…", () => seek(page, group)),
      actButton(session, "Delete…", () => remove(name), { class: "danger" }),
    ], hasLeases ? words(group) : "Stores the offsets that its reader commits."),
    top,
    h("section", null, h("h2", null, "Topics and queues"), queues),
    hasLeases && h("section", null, h("h2", null, "Members"), members),
    hasLeases && leases,
    hasLeases && settings(group.config),
    asCode(request, {
      python: pythonClient(`group = client.describe_group(${py(name)})\nprint(group.lag_messages, group.lag_seconds)`),
      spark: group.topics.length ? spark({ topic: group.topics.map((/** @type {any} */ each) => each.topic).join(","), startingOffsets: `group:${name}` }) : null,
    }));
}

/** @param {any} group */
function words({ config }) {
  const mode = { competing: "Its members share the messages.", keyed: "Messages of one key go to one member at a time, in order.", single_active: "One member is served; the next takes over.", exclusive: "Only one member may use it." }[/** @type {string} */ (config.mode)];
  const which = config.last_value ? " Of each key in a queue, only the newest message is delivered." : "";
  return `${mode}${which} A lease lasts ${duration(config.lease_ms / 1000)}; ${config.max_attempts ? `after ${counted(config.max_attempts, "failure")} a message ${config.dead_letter_topic ? `goes to ${config.dead_letter_topic}` : "is dropped"}` : "failed messages are tried without limit"}.`;
}

/** @param {any} group */
function summary(group) {
  const found = judge(group);
  const total = sums(group);
  const lag = observe(`lag ${group.group}`, group.lag_messages);
  return [
    found ? box(found.kind, found.title, found.text) : group.lag_messages ? null : box("good", "It has nothing left to do."),
    h("div", { class: "charts" },
      chart("Behind", lag, (value) => counted(Math.round(value), "message")),
      group.config && chart("Delivered", observe(`served ${group.group}`, total.rate), rate)),
    facts([
      ["Behind", counted(group.lag_messages, "message")],
      ["Log after the last done", bytes(group.lag_bytes)],
      ["Oldest not done", group.lag_seconds ? duration(group.lag_seconds) : "none"],
      ["Available", group.available === undefined ? null : number(group.available)],
      ["In flight", group.in_flight === undefined ? null : number(group.in_flight)],
      ["Delayed", group.config ? number(total.delayed) : null],
      ["Dead", group.config ? number(total.dead) : null],
      ["Expired", group.config ? number(total.expired) : null],
      ["Superseded", group.config?.last_value ? number(total.superseded) : null],
      ["Deleted before delivery", group.config ? number(total.lost) : null],
      ["Waiting requests", group.waiting === undefined ? null : number(group.waiting)],
    ]),
  ];
}

/** @param {boolean} hasSuperseded */
function queueTable(hasSuperseded) {
  return DataTable.of({
    label: "Topics and queues",
    key: (row) => `${row.topic} ${row.queue}`,
    href: (row) => `#${path`/topics/${row.topic}/messages`}?queue=${row.queue}&order=oldest&offset=${row.offset ?? row.min_offset}`,
    columns: [
      { title: "Topic", cell: (row) => h("a", { href: `#${path`/topics/${row.topic}`}` }, row.topic), class: "name" },
      { title: "Queue", cell: (row) => row.queue, class: "number" },
      { title: "Done below", cell: (row) => (row.offset === null ? "nothing stored" : number(row.offset)), class: "number" },
      { title: "Next", cell: (row) => number(row.next ?? row.offset ?? row.min_offset), class: "number" },
      { title: "End", cell: (row) => number(row.max_offset), class: "number" },
      { title: "Behind", cell: (row) => count(row.lag_messages), class: "number" },
      { title: "Oldest", cell: (row) => (row.lag_seconds ? duration(row.lag_seconds) : h("span", { class: "quiet" }, "–")), class: "number" },
      { title: "In flight", cell: (row) => count(row.in_flight), class: "number" },
      { title: "Delayed", cell: (row) => count(row.delayed), class: "number" },
      { title: "Dead", cell: (row) => count(row.dead, "warn"), class: "number" },
      { title: "Expired", cell: (row) => count(row.expired), class: "number" },
      ...(hasSuperseded ? [{ title: "Superseded", cell: (/** @type {any} */ row) => count(row.superseded), class: "number" }] : []),
    ],
    empty: "The group has no topics that exist.",
  });
}

function memberTable() {
  return DataTable.of({
    label: "Members",
    key: (row) => row.member,
    columns: [
      { title: "Member", cell: (row) => row.member || h("span", { class: "quiet" }, "without a name"), class: "name" },
      { title: "Holds", cell: (row) => count(row.in_flight), class: "number" },
      { title: "Waiting requests", cell: (row) => count(row.waiting), class: "number" },
      { title: "Now", cell: (row) => (row.active ? h("span", { class: "state-word good" }, row.in_flight ? "works" : row.waiting ? "waits for messages" : "idle") : h("span", { class: "state-word" }, "stands by")) },
    ],
    empty: "No member. A member appears with its first request.",
  });
}

/** Show who holds what, since when. @param {Element} section @param {import("../console.js").Page} page */
async function holders(section, page) {
  const { names: [name], signal } = page;
  const table = DataTable.of({
    label: "Leased messages",
    key: (row) => row.message_id,
    href: (row) => `#${path`/topics/${row.topic}/messages/${row.message_id}`}`,
    columns: [
      { title: "Message", cell: (row) => h("a", { href: `#${path`/topics/${row.topic}/messages/${row.message_id}`}` }, `${row.topic} ${row.queue} : ${number(row.offset)}`), class: "name" },
      { title: "Member", cell: (row) => row.member || h("span", { class: "quiet" }, "without a name"), class: "name" },
      { title: "Held for", cell: (row) => duration(Math.max(Date.now() - row.delivered_ms, 0) / 1000), class: "number" },
      { title: "Until", cell: (row) => (row.until_ms === null ? "its link ends" : time(row.until_ms)), class: "when" },
      { title: "Delivery", cell: (row) => row.attempt, class: "number" },
    ],
    empty: "No member holds a message.",
  });
  const steps = h("div");
  /** @type {string | null} */
  let after = null;
  const load = async () => {
    const reply = await get(path`/v1/groups/${name}/leases`, { limit: 25, after }, signal);
    table.rows = reply.leases;
    const turn = (/** @type {string | null} */ to) => () => {
      after = to;
      load();
    };
    fill(steps, (after || reply.next) && pager("Pages of leases", [["First", after ? turn(null) : null], ["Next ›", reply.next === null ? null : turn(reply.next)]]));
  };
  append(section, [h("h2", null, "Who holds what"), table, steps]);
  try {
    await page.every(4000, load);
  } catch (error) {
    append(section, explained(error));
  }
}

/** @param {any} config */
function settings(config) {
  const shown = { ...config, topics: undefined };
  const rows = Object.entries(config.topics).map(([topic, each]) => [topic, /** @type {any} */ (each)]);
  return h("details", { class: "settings" }, h("summary", null, "Settings"),
    facts(rows.map(([topic, each]) => [`Topic ${topic}`, `weight ${each.weight}${each.filter ? `, only ${each.filter}` : ""}`])),
    h("pre", { class: "code", tabindex: 0 }, JSON.stringify(shown, null, 2)));
}

// -- seek --------------------------------------------------------------------------------------

/** @param {import("../console.js").Page} page @param {any} group */
async function seek(page, group) {
  const { signal } = page;
  const kind = h("select", { "aria-label": "To", onchange: () => preview() }, [["earliest", "the first kept message"], ["latest", "the end: skip all"], ["time", "a time"], ["offset", "an offset of one queue"]].map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { type: "datetime-local", step: "0.001", "aria-label": "Time", hidden: true, onchange: () => preview() });
  const queue = h("select", { "aria-label": "Queue", hidden: true, onchange: () => preview() }, group.topics.flatMap((/** @type {any} */ topic) => topic.queues.map((/** @type {any} */ each) => h("option", { value: JSON.stringify([topic.topic, each.queue]) }, `${topic.topic} ${each.queue}`))));
  const offset = h("input", { type: "text", inputMode: "numeric", "aria-label": "Offset", hidden: true, placeholder: "offset", oninput: () => preview() });
  const shown = h("div", { class: "scroll" });
  /** @type {{to: any, after: Map<string, number>} | null} */
  let plan = null;
  const preview = async () => {
    at.hidden = kind.value !== "time";
    queue.hidden = offset.hidden = kind.value !== "offset";
    plan = null;
    try {
      plan = await planOf(group, kind.value, { time: at.value, queue: queue.value, offset: offset.value }, signal);
      fill(shown, plan ? beforeAndAfter(group, plan.after) : h("p", { class: "quiet" }, "Choose where to."));
    } catch (error) {
      fill(shown, explained(error));
    }
  };
  preview();
  const text = h("div", null, h("div", { class: "row" }, h("span", null, "Continue at"), kind, at, queue, offset), shown,
    h("p", { class: "quiet" }, "Messages before the new offset count as done; messages from it on are delivered, also those that are done. Receipts of members become stale."));
  const hasLeases = group.config !== undefined;
  const act = async () => {
    if (!plan) throw new Error("Choose where to.");
    if (hasLeases) return ask({ method: "POST", path: path`/v1/groups/${group.group}/seek`, body: { to: plan.to } });
    for (const [topic, offsets] of Object.entries(byTopic(plan.after)))
      await ask({ method: "PUT", path: path`/v1/groups/${group.group}/topics/${topic}/offsets`, body: { offsets } });
  };
  if (await confirmAct(`Seek ${group.group}`, text, "Seek", act)) {
    notify("The group continues there.");
    page.go({ sought: Date.now() });
  }
}

/** Return where each queue goes; null if the choice is not complete. @param {any} group @param {string} kind @param {{time: string, queue: string, offset: string}} given @param {AbortSignal} signal */
async function planOf(group, kind, given, signal) {
  /** @type {Map<string, number>} */
  const after = new Map();
  const queues = group.topics.flatMap((/** @type {any} */ topic) => topic.queues.map((/** @type {any} */ each) => ({ ...each, topic: topic.topic })));
  const clamp = (/** @type {any} */ each, /** @type {number} */ to) => Math.min(Math.max(to, each.min_offset), each.max_offset);
  if (kind === "offset") {
    if (!/^[0-9]{1,15}$/.test(given.offset)) return null;
    const [topic, queue] = JSON.parse(given.queue);
    const each = queues.find((/** @type {any} */ one) => one.topic === topic && one.queue === queue);
    after.set(JSON.stringify([topic, queue]), clamp(each, Number(given.offset)));
    return { to: { [topic]: { [queue]: Number(given.offset) } }, after };
  }
  const ms = kind === "time" ? new Date(given.time).getTime() : 0;
  if (Number.isNaN(ms)) return null;
  for (const each of queues) {
    const to = kind === "earliest" ? each.min_offset : kind === "latest" ? each.max_offset : (await get(path`/v1/topics/${each.topic}/queues/${each.queue}/offset`, { timestamp_ms: ms }, signal)).offset;
    after.set(JSON.stringify([each.topic, each.queue]), to);
  }
  return { to: kind === "time" ? ms : kind, after };
}

/** @param {Map<string, number>} after @returns {Record<string, Record<string, number>>} */
function byTopic(after) {
  /** @type {Record<string, Record<string, number>>} */
  const found = {};
  for (const [key, offset] of after) {
    const [topic, queue] = JSON.parse(key);
    (found[topic] ??= {})[queue] = offset;
  }
  return found;
}

/** @param {any} group @param {Map<string, number>} after */
function beforeAndAfter(group, after) {
  const table = DataTable.of({
    label: "Before and after",
    key: (row) => `${row.topic} ${row.queue}`,
    columns: [
      { title: "Queue", cell: (row) => `${row.topic} ${row.queue}`, class: "name" },
      { title: "Before", cell: (row) => number(row.before), class: "number" },
      { title: "After", cell: (row) => number(row.after), class: "number" },
      { title: "Means", cell: ({ skipped, again }) => (skipped || again ? [skipped && h("span", { class: "warn" }, `${skipped} skipped`), skipped && again && ", ", again && `${again} again`] : h("span", { class: "quiet" }, "no change")) },
    ],
  });
  table.rows = group.topics.flatMap((/** @type {any} */ topic) => topic.queues.filter((/** @type {any} */ queue) => after.has(JSON.stringify([topic.topic, queue.queue])))
    .map((/** @type {any} */ queue) => {
      const to = /** @type {number} */ (after.get(JSON.stringify([topic.topic, queue.queue])));
      return { topic: topic.topic, queue: queue.queue, before: queue.offset ?? queue.min_offset, after: to, ...effectOf(queue, to) };
    }));
  return table;
}

/**
 * Return how many messages a seek skips, and how many done ones are delivered again, as text or null.
 *
 * Between `floor` and `next` some messages are done and the others are open (leased, delayed, returned). Only
 * their numbers are known, so a seek to an offset between the two has bounds.
 * @param {any} queue @param {number} to
 */
function effectOf(queue, to) {
  const floor = Math.max(queue.offset ?? queue.min_offset, queue.min_offset);
  const next = Math.max(queue.next ?? floor, floor);
  const open = Math.min(Math.max(queue.lag_messages - (queue.max_offset - next), 0), next - floor);
  const exactly = (/** @type {number} */ count) => (count > 0 ? number(count) : null);
  if (to <= floor) return { skipped: null, again: exactly(next - to - open) };
  if (to >= next) return { skipped: exactly(open + to - next), again: null };
  const upTo = (/** @type {number} */ count) => (count > 0 ? `up to ${number(count)}` : null);
  return { skipped: upTo(Math.min(open, to - floor)), again: upTo(Math.min(next - floor - open, next - to)) };
}

/** @param {string} name */
async function remove(name) {
  const act = () => ask({ method: "DELETE", path: path`/v1/groups/${name}`, query: { confirm: name } });
  if (await confirmAct(`Delete ${name}?`, "The group forgets which messages are done. Its messages stay in their topics.", "Delete", act, { danger: true, typed: name })) {
    notify(`Group ${name} is deleted.`);
    location.hash = "#/groups";
  }
}
