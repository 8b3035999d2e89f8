// @ts-check
/** All groups: how far behind each is, and which of them stand still. */

import { get, inParallel, path } from "../api.js";
import { h } from "../dom.js";
import { duration, number } from "../format.js";
import { DataTable, asCode, heading, pager, pythonClient } from "../parts.js";

const PAGE = 50;

/** Return why a group needs attention, in words, with its kind; null if it does not.
 * @param {any} group the description of a group @returns {{kind: "bad" | "warn", title: string, text: string} | null} */
export function judge(group) {
  const { lag_messages: lag, lag_seconds: age } = group;
  if (group.config === undefined) {
    if (lag && age > 300) return { kind: "warn", title: "It has not read for a while", text: `The oldest message that it has not read is ${duration(age)} old. Its reader may be stopped: a group of this kind stores the offset that its reader commits.` };
    return null;
  }
  const waiting = group.members.reduce((/** @type {number} */ sum, /** @type {any} */ member) => sum + member.waiting, 0);
  if (group.in_flight >= group.config.max_in_flight)
    return { kind: "bad", title: "It delivers nothing new: too many messages are in flight", text: `${number(group.in_flight)} messages are leased and not settled; max_in_flight is ${number(group.config.max_in_flight)}. Members may have stopped settling, or the limit is too small.` };
  if (lag && !group.members.length && age > 30)
    return { kind: "bad", title: "It stands still: it has no members", text: `${number(lag)} messages wait, the oldest for ${duration(age)}, and no member asks for them. Start its consumers.` };
  if (group.available && !waiting && !group.in_flight && age > 30)
    return { kind: "bad", title: "It stands still: no member asks for messages", text: `${number(group.available)} messages are available, the oldest is ${duration(age)} old, and its members neither wait nor hold messages. The consumers may hang.` };
  if (!group.available && group.in_flight && age > Math.max(4 * group.config.lease_ms / 1000, 120))
    return { kind: "warn", title: "Its members are slow", text: `All that is left is with its members. The oldest unsettled message is ${duration(age)} old.` };
  return null;
}

/** Return the sums over the queues of a group. @param {any} group */
export function sums(group) {
  const total = { delayed: 0, dead: 0, expired: 0, lost: 0, superseded: 0, rate: 0 };
  for (const topic of group.topics) {
    total.rate += topic.served?.rate ?? 0;
    for (const queue of topic.queues) for (const name of /** @type {const} */ (["delayed", "dead", "expired", "lost", "superseded"])) total[name] += queue[name] ?? 0;
  }
  return total;
}

/** Return a count, unobtrusive if it is 0. @param {number | undefined} count @param {string} [kind] */
export const count = (count, kind = "") => (count === undefined ? h("span", { class: "quiet" }, "–") : h("span", { class: count ? kind : "quiet" }, number(count)));

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { query, signal } = page;
  const table = DataTable.of({
    label: "Groups",
    key: (row) => row.group,
    href: (row) => `#${path`/groups/${row.group}`}`,
    mark: (row) => row.found?.kind ?? "",
    columns: [
      { title: "Group", cell: (row) => [h("a", { href: `#${path`/groups/${row.group}`}` }, row.group), row.found && h("span", { class: `state-word ${row.found.kind}` }, row.found.title)], class: "name" },
      { title: "Kind", cell: (row) => (row.config ? `${row.config.mode.replace("_", " ")}${row.config.last_value ? ", last value" : ""}` : "stores offsets") },
      { title: "Topics", cell: (row) => number(row.topics.length), class: "number" },
      { title: "Behind", cell: (row) => count(row.lag_messages), class: "number" },
      { title: "Oldest", cell: (row) => (row.lag_seconds ? duration(row.lag_seconds) : h("span", { class: "quiet" }, "–")), class: "number" },
      { title: "In flight", cell: (row) => count(row.in_flight), class: "number" },
      { title: "Delayed", cell: (row) => count(row.config && row.sums.delayed), class: "number" },
      { title: "Dead", cell: (row) => (row.config && row.sums.dead ? h("a", { href: `#${path`/groups/${row.group}/letters`}`, class: "warn" }, number(row.sums.dead)) : count(row.config && 0)), class: "number" },
      { title: "Members", cell: (row) => count(row.members?.length), class: "number" },
    ],
    empty: query.contains ? `No group has “${query.contains}” in its name.` : "There are no groups. A consumer creates one: client.consume(topic, group=…).",
  });
  const steps = h("div");
  const request = query.contains ? { path: "/v1/names", query: { kind: "group", contains: query.contains, limit: PAGE, after: query.after } } : { path: "/v1/groups", query: { limit: PAGE, after: query.after } };
  await page.every(10000, async () => {
    const reply = await get(request.path, request.query, signal);
    const names = query.contains ? reply.names : reply.groups.map((/** @type {any} */ each) => each.group);
    const described = await inParallel(names, (name) => get(path`/v1/groups/${name}`, {}, signal).catch((error) => (error.status === 404 ? null : Promise.reject(error))), 2);
    table.rows = described.filter(Boolean).map((group) => ({ ...group, sums: sums(group), found: judge(group) }));
    steps.replaceChildren(pager("Pages of groups", [["First", query.after ? page.link({ after: null }) : null], ["Next ›", reply.next === null ? null : page.link({ after: reply.next })]]));
  });
  return h("div", null, heading("Groups", nameSearch(page, "group")), table, steps, asCode(request, query.contains ? {} : { python: pythonClient("for group in client.groups():\n    print(group.group, group.lag_messages)") }));
}

/** Return a field that searches names. @param {import("../console.js").Page} page @param {string} what */
export function nameSearch(page, what) {
  const field = h("input", { type: "search", placeholder: "part of the name", "aria-label": `Part of the ${what}'s name`, value: page.query.contains ?? "" });
  return h("form", { class: "row", role: "search", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); page.go({ contains: field.value.trim(), after: null }); } }, field, h("button", null, "Search"));
}
