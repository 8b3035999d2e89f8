// @ts-check
/** The elements that all views share: the table, the pager, the chart, code to copy, confirmations. */

import { ApiError, BASE, token, urlOf } from "./api.js";
import { append, button, copy, dialog, fill, h, notify, svg } from "./dom.js";
import { sentence } from "./format.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {{title: string, cell: (row: any) => Child, class?: string}} Column */
/** @typedef {{label: string, columns: Column[], key: (row: any) => string, href?: (row: any) => string, empty?: Child, mark?: (row: any) => string}} TableOptions */

/**
 * The one table. Set `columns`, then `rows` as often as you like: rows that look the same stay the
 * same elements, so that a refresh keeps the focus and the selection. On a narrow screen each row
 * is a card.
 */
export class DataTable extends HTMLElement {
  /** @type {TableOptions} */
  options = { label: "", columns: [], key: String };
  body = h("tbody");
  caption = h("p", { class: "empty", hidden: true });

  /** @param {TableOptions} options */
  static of(options) {
    const table = /** @type {DataTable} */ (document.createElement("data-table"));
    table.options = options;
    append(table, [
      h("table", { "aria-label": options.label },
        h("thead", null, h("tr", null, options.columns.map((column) => h("th", { scope: "col", class: column.class }, column.title)))),
        table.body),
      table.caption,
    ]);
    return table;
  }

  /** @param {any[]} rows */
  set rows(rows) {
    const { columns, key, href, empty, mark } = this.options;
    const before = new Map([...this.body.children].map((row) => [row.dataset.key, row]));
    const rowElements = rows.map((row) => {
      const element = h("tr", { class: [mark?.(row), href && "link"].filter(Boolean).join(" ") },
        columns.map((/** @type {Column} */ column) => h("td", { class: column.class, "data-title": column.title }, column.cell(row))));
      element.dataset.key = key(row);
      const old = before.get(element.dataset.key);
      if (old?.isEqualNode(element)) return old;
      if (href)
        element.addEventListener("click", (/** @type {MouseEvent} */ event) => {
          const inner = /** @type {Element} */ (event.target).closest("a, button, input, label");
          if (!inner && !String(getSelection())) location.hash = href(row);
        });
      return element;
    });
    this.body.replaceChildren(...rowElements);
    this.caption.hidden = rows.length > 0;
    fill(this.caption, rows.length ? null : (empty ?? "Nothing here."));
  }
}
customElements.define("data-table", DataTable);

/** The one pager. A step is a hash to go to, a function, or null if there is no such page.
 * @param {string} label @param {[string, string | (() => void) | null][]} steps @param {Child} [text] */
export function pager(label, steps, text) {
  return h("div", { class: "pager", role: "group", "aria-label": label },
    steps.map(([title, to]) =>
      button(title, () => (typeof to === "string" ? (location.hash = to) : to?.()), { disabled: to === null })),
    h("span", { class: "quiet" }, text));
}

// -- charts ------------------------------------------------------------------------------------

/** What this page has seen: name -> points. The broker keeps no history. @type {Map<string, [number, number][]>} */
const seen = new Map();
const MOST_POINTS = 300;

/** Add the present value to a series and return the series. @param {string} name @param {number} value */
export function observe(name, value) {
  const points = seen.get(name) ?? [];
  seen.set(name, points);
  if (Date.now() - (points.at(-1)?.[0] ?? 0) >= 500) points.push([Date.now(), value]);
  if (points.length > MOST_POINTS) points.shift();
  return points;
}

/** Add the present value of a counter and return its rates per second. A counter that falls began again.
 * @param {string} name @param {number} total @returns {[number, number][]} */
export function observeRate(name, total) {
  const points = observe(name, total);
  return points.slice(1).map(([at, value], index) => [at, Math.max(value - points[index][1], 0) / ((at - points[index][0]) / 1000)]);
}

/** Return a small line chart with the newest value in words. @param {string} title
 * @param {[number, number][]} points @param {(value: number) => string} show */
