// @ts-check
/** The shell: finds the view of the address, runs it, and shows the state of the broker and the token. */

import { ApiError, get, session, token } from "./api.js";
import { button, dialog, fill, h } from "./dom.js";
import { explained } from "./parts.js";
import * as access from "./views/access.js";
import * as connections from "./views/connections.js";
import * as find from "./views/find.js";
import * as group from "./views/group.js";
import * as groups from "./views/groups.js";
import * as letters from "./views/letters.js";
import * as message from "./views/message.js";
import * as messages from "./views/messages.js";
import * as overview from "./views/overview.js";
import * as publish from "./views/publish.js";
import * as topic from "./views/topic.js";
import * as topics from "./views/topics.js";

/**
 * What a view gets. `every` calls a function now and then again after each pause, as long as the
 * view is shown and the tab is visible; `go` changes the query of the address.
 * @typedef {{
 *   names: string[], query: Record<string, string>, signal: AbortSignal, session: any,
 *   every: (pauseMs: number, work: () => Promise<void>) => Promise<void>,
 *   go: (changes: Record<string, string | number | null>) => void,
 *   link: (changes: Record<string, string | number | null>) => string,
 * }} Page
 */

/** @type {[RegExp, {show: (page: Page) => Promise<Node>}, string][]} */
const VIEWS = [
  [/^\/?$/, overview, "Overview"],
  [/^\/topics$/, topics, "Topics"],
  [/^\/topics\/([^/]+)$/, topic, "Topics"],
  [/^\/topics\/([^/]+)\/messages$/, messages, "Topics"],
  [/^\/topics\/([^/]+)\/messages\/([0-9A-Fa-f]{32})$/, message, "Topics"],
  [/^\/groups$/, groups, "Groups"],
  [/^\/groups\/([^/]+)$/, group, "Groups"],
  [/^\/groups\/([^/]+)\/letters$/, letters, "Groups"],
  [/^\/find$/, find, "Find"],
  [/^\/publish$/, publish, "Publish"],
  [/^\/connections$/, connections, "Connections"],
  [/^\/access$/, access, "Access"],
];
const NAVIGATION = [["Overview", "#/"], ["Topics", "#/topics"], ["Groups", "#/groups"], ["Find", "#/find"], ["Publish", "#/publish"], ["Connections", "#/connections"], ["Access", "#/access"]];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
let running = new AbortController();

async function navigate() {
  running.abort();
  const mine = (running = new AbortController());
  const place = location.hash;
  const [path, search = ""] = place.slice(1).split("?");
  const found = VIEWS.map(([pattern, view, name]) => ({ match: pattern.exec(path), view, name })).find((each) => each.match);
  markCurrent(found?.name ?? "");
  main.setAttribute("aria-busy", "true");
  try {
    if (!found?.match) throw new ApiError(404, { detail: `The console has no view ${path}.` });
    const page = await pageOf(found.match.slice(1).map(decodeURIComponent), Object.fromEntries(new URLSearchParams(search)), path, mine);
    document.title = [...page.names.slice(0, 1), found.name, "Holdfast"].join(" · ");
    const node = await found.view.show(page);
    if (!mine.signal.aborted) fill(main, node);
  } catch (error) {
    if (!mine.signal.aborted) fill(main, h("h1", null, found?.name ?? "Nothing here"), explained(error));
  } finally {
    if (!mine.signal.aborted) {
      main.removeAttribute("aria-busy");
      main.dataset.place = place;
    }
  }
}

/** @param {string[]} names @param {Record<string, string>} query @param {string} path @param {AbortController} mine @returns {Promise<Page>} */
async function pageOf(names, query, path, mine) {
  const link = (/** @type {Record<string, string | number | null>} */ changes) => {
    const next = Object.entries({ ...query, ...changes }).filter(([, value]) => value !== null && value !== "");
    return `#${path}${next.length ? `?${new URLSearchParams(next.map(([name, value]) => [name, String(value)]))}` : ""}`;
  };
  return {
    names, query, signal: mine.signal, session: await session.get(), link,
    go: (changes) => {
      location.hash = link(changes);
    },
    every: (pauseMs, work) => repeat(pauseMs, work, mine.signal),
  };
}

