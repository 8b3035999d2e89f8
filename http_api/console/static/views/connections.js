// @ts-check
/** Who is connected, over HTTP and AMQP; which clients are held back. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, counted, duration, number } from "../format.js";
import { DataTable, asCode, facts, heading, pager } from "../parts.js";

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { query, signal } = page;
  const request = { path: "/v1/connections", query: { limit: 50, after: query.after } };
  const top = h("div");
  const steps = h("div");
  const table = DataTable.of({
    label: "Connections", key: (row) => String(row.id), mark: (row) => (row.throttled ? "warn" : ""),
    columns: [
      { title: "Client", cell: (row) => row.client, class: "name" },
      { title: "Caller", cell: (row) => row.principal ?? h("span", { class: "quiet" }, "not known yet") },
      { title: "Protocol", cell: (row) => row.protocol },
      { title: "Open for", cell: (row) => duration(row.open_seconds), class: "number" },
      { title: "Now", cell: (row) => [row.state, row.throttled && h("span", { class: "state-word warn" }, "held back")] },
      { title: "Not read yet", cell: (row) => (row.unsent_bytes ? bytes(row.unsent_bytes) : h("span", { class: "quiet" }, "–")), class: "number" },
      { title: "Sessions", cell: (row) => (row.sessions === undefined ? "" : number(row.sessions)), class: "number" },
      { title: "Links", cell: (row) => (row.links === undefined ? "" : number(row.links)), class: "number" },
    ],
    empty: "No connections.",
  });
  await page.every(3000, async () => {
    const reply = await get(request.path, request.query, signal);
    table.rows = reply.connections;
    fill(top, facts([["Open", counted(reply.count, "connection")], ["Held back", counted(reply.throttled, "client")]]));
    fill(steps, pager("Pages of connections", [["First", query.after ? page.link({ after: null }) : null], ["Next ›", reply.next === null ? null : page.link({ after: reply.next })]]));
  });
  return h("div", null, heading("Connections", null, "A client is held back while it is above a rate limit, or does not read its replies."), top, table, steps, asCode(request));
}
