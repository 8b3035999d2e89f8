// @ts-check
/** Who the caller is and what the token grants; all tokens, without secrets, and the audit log. */

import { ApiError, get } from "../api.js";
import { append, h } from "../dom.js";
import { time } from "../format.js";
import { DataTable, asCode, box, facts, heading } from "../parts.js";

/** @type {Record<string, string>} */
const MEANS = {
  publish: "send messages",
  consume: "read messages; with groups: receive, settle, store offsets",
  admin: "create, change and delete",
  operate: "see the overview, metrics and connections",
};

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const request = { path: "/v1/access" };
  const access = await get(request.path, {}, page.signal);
  const table = DataTable.of({
    label: "Grants", key: (row) => row, empty: "No grants.",
    columns: [{ title: "Grant", cell: (row) => h("code", null, row), class: "name" }, { title: "Allows to", cell: (row) => MEANS[row.split(":")[0]] ?? "", class: "name" }],
  });
  table.rows = access.grants;
  const more = h("div");
  await showEverything(more, page);
  return h("div", null, heading("Access"),
    access.authentication ? null : box("info", "This broker asks for no token: every program on its machine may do everything.", page.session.may_write ? "The console may write: [console] writable is on." : "The console is read-only, as a guard against slips. Set [console] writable to change things here."),
    facts([["Caller", access.principal], ["Expires", access.expires_ms === null ? "never" : time(access.expires_ms)]]), table,
    h("p", { class: "quiet" }, "Tokens are made on the broker's machine: holdfast token create. Their secrets are never shown."), more, asCode(request));
}

/** Show all tokens and the newest events of the audit log, if the caller may see them.
 * @param {Element} place @param {import("../console.js").Page} page */
async function showEverything(place, page) {
  const tokens = DataTable.of({
    label: "Tokens", key: (row) => row.token_id, mark: (row) => (row.expired ? "warn" : ""), empty: "No tokens.",
    columns: [
      { title: "Token", cell: (row) => [h("code", null, row.token_id), row.expired && h("span", { class: "state-word warn" }, "expired")] },
      { title: "Name", cell: (row) => row.certificate ?? row.name, class: "name" },
      { title: "Grants", cell: (row) => row.grants.join(" "), class: "name" },
      { title: "Created", cell: (row) => time(row.created_ms), class: "when" },
      { title: "Expires", cell: (row) => (row.expires_ms === null ? "never" : time(row.expires_ms)), class: "when" },
    ],
  });
  const events = DataTable.of({
    label: "Audit log", key: (row) => row.key, empty: "No events.", mark: (row) => (row.outcome === "done" ? "" : "warn"),
    columns: [
      { title: "Time", cell: (row) => time(Date.parse(row.time)), class: "when" },
      { title: "Act", cell: (row) => row.act },
      { title: "On", cell: (row) => row.object, class: "name" },
      { title: "Outcome", cell: (row) => h("span", { class: `state-word ${row.outcome === "done" ? "good" : "warn"}` }, row.outcome) },
      { title: "By", cell: (row) => `${row.principal} ${row.client}`, class: "name" },
    ],
  });
  try {
    await page.every(10000, async () => {
      const [listed, audit] = await Promise.all([get("/v1/access/tokens", {}, page.signal), get("/v1/access/audit", { limit: 50 }, page.signal)]);
      tokens.rows = listed.tokens;
      events.rows = audit.events.map((/** @type {any} */ event, /** @type {number} */ index) => ({ ...event, key: `${event.time} ${index}` }));
    });
    append(place, [h("section", null, h("h2", null, "Tokens"), tokens), h("section", null, h("h2", null, "Audit log"), events)]);
  } catch (error) {
    if (!(error instanceof ApiError) || ![401, 403].includes(error.status)) throw error;
    append(place, h("p", { class: "quiet" }, "The list of tokens and the audit log are shown to tokens that grant everything."));
  }
}