export function chart(title, points, show) {
  const last = points.at(-1)?.[1];
  const most = Math.max(...points.map(([, value]) => value), 1e-9);
  const [from, to] = [points[0]?.[0] ?? 0, points.at(-1)?.[0] ?? 1];
  const line = points.map(([at, value]) => `${(((at - from) / (to - from || 1)) * 200).toFixed(1)},${(38 - (value / most) * 36).toFixed(1)}`);
  const picture = svg("svg", { viewBox: "0 0 200 40", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: at most ${show(most)} since this page was opened` });
  if (line.length > 1) {
    picture.append(svg("polygon", { points: `0,40 ${line.join(" ")} 200,40`, class: "area" }));
    picture.append(svg("polyline", { points: line.join(" "), class: "line" }));
  }
  return h("figure", { class: "chart" },
    h("figcaption", null, title, h("strong", null, last === undefined ? "…" : show(last))), picture);
}

// -- code --------------------------------------------------------------------------------------

/** Return text as a word of a shell. @param {string} text */
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** @param {import("./api.js").ApiRequest} request */
function asCurl(request) {
  const parts = ["curl"];
  if (token.get()) parts.push('-H "Authorization: Bearer $HOLDFAST_TOKEN"');
  if (request.body !== undefined) parts.push("--json", shell(JSON.stringify(request.body)));
  if ((request.method ?? "GET") !== (request.body === undefined ? "GET" : "POST")) parts.push("-X", request.method ?? "GET");
  return [...parts, shell(urlOf(request))].join(" ");
}

/** Return a Python literal. @param {unknown} value @returns {string} */
export function py(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(py).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([k, v]) => `${py(k)}: ${py(v)}`).join(", ")}}`;
  return JSON.stringify(value);
}

const broker = () => BASE.href.replace(/\/$/, "");
const withToken = () => (token.get() ? ', token=os.environ["HOLDFAST_TOKEN"]' : "");

/** Return a program for the Python client. @param {string} body lines that use `client` */
export const pythonClient = (body) =>
  `${token.get() ? "import os\n\n" : ""}import holdfast\n\nwith holdfast.Client(${py(broker())}${withToken()}) as client:\n` +
  body.trim().split("\n").map((line) => `    ${line}`).join("\n");

/** Return a program that sends a request of the API that the Python client does not have.
 * @param {import("./api.js").ApiRequest} request */
export function pythonRequest(request) {
  const headers = [];
  if (token.get()) headers.push('"Authorization": "Bearer " + os.environ["HOLDFAST_TOKEN"]');
  if (request.body !== undefined) headers.push('"Content-Type": "application/json"');
  const more = [
    request.body === undefined ? "" : `, data=json.dumps(${py(request.body)}).encode()`,
    headers.length ? `, headers={${headers.join(", ")}}` : "",
    `, method=${py(request.method ?? "GET")}`,
  ].join("");
  return `import json\n${token.get() ? "import os\n" : ""}from urllib.request import Request, urlopen\n\n` +
    `with urlopen(Request(${py(urlOf(request))}${more})) as reply:\n    print(json.load(reply))`;
}

/** Return a Spark read with these options. @param {Record<string, string>} options */
export function spark(options) {
  const all = { url: broker(), ...options };
  const lines = Object.entries(all).map(([name, value]) => `    .option(${py(name)}, ${py(value)})`);
  if (token.get()) lines.splice(1, 0, '    .option("token", os.environ["HOLDFAST_TOKEN"])');
  return `${token.get() ? "import os\n\n" : ""}from holdfast.spark import local_session\n\nspark = local_session()\nrows = (\n    spark.read.format("holdfast")\n${lines.join("\n")}\n    .load()\n)\nrows.show()`;
}

/** Return the "as code" part of a view: what it shows, for a terminal, a program and Spark.
 * @param {import("./api.js").ApiRequest} request @param {{python?: string, spark?: string | null}} [more] */
export function asCode(request, more = {}) {
  const texts = {
    curl: asCurl(request),
    Python: more.python ?? pythonRequest(request),
    Spark: more.spark ?? "# Spark reads messages. This view shows none.\n# See the view of a topic's messages.",
  };
  const shown = h("pre", { tabindex: 0, class: "code" });
  const copying = button("Copy", () => copy(shown.textContent ?? "", "Code"), { class: "small" });
  const choices = tabs("Language", Object.entries(texts).map(([name, text]) => [name, () => fill(shown, text)]), copying);
  return h("details", { class: "as-code" }, h("summary", null, "As curl, Python, Spark"), choices, shown);
}

/** Return a row of tabs; the first is chosen. @param {string} label @param {[string, () => void][]} choices @param {Child} [after] */
export function tabs(label, choices, after) {
  const list = h("div", { class: "tabs", role: "group", "aria-label": label });
  /** @param {number} chosen */
  const choose = (chosen) => {
    buttons.forEach((each, index) => each.setAttribute("aria-pressed", String(index === chosen)));
    choices[chosen][1]();
  };
  const buttons = choices.map(([title], index) => button(title, () => choose(index)));
  append(list, [buttons, after]);
  choose(0);
  return list;
}

// -- words -------------------------------------------------------------------------------------

/** Return the heading of a view. @param {Child} title @param {Child} [actions] @param {Child} [words] */
export const heading = (title, actions, words) =>
  h("div", { class: "heading" }, h("div", null, h("h1", null, title), words && h("p", { class: "quiet" }, words)), h("div", { class: "actions" }, actions));

/** Return a list of names and values. @param {[string, Child][]} pairs */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

/** Return a box with a message and its kind: good, warn, bad or info. @param {string} kind @param {Child} title @param {...Child} text */
export const box = (kind, title, ...text) =>
  h("section", { class: `box ${kind}` }, h("strong", null, title), text.map((each) => h("p", null, each)));

/** Return what an error means for the reader of a view. @param {any} error @returns {Child} */
export function explained(error) {
  const text = sentence(error?.message ?? "");
  if (!(error instanceof ApiError)) return box("bad", "The console has a defect.", String(error));
  if (error.status === 401)
    return box("info", "This broker asks for a token.", "Choose “Token” at the top right and enter one. It stays in this tab.");
  if (error.status === 403)
    return box("info", "The token does not grant this view.", text);
  if (error.type === "recovering")
    return box("warn", "The broker is recovering.", text);
  if (error.type === "draining") return box("warn", "The broker is stopping.", text);
  if (error.status === 404) return box("info", "Nothing is there.", text);
  return box("bad", error.status === 0 ? "The broker does not answer." : `The broker refused this (${error.status} ${error.type}).`, text);
}

/** Ask before an act, and do it. @param {string} title @param {Child} text @param {string} verb
 * @param {() => Promise<unknown>} act @param {{danger?: boolean, typed?: string}} [more] `typed` must be typed to confirm
 * @returns {Promise<boolean>} whether it was done */
export async function confirmAct(title, text, verb, act, more = {}) {
  const done = await dialog(title, (close) => {
    const problem = h("div", { role: "alert" });
    const field = more.typed === undefined ? null : h("input", { "aria-label": `Type ${more.typed} to confirm`, autocomplete: "off", oninput: () => (go.disabled = field.value !== more.typed) });
    const go = h("button", { class: more.danger ? "danger" : "primary", disabled: more.typed !== undefined }, verb);
    const form = h("form", {
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        go.disabled = true;
        try {
          await act();
          close(true);
        } catch (error) {
          fill(problem, explained(error));
          go.disabled = false;
        }
      },
    }, text, field && h("label", null, `Type “${more.typed}” to confirm`, field), problem,
      h("div", { class: "buttons" }, button("Cancel", () => close(null)), go));
    return form;
  });
  return done === true;
}

/** Return a button for an act that changes the broker; if the console is read-only, it says why it is off.
 * @param {any} session @param {string} text @param {() => void} act @param {import("./dom.js").Props} [props] */
export const actButton = (session, text, act, props) =>
  button(text, act, { ...props, ...(session.may_write ? {} : { disabled: true, title: "The console is read-only: set [console] writable, or turn on authentication" }) });

export { notify };
