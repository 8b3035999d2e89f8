// @ts-check
/** Who the caller is and what the token grants. */

import { get } from "../api.js";
import { h } from "../dom.js";
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
    columns: [{ title: "Grant", cell: (row) => h("code", null, row), class: "name" }, { title: "Allows to", cell: (row) => MEANS[row.split(":")[0]] ?? "" }],
  });
  table.rows = access.grants;
  return h("div", null, heading("Access"),
    access.authentication ? null : box("info", "This broker asks for no token: every program on its machine may do everything.", page.session.may_write ? "The console may write: [console] writable is on." : "The console is read-only, as a guard against slips. Set [console] writable to change things here."),
    facts([["Caller", access.principal], ["Expires", access.expires_ms === null ? "never" : time(access.expires_ms)]]), table,
    h("p", { class: "quiet" }, "Tokens are made on the broker's machine: holdfast token create. Their secrets are never shown."), asCode(request));
}
