// @ts-check
/** Numbers, sizes, times and durations as text. Pure. */

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** @param {number} value */
export const number = (value) => NUMBER.format(value);

/** Return "1 message", "2 messages". @param {number} count @param {string} one @param {string} [many] */
export const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** Return a size with a binary unit. @param {number} size */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${SHORT.format(size)} ${units[unit]}`;
}

/** Return a rate per second with at most three digits. @param {number} perSecond */
export const rate = (perSecond) =>
  `${perSecond >= 100 ? number(Math.round(perSecond)) : SHORT.format(perSecond)}/s`;

/** Return a duration in its two largest units: "3 d 4 h", "12 s", "40 ms". @param {number} seconds */
export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${SHORT.format(seconds)} s`;
  let left = Math.round(seconds);
  /** @type {[string, number][]} */
  const units = [["y", 31536000], ["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const parts = [];
  for (const [unit, size] of units) {
    if (left >= size) {
      parts.push(`${NUMBER.format(Math.floor(left / size))} ${unit}`);
      left %= size;
      if (parts.length === 2) break;
    } else if (parts.length) break;
  }
  return parts.join(" ") || "0 s";
}

/** Return a local time with milliseconds. @param {number} ms */
export function time(ms) {
  const date = new Date(ms);
  /** @param {number} value @param {number} width */
  const pad = (value, width = 2) => String(value).padStart(width, "0");
  return (
    `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.` +
    pad(date.getMilliseconds(), 3)
  );
}

/** Return how long ago a time was. @param {number} ms @param {number} [now] */
export function ago(ms, now = Date.now()) {
  const seconds = (now - ms) / 1000;
  const words = duration(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds < 0 ? `in ${words}` : seconds < 1 ? "just now" : `${words} ago`;
}

/** Return a retention in words. @param {any} config the `config` of a topic */
export function retention(config) {
  const kept = [];
  if (config.retention_ms) kept.push(`for ${duration(config.retention_ms / 1000)}`);
  if (config.retention_bytes) kept.push(`up to ${bytes(config.retention_bytes)}`);
  return kept.length ? `kept ${kept.join(", ")}` : "kept for ever";
}

/** Return a text of the broker as a sentence. @param {string} text */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

/** Return the bytes of a base64 text. @param {string} text */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Return the body of a message as bytes. @param {any} message */
export const bodyBytes = (message) =>
  message.body_base64 === undefined ? new TextEncoder().encode(message.body) : fromBase64(message.body_base64);

/** Return the parts of a message id: topic id, queue and offset, all in hexadecimal.
 * @param {string} id */
export function splitId(id) {
  return { topic: id.slice(0, 8), queue: parseInt(id.slice(8, 16), 16), offset: BigInt(`0x${id.slice(16)}`) };
}

/** Return the id of the message `step` offsets later in the same queue; null before offset 0.
 * @param {string} id @param {number} step */
export function idAfter(id, step) {
  const offset = splitId(id).offset + BigInt(step);
  return offset < 0n ? null : id.slice(0, 16) + offset.toString(16).toUpperCase().padStart(16, "0");
}
