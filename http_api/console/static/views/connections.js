// @ts-check
/** Who is connected, over HTTP and AMQP, with sessions and links; which clients are held back. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, counted, duration } from "../format.js";
import { DataTable, asCode, box, heading, pager } from "../parts.js";
import { count } from "./groups.js";

const SESSIONS = 20;

/** @param {number} size */
const size = (size) => (size ? bytes(size) : h("span", { class: "quiet" }, "–"));

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { query, signal } = page;
  const request = { path: "/v1/connections", query: { limit: 50, after: query.after } };
  const top = h("div");
  const steps = h("div");
  const table = DataTable.of({
    label: "Clients", key: (row) => row.client,
    columns: [
      { title: "Client", cell: (row) => (row.amqp_sessions ? h("a", { href: page.link({ client: row.client, session: null }) }, row.client) : row.client), class: "name" },
      { title: "HTTP", cell: (row) => count(row.http), class: "number" },
      { title: "AMQP", cell: (row) => count(row.amqp), class: "number" },
      { title: "Sessions", cell: (row) => count(row.amqp_sessions), class: "number" },
      { title: "Links", cell: (row) => count(row.amqp_links), class: "number" },
      { title: "Unread replies", cell: (row) => size(row.unsent_bytes), class: "number" },
      { title: "Requests held", cell: (row) => size(row.arriving_bytes), class: "number" },
    ],
    empty: "No client is connected.",
  });
  await page.every(3000, async () => {
    const reply = await get(request.path, request.query, signal);
    table.rows = reply.clients;
    fill(top, reply.held_back.length
      ? box("warn", `${counted(reply.held_back.length, "client")} held back by a rate limit.`, ...reply.held_back.map((/** @type {any} */ each) => `${each.client}: its ${each.limit} wait for ${duration(each.wait_seconds)}.`))
      : h("p", { class: "quiet" }, "No client is held back by a rate limit."));
    fill(steps, pager("Pages of clients", [["First", query.after ? page.link({ after: null }) : null], ["Next ›", reply.next === null ? null : page.link({ after: reply.next })]]));
  });
  return h("div", null, heading("Connections"), top, table, steps, await sessions(page), asCode(request));
}

/** Show the sessions of AMQP, a row for each link. @param {import("../console.js").Page} page */
async function sessions(page) {
  const { query, signal } = page;
  const request = { path: "/v1/connections/sessions", query: { limit: SESSIONS, client: query.client, after: query.session } };
  const quiet = (/** @type {string} */ text) => h("span", { class: "quiet" }, text);
  const table = DataTable.of({
    label: "AMQP sessions and links", key: (row) => row.key,
    columns: [
      { title: "Container", cell: ({ session }) => h("a", { href: page.link({ client: session.client, session: null }) }, session.container_id || "without a name"), class: "name" },
      { title: "Session", cell: ({ session }) => `${session.connection} : ${session.channel}`, class: "number" },
      { title: "Link", cell: ({ link, left }) => link?.name ?? quiet(left ? `and ${counted(left, "further link")}` : "no link"), class: "name" },
      { title: "Address", cell: ({ link }) => link?.address ?? quiet("–"), class: "name" },
      { title: "The client", cell: ({ link }) => link && (link.attached ? { sender: "sends", receiver: "receives" }[/** @type {"sender" | "receiver"} */ (link.role)] : "is attaching or detaching") },
      { title: "Credit", cell: ({ link }) => link && [count(link.credit), link.draining && " (drain)"], class: "number" },
      { title: "Available", cell: ({ link }) => link && count(link.available ?? undefined), class: "number" },
      { title: "Window in", cell: ({ session }) => count(session.window_in), class: "number" },
      { title: "Window out", cell: ({ session }) => count(session.window_out), class: "number" },
      { title: "Unsettled in", cell: ({ session }) => count(session.unsettled_in), class: "number" },
      { title: "Unsettled out", cell: ({ session }) => count(session.unsettled_out), class: "number" },
    ],
    empty: query.client ? `${query.client} has no session of AMQP.` : "There is no session of AMQP.",
  });
  const steps = h("div");
  await page.every(3000, async () => {
    const reply = await get(request.path, request.query, signal);
    table.rows = reply.sessions.flatMap(rowsOf);
    fill(steps, (query.session || reply.next) && pager("Pages of sessions", [["First", query.session ? page.link({ session: null }) : null], ["Next ›", reply.next === null ? null : page.link({ session: reply.next })]]));
  });
  return h("section", null, h("h2", null, query.client ? `AMQP sessions and links of ${query.client}` : "AMQP sessions and links"),
    query.client && h("p", null, h("a", { href: page.link({ client: null, session: null }) }, "Of all clients")),
    table, steps, asCode(request));
}

/** Return a row for each link, and one for what is not in a session's list. @param {any} session */
function rowsOf(session) {
  const place = `${session.connection}:${session.channel}`;
  const rows = session.links.map((/** @type {any} */ link) => ({ key: `${place} ${link.role} ${link.name}`, session, link }));
  const left = session.link_count - session.links.length;
  return left || !rows.length ? [...rows, { key: place, session, left }] : rows;
}
