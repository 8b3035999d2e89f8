// @ts-check
/** Publish a message, also one that was published before. */

import { ask, get, path } from "../api.js";
import { fill, h } from "../dom.js";
import { box, actButton, asCode, explained, heading, py, pythonClient } from "../parts.js";

/** @param {import("../console.js").Page} page */
export async function show(page) {
  const { query, signal, session } = page;
  const again = query.again ? await get(path`/v1/messages/${query.again}`, {}, signal) : null;
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ value, more = {}) => h("label", null, label, h("input", { name, value, ...more }));
  const isBinary = again?.body_base64 !== undefined;
  const body = h("textarea", { name: "body", rows: 12, spellcheck: false, value: again?.body ?? again?.body_base64 ?? "", "aria-label": "Body" });
  const code = h("div");
  const result = h("div", { role: "status" });
  // Only the broker may write the properties of dead letters.
  const properties = Object.fromEntries(Object.entries(again?.properties ?? {}).filter(([name]) => !name.startsWith("holdfast-dead-")));
  const form = h("form", {
    oninput: () => showCode(),
    onsubmit: async (/** @type {Event} */ event) => {
      event.preventDefault();
      try {
        const reply = await ask(requestOf(form));
        const [stored] = reply.results;
        const topic = new FormData(form).get("topic");
        fill(result, box("good", "Stored.", h("a", { href: `#${path`/topics/${String(topic)}/messages/${stored.message_id}`}` }, `${topic} ${stored.queue} : ${stored.offset}`), reply.durable ? "It is on the disk." : "The operating system has it."));
      } catch (error) {
        fill(result, explained(error));
      }
    },
  },
  h("div", { class: "fields" },
    field("topic", "Topic", again?.topic ?? query.topic ?? "", { required: true }),
    field("key", "Key", again?.key ?? ""), field("tag", "Tag", again?.tag ?? ""),
    field("queue", "Queue (empty: by the key, or in turn)", "", { inputMode: "numeric", pattern: "[0-9]*" }),
    h("label", { class: "wide" }, "Properties, one a line: name=value", h("textarea", { name: "properties", rows: 3, spellcheck: false, value: Object.entries(properties).map(([name, value]) => `${name}=${value}`).join("\n") })),
    h("label", { class: "wide" }, "Body", body),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "base64", checked: isBinary }), "the body is base64")),
  result, h("div", { class: "buttons" }, actButton(session, "Publish", () => form.requestSubmit(), { class: "primary" })));
  const showCode = () => {
    const request = requestOf(form);
    fill(code, asCode(request, { python: pythonClient(pythonOf(request)) }));
  };
  showCode();
  return h("div", null, heading("Publish", null, again ? "The same message again: a new message at the end of its queue." : null), form, code);
}

/** @param {HTMLFormElement} form */
function requestOf(form) {
  const data = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]));
  /** @type {any} */
  const message = data.base64 ? { body_base64: data.body.trim() } : { body: data.body };
  for (const name of ["key", "tag"]) if (data[name]) message[name] = data[name];
  if (data.queue) message.queue = Number(data.queue);
  const lines = data.properties.split("\n").filter((line) => line.trim());
  if (lines.length) message.properties = Object.fromEntries(lines.map((line) => [line.split("=")[0].trim(), line.slice(line.indexOf("=") + 1)]));
  return { method: "POST", path: path`/v1/topics/${data.topic}/messages`, body: message };
}

/** @param {any} request */
function pythonOf({ path: where, body: { body, body_base64: base64, ...more } }) {
  const topic = decodeURIComponent(where.split("/")[3]);
  const content = base64 === undefined ? `${py(body)}.encode()` : `__import__("base64").b64decode(${py(base64)})`;
  return `print(client.publish(${[py(topic), content, ...Object.entries(more).map(([name, value]) => `${name}=${py(value)}`)].join(", ")}))`;
}
