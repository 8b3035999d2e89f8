// @ts-check
/** Is all well, in words; what to do if not; the disk, the rates, the limits. */

import { ApiError, get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, counted, duration, number, rate, time } from "../format.js";
import { asCode, box, chart, explained, facts, heading, observe, observeRate, pythonClient } from "../parts.js";

/** What ends each alarm. @type {Record<string, string>} */
const REMEDIES = {
  disk: "Free space on the disk; lower the retention of a topic, delete a topic, or set commitlog.max_total_bytes. Publishing continues by itself.",
  memory: "Let fewer requests run at once, or raise max_memory_bytes. Publishing continues by itself.",
  index: "Make room on the disk of the index. The index catches up by itself.",
};
/** What to do about each kind of fault; the broker's own sentence says where it is. @type {Record<string, string>} */
const FAULTS = {
  "no-segment": "Check the disk of the log: the broker tries again twice a second.",
  "index-not-written": "Check the disk of the index: the broker tries again every second.",
  "state-not-written": "Check the disk of the state: topics and offsets cannot change until a commit succeeds.",
  "groups-not-written": "Check the disk of the state: acknowledgements are refused until a commit succeeds.",
  "tokens-unreadable": "Restore the file access/tokens from a backup; the broker goes on with the tokens that it has in memory.",
  "damaged-index": "Restart the broker at a convenient time: the start rebuilds the index from the log.",
  "damaged-groups": "Nothing: the groups continue from their stored offsets, and deliver some messages again.",
};
const DAMAGE = "Reading continues around the damage. Run “holdfast check --live”, restore the file from a backup, or give the messages up with “holdfast repair --accept-loss”.";

/** Return all that is not well, as boxes; the worst first. @param {any} ready @param {any} all @returns {Node[]} */
export function findings(ready, all) {
  const found = [];
  if (ready.read_only) found.push(box("bad", "Nothing can be published until a restart.", ready.read_only, "Check the disk, then restart the broker. Reading continues."));
  for (const [name, why] of Object.entries(ready.alarms)) found.push(box("bad", `Publishing is stopped: the ${name} alarm.`, String(why), REMEDIES[name] ?? "See docs/operations.md."));
  for (const fault of ready.degraded) found.push(box("warn", `Degraded: ${fault.reason}`, fault.detail, FAULTS[fault.reason] ?? DAMAGE));
  if (!all) return found;
  if (all.groups.at_limit.length) found.push(box("warn", `${counted(all.groups.at_limit_count, "group")} at a limit: no new messages are delivered.`, all.groups.at_limit.join(", "), "Members do not settle what they hold, or many messages were returned. See the group."));
  if (all.groups.letters_not_kept) found.push(box("warn", `${counted(all.groups.letters_not_kept, "dead letter")} could not be kept since the start.`, "The log says why; often the group has no dead-letter topic."));
  const fills = fillsIn(all.disk);
  if (fills !== null && fills < 3 * 86400) found.push(box("warn", `The disk is full in ${duration(fills)} at the present rate.`, "Lower the retention of a large topic, set commitlog.max_total_bytes, or enlarge the disk."));
  if (all.event_loop_lag_seconds > 0.25) found.push(box("warn", `The broker answers late: its event loop lags by ${duration(all.event_loop_lag_seconds)}.`, "The processor is busy. See the requests per second, and the filters of held pulls."));
  return found;
}

/** Return after how many seconds the disk alarm is raised at the present rate; null if never. @param {any} disk */
export function fillsIn(disk) {
  return disk.bytes_per_day > 0 ? Math.max(((disk.free_bytes - disk.min_free_bytes) / disk.bytes_per_day) * 86400, 0) : null;
}

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { signal } = page;
  const shown = h("div");
  const words = h("p", { class: "quiet" });
  const request = { path: "/v1/overview" };
  await page.every(2000, async () => {
    const ready = await get("/readyz", {}, signal).catch(phaseOf);
    if (ready.progress) return fill(shown, recovering(ready));
    /** @type {any} */
    let all = null;
    try {
      all = await get(request.path, {}, signal);
    } catch (error) {
      if (!(error instanceof ApiError) || ![401, 403].includes(error.status)) throw error;
      return fill(shown, ...(findings(ready, null).length ? findings(ready, null) : [box("good", "All is well.", "The broker serves every request.")]), explained(error));
    }
    fill(words, `Holdfast ${all.version}, running for ${duration(all.uptime_seconds)}`);
    const found = findings(ready, all);
    fill(shown, found.length ? found : box("good", "All is well.", wellWords(all)), charts(all), figures(all));
  });
  return h("div", null, heading("Overview", null, null), words, shown,
    asCode(request, { python: pythonClient("print(client.status())") }));
}

/** Return the reply of a broker that is not ready. @param {any} error */
function phaseOf(error) {
  if (error instanceof ApiError && error.problem?.phase) return error.problem;
  throw error;
}

/** @param {any} ready */
function recovering({ phase, progress }) {
  if (phase !== "recovering") return box("warn", "The broker is stopping.", "It answers held requests and closes its log.");
  const share = progress.total_bytes ? progress.done_bytes / progress.total_bytes : 0;
  return [box("warn", "The broker is recovering.", `It reads the end of its log again: ${progress.step}, ${bytes(progress.done_bytes)} of ${bytes(progress.total_bytes)}.`), h("progress", { value: share, "aria-label": "Recovery" })];
}

/** @param {any} all */
function wellWords(all) {
  const fills = fillsIn(all.disk);
  const disk = fills === null ? "nothing was written lately" : `at the present ${bytes(all.disk.bytes_per_day)} a day it is full in ${duration(fills)} if retention deletes nothing`;
  return `The broker serves every request. The disk has ${bytes(all.disk.free_bytes)} left; ${disk}.`;
}

/** @param {any} all */
function charts(all) {
  const p99 = (all.sync_p99_seconds ?? null) === null ? [] : observe("sync p99", all.sync_p99_seconds * 1000);
  return h("div", { class: "charts" },
    chart("Messages in", observeRate("messages in", all.messages_in_total), rate),
    chart("Messages out", observeRate("messages out", all.messages_out_total), rate),
    chart("Bytes in", observeRate("bytes in", all.bytes_in_total), (value) => `${bytes(value)}/s`),
    chart("Bytes out", observeRate("bytes out", all.bytes_out_total), (value) => `${bytes(value)}/s`),
    chart("Held pulls", observe("held", all.held_pulls), (value) => number(Math.round(value))),
    chart("Sync, 99 % within", p99, (value) => duration(value / 1000)));
}

/** @param {any} all */
function figures(all) {
  return facts([
    ["Disk left", `${bytes(all.disk.free_bytes)} of ${bytes(all.disk.total_bytes)}`],
    ["Log", bytes(all.disk.log_bytes)],
    ["Written", `${bytes(all.disk.bytes_per_day)} a day`],
    ["Topics", h("a", { href: "#/topics" }, number(all.topics))],
    ["Groups", h("a", { href: "#/groups" }, `${number(all.groups.count)}, ${number(all.groups.in_flight)} messages in flight`)],
    ["Dead letters since the start", number(all.groups.dead_letters)],
    ["Connections", h("a", { href: "#/connections" }, `${number(all.connections)} of HTTP, ${number(all.amqp_connections)} of AMQP`)],
    ["Waiting", `${counted(all.held_pulls, "held pull")}, ${counted(all.groups.waiting, "receive")}`],
    ["Started", time(Date.now() - all.uptime_seconds * 1000)],
  ]);
}
