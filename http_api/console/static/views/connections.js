// @ts-check
/** Who is connected, over HTTP and AMQP; which clients are held back. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, counted, duration } from "../format.js";
import { DataTable, asCode, box, heading, pager } from "../parts.js";
import { count } from "./groups.js";

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
      { title: "Client", cell: (row) => row.client, class: "name" },
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
  return h("div", null, heading("Connections"), top, table, steps, asCode(request));
}
