// @ts-check
/** The dead letters of a group: why, how often, from where; redrive or discard some or all. */

import { ask, get, path } from "../api.js";
import { fill, h, notify } from "../dom.js";
import { counted, number, time } from "../format.js";
import { DataTable, actButton, asCode, box, confirmAct, explained, heading, pager, py, pythonClient, spark } from "../parts.js";
import { linkTo, preview } from "./messages.js";

const PAGE = 50;
const PREFIX = "holdfast-dead-";

/** @param {any} row @param {string} name */
const origin = (row, name) => row.properties[PREFIX + name];

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { names: [name], query, signal, session } = page;
  const group = await get(path`/v1/groups/${name}`, {}, signal);
  const dead = query.topic ?? group.config?.dead_letter_topic;
  const title = heading([h("a", { href: `#${path`/groups/${name}`}` }, name), " dead letters"]);
  if (!dead) return h("div", null, title, box("info", "The group has no dead-letter topic.", "Messages that fail max_attempts times, or are rejected, are dropped. Set dead_letter_topic to keep them."));
  const request = { path: path`/v1/topics/${dead}/messages/browse`, query: { order: "newest", filter: `\`${PREFIX}group\` = '${name}'`, unsettled_for: `${name}.redrive`, max_messages: PAGE, offsets: query.at } };
  /** @type {Map<string, any>} */
  const chosen = new Map();
  const table = letterTable(chosen, () => fill(count, chosen.size ? `${counted(chosen.size, "letter")} chosen` : ""));
  const count = h("span", { class: "quiet" });
  const top = h("div");
  const steps = h("div");
  /** @type {any[]} */
  let letters = [];
  const load = async () => {
    const reply = await get(request.path, request.query, signal);
    letters = reply.messages;
    table.rows = letters;
    fill(top, reasons(letters, dead));
    const at = reply.queues.map((/** @type {any} */ queue) => `${queue.queue}:${queue.next_offset}`).join(",");
    fill(steps, pager("Pages of letters", [["Newest", query.at ? page.link({ at: null }) : null], ["Older ›", reply.more ? page.link({ at }) : null]]));
  };
  const act = (/** @type {string} */ verb, /** @type {boolean} */ all) => handle(name, dead, verb, all ? null : [...chosen.values()], async () => {
    chosen.clear();
    fill(count);
    await load();
  });
  await load();
  return h("div", null, title, top,
    h("div", { class: "row" },
      actButton(session, "Redrive chosen…", () => (chosen.size ? act("redrive", false) : notify("Choose letters first.", "bad")), { class: "primary" }),
      actButton(session, "Redrive all…", () => act("redrive", true)),
      actButton(session, "Discard chosen…", () => (chosen.size ? act("discard", false) : notify("Choose letters first.", "bad")), { class: "danger" }),
      actButton(session, "Discard all…", () => act("discard", true), { class: "danger" }), count),
    table, steps,
    asCode(request, {
      python: pythonClient(`for message in client.pull(${py(dead)}, filter=${py(request.query.filter)}):\n    print(message.properties[${py(`${PREFIX}reason`)}], message.body)`),
      spark: spark({ topic: dead, filter: request.query.filter }),
    }));
}