/** @param {number} pauseMs @param {() => Promise<void>} work @param {AbortSignal} signal */
async function repeat(pauseMs, work, signal) {
  await work();
  const again = async () => {
    if (signal.aborted) return;
    if (!document.hidden) {
      try {
        await work();
        showStale(null);
      } catch (error) {
        if (!signal.aborted) showStale(error);
      }
    }
    setTimeout(again, pauseMs);
  };
  setTimeout(again, pauseMs);
}

/** Say that the view is not refreshed any more. @param {any} error */
function showStale(error) {
  const old = document.getElementById("stale");
  if (error === null) return old?.remove();
  const strip = old ?? h("div", { id: "stale", role: "alert" });
  if (!old) main.prepend(strip);
  const since = strip.dataset.since ?? (strip.dataset.since = new Date().toLocaleTimeString());
  fill(strip, `Not refreshed since ${since}. `, error.message);
}

/** @param {string} name */
function markCurrent(name) {
  for (const link of document.querySelectorAll("#nav a"))
    if (link.textContent === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a narrow screen the row of views scrolls
    } else link.removeAttribute("aria-current");
}

// -- header ------------------------------------------------------------------------------------

const state = h("a", { href: "#/", class: "state" }, "…");
const tokenButton = button("Token", askForToken, { class: "small" });

async function showState() {
  try {
    const ready = await get("/readyz");
    const alarms = Object.keys(ready.alarms).length;
    const [kind, text] = ready.read_only ? ["bad", "read-only"] : alarms ? ["bad", "publishing stopped"] : ready.degraded.length ? ["warn", "degraded"] : ["good", "all is well"];
    state.className = `state ${kind}`;
    fill(state, text);
  } catch (error) {
    state.className = "state bad";
    fill(state, error instanceof ApiError && error.type ? error.type : "no answer");
  }
  const { principal } = await session.get();
  fill(tokenButton, token.get() ? (principal ?? "Token refused") : "Token");
  setTimeout(showState, document.hidden ? 20000 : 5000);
}

async function askForToken() {
  await dialog("Token", (done) => {
    const field = h("input", { type: "password", autocomplete: "off", spellcheck: false, value: token.get(), "aria-label": "Token" });
    return h("form", {
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        token.set(field.value.trim());
        done(true);
      },
    },
    h("p", { class: "quiet" }, "The console uses only the rights of this token. The token stays in this tab and is forgotten with it."),
    field,
    h("div", { class: "buttons" }, button("Cancel", () => done(null)), button("Forget", () => { token.set(""); done(true); }), h("button", { class: "primary" }, "Use")));
  });
  fill(tokenButton, "Token");
  session.get().then(({ principal }) => fill(tokenButton, token.get() ? (principal ?? "Token refused") : "Token"));
  navigate();
}

function changeTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(dark === "dark" ? "light" : "dark");
}

/** @param {string | null} theme */
function setTheme(theme) {
  if (!theme) return;
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("holdfast-theme", theme);
}

/** Keys: "/" goes to the search field, "g" and a letter to a view. @param {KeyboardEvent} event */
let previous = "";
function onKey(/** @type {KeyboardEvent} */ event) {
  const target = /** @type {Element} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
  if (event.key === "/") {
    event.preventDefault();
    const field = /** @type {HTMLElement | null} */ (main.querySelector("input[type=search]"));
    if (field) field.focus();
    else location.hash = "#/find";
  } else if (previous === "g") {
    const to = NAVIGATION.find(([name]) => name[0].toLowerCase() === event.key);
    if (to) location.hash = to[1];
  }
  previous = event.key;
}

function start() {
  setTheme(localStorage.getItem("holdfast-theme"));
  fill(/** @type {HTMLElement} */ (document.getElementById("top")), h("a", { href: "#/", class: "brand" }, "Holdfast"), state, h("span", { class: "grow" }), tokenButton, button("Light or dark", changeTheme, { class: "small theme" }));
  fill(/** @type {HTMLElement} */ (document.getElementById("nav")), NAVIGATION.map(([name, href]) => h("a", { href, title: `Keys: g ${name[0].toLowerCase()}` }, name)));
  addEventListener("hashchange", () => {
    navigate().then(() => main.focus({ preventScroll: true }));
  });
  addEventListener("keydown", onKey);
  navigate();
  showState();
}

start();
