// @ts-check
/** The only module that talks to the broker: the public HTTP API, with the token of this tab. */

/** The broker's own URL: the page is at `console/` below it, also behind a proxy. */
export const BASE = new URL("..", document.baseURI.split("#")[0]);

const TOKEN = "holdfast-token";

/** The token of this tab; "" if there is none. It ends with the tab. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  /** @param {string} text */
  set(text) {
    if (text) sessionStorage.setItem(TOKEN, text);
    else sessionStorage.removeItem(TOKEN);
    session.forget();
  },
};

/** @typedef {Record<string, string | number | boolean | null | undefined>} Query */
/** @typedef {{method?: string, path: string, query?: Query, body?: unknown}} ApiRequest */

/** An error reply: `type` is the stable word of the problem, `message` the sentence for people. */
export class ApiError extends Error {
  /** @param {number} status @param {any} problem */
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.type = String(problem.type ?? "").replace("/problems/", "");
    this.problem = problem;
  }
}

/** Return a path with encoded names: path`/v1/topics/${name}`.
 * @param {TemplateStringsArray} texts @param {...(string | number)} names */
export const path = (texts, ...names) => String.raw({ raw: texts }, ...names.map((each) => encodeURIComponent(each)));

/** Return the query string of a request, with its "?"; "" if there is none. @param {Query} [query] */
export function queryString(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** @param {ApiRequest} request */
export const urlOf = (request) => new URL(request.path.slice(1) + queryString(request.query), BASE).href;

/** @param {ApiRequest} request @param {AbortSignal} [signal] @param {string} [accept] */
async function send(request, signal, accept = "application/json") {
  /** @type {Record<string, string>} */
  const headers = { Accept: accept };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (request.body !== undefined) headers["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(urlOf(request), {
      method: request.method ?? "GET",
      headers,
      body: request.body === undefined ? undefined : JSON.stringify(request.body),
      signal,
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { type: "unreachable", detail: "The broker cannot be reached. It may be stopped, or the network is down." });
  }
  if (reply.ok) return reply;
  let problem;
  try {
    problem = await reply.json();
  } catch {
    problem = { detail: `${reply.status} ${reply.statusText}` };
  }
  throw new ApiError(reply.status, problem);
}

/** Send a request and return the decoded reply. @param {ApiRequest} request @param {AbortSignal} [signal]
 * @returns {Promise<any>} */
export async function ask(request, signal) {
  return (await send(request, signal)).json();
}

/** @param {string} path @param {Query} [query] @param {AbortSignal} [signal] */
export const get = (path, query, signal) => ask({ path, query }, signal);

/** Yield the events of a stream until it ends or is aborted. @param {ApiRequest} request @param {AbortSignal} signal
 * @returns {AsyncGenerator<{event: string, data: any}>} */
export async function* events(request, signal) {
  const reply = await send(request, signal, "text/event-stream");
  const reader = /** @type {ReadableStream<Uint8Array>} */ (reply.body).pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      let event = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) yield { event, data: JSON.parse(data.join("\n")) };
    }
  }
}

/** Run `work` on all items, at most `width` at a time, and return the results in order.
 * @template T, R @param {T[]} items @param {(item: T) => Promise<R>} work @param {number} [width] */
export async function inParallel(items, work, width = 4) {
  /** @type {R[]} */
  const results = new Array(items.length);
  let next = 0;
  await Promise.all(
    Array.from({ length: Math.min(width, items.length) }, async () => {
      while (next < items.length) {
        const mine = next++;
        results[mine] = await work(items[mine]);
      }
    }),
  );
  return results;
}

/** Who the caller is, and whether the console may write. Asked once per token. */
export const session = {
  /** @type {Promise<any> | null} */
  _asked: null,
  get() {
    return (session._asked ??= session._ask());
  },
  forget() {
    session._asked = null;
  },
  async _ask() {
    const [settings, access] = await Promise.all([
      get("/console/settings.json").catch(() => ({ writable: false })),
      get("/v1/access").catch((error) => ({ problem: error })),
    ]);
    return { ...access, settings, may_write: access.authentication === true || settings.writable };
  },
};