/** @param {Map<string, any>} chosen @param {() => void} changed */
function letterTable(chosen, changed) {
  return DataTable.of({
    label: "Dead letters",
    key: (row) => row.message_id,
    href: linkTo,
    columns: [
      { title: "Choice", cell: (row) => h("input", { type: "checkbox", "aria-label": `Choose letter ${row.offset}`, checked: chosen.has(row.message_id), onchange: (/** @type {any} */ event) => { if (event.target.checked) chosen.set(row.message_id, row); else chosen.delete(row.message_id); changed(); } }), class: "choice" },
      { title: "Died", cell: (row) => h("a", { href: linkTo(row) }, time(row.store_timestamp_ms)), class: "when" },
      { title: "Why", cell: (row) => h("span", { class: "state-word warn" }, origin(row, "reason") ?? "unknown") },
      { title: "Attempts", cell: (row) => origin(row, "attempts") ?? "", class: "number" },
      { title: "From", cell: (row) => (origin(row, "topic") ? h("a", { href: `#${path`/topics/${origin(row, "topic")}/messages`}?queue=${origin(row, "queue")}&order=oldest&offset=${origin(row, "offset")}` }, `${origin(row, "topic")} ${origin(row, "queue")} : ${number(Number(origin(row, "offset")))}`) : "unknown"), class: "name" },
      { title: "Key", cell: (row) => row.key ?? h("span", { class: "quiet" }, "–"), class: "name" },
      { title: "Body", cell: preview, class: "preview" },
    ],
    empty: "No dead letters here. Letters that were redriven are not shown.",
  });
}

/** Say in one line why and from where the letters on the page came. @param {any[]} letters @param {string} dead */
function reasons(letters, dead) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const each of letters) {
    const words = `${origin(each, "reason") ?? "unknown"}, from ${origin(each, "topic") ?? "an unknown topic"}`;
    counts.set(words, (counts.get(words) ?? 0) + 1);
  }
  const sorted = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 5);
  return h("p", { class: "quiet" }, "In ", h("a", { href: `#${path`/topics/${dead}/messages`}` }, dead), sorted.length ? `: ${sorted.map(([words, many]) => `${number(many)} × ${words}`).join("; ")} on this page.` : ".");
}

/** Redrive or discard letters: first a dry run that says what would happen, then the act.
 * @param {string} group @param {string} dead @param {string} verb @param {any[] | null} letters null: all @param {() => Promise<void>} done */
async function handle(group, dead, verb, letters, done) {
  /** @type {any} */
  const body = { dead_letter_topic: dead };
  if (verb === "discard") body.discard = true;
  if (letters) {
    body.offsets = {};
    for (const each of letters) (body.offsets[each.queue] ??= []).push(each.offset);
  }
  const request = { method: "POST", path: path`/v1/groups/${group}/redrive`, body };
  const said = h("div", null, h("p", { class: "quiet" }, "Counting…"));
  ask({ ...request, body: { ...body, dry_run: true } }).then(
    (plan) => fill(said, h("p", null, dryRun(plan, verb)), plan.stuck ? h("p", { class: "warn" }, `${counted(plan.stuck, "letter")} must stay: their topic does not exist any more, or the group does not subscribe to it.`) : null,
      verb === "redrive" ? h("p", { class: "quiet" }, "Each letter becomes a new message at the end of its queue, for every group that reads the topic.") : h("p", { class: "quiet" }, "Discarded letters are never redriven. They stay in the topic until retention deletes them.")),
    (error) => fill(said, explained(error)));
  const title = verb === "redrive" ? "Redrive dead letters" : "Discard dead letters";
  let more = false;
  const act = async () => {
    const reply = await ask(request);
    more = reply.more;
    notify(`${counted(reply.discarded ?? reply.redriven, "letter")} ${verb === "redrive" ? "redriven" : "discarded"}.`);
  };
  if (await confirmAct(title, said, verb === "redrive" ? "Redrive" : "Discard", act, { danger: verb === "discard" })) {
    if (more) notify("There are more letters: do it again.", "bad");
    await done();
  }
}

/** @param {any} plan @param {string} verb */
function dryRun(plan, verb) {
  const many = plan.discarded ?? plan.redriven;
  if (verb === "discard") return `${counted(many, "letter")} would be discarded${plan.more ? ", and there are more" : ""}.`;
  const to = Object.entries(plan.topics).map(([topic, each]) => `${number(Number(each))} to ${topic}`).join(", ");
  return `${counted(many, "letter")} would be redriven${to ? `: ${to}` : ""}${plan.more ? "; there are more" : ""}.`;
}
