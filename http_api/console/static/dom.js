// @ts-check
/** Makes DOM elements. Texts are always text nodes, so no message can inject markup. */

/** @typedef {Node | string | number | null | undefined | false} Leaf */
/** @typedef {Leaf | Leaf[] | (Leaf | Leaf[])[] | any[]} Child */
/** @typedef {Record<string, any>} Props */

/**
 * Return a new element. A prop whose name begins with "on" is a listener, a prop that the element
 * has is set as property, and every other prop becomes an attribute. Props that are null, undefined
 * or false are left out.
 * @param {string} tag @param {Props | null} [props] @param {...Child} children
 * @returns {any} the element; `any`, because its type follows from `tag`
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && !name.includes("-") && name !== "list" && name !== "form")
      /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Append children, also nested lists of children. @param {Node} parent @param {Child} child */
export function append(parent, child) {
  if (Array.isArray(child)) for (const each of child) append(parent, each);
  else if (child instanceof Node) parent.appendChild(child);
  else if (child !== null && child !== undefined && child !== false)
    parent.appendChild(document.createTextNode(String(child)));
}

/** Replace all children of an element. @param {Element} parent @param {...Child} children */
export function fill(parent, ...children) {
  const made = document.createDocumentFragment();
  append(made, children);
  parent.replaceChildren(made);
}

/** Return an SVG element. @param {string} tag @param {Props} props @param {...SVGElement} children */
export function svg(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** Show a short notice at the bottom of the page. @param {string} text @param {"good"|"bad"} [kind] */
export function notify(text, kind = "good") {
  const notice = h("div", { class: `notice ${kind}` }, text);
  document.getElementById("notices")?.append(notice);
  setTimeout(() => notice.remove(), kind === "bad" ? 9000 : 4000);
}

/**
 * Show a modal dialog and return what `fill` resolves, or null if the user closes the dialog.
 * @template T
 * @param {string} title
 * @param {(done: (value: T | null) => void) => Child} content
 * @returns {Promise<T | null>}
 */
export function dialog(title, content) {
  return new Promise((resolve) => {
    /** @param {T | null} value */
    const done = (value) => {
      box.close();
      box.remove();
      resolve(value);
    };
    const heading = h("h2", { id: "dialog-title" }, title);
    const box = h("dialog", { "aria-labelledby": "dialog-title", oncancel: () => done(null) });
    append(box, [heading, content(done)]);
    document.body.append(box);
    box.showModal();
  });
}

/** Return a button. @param {string} text @param {() => void} onclick @param {Props} [props] */
export function button(text, onclick, props) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** Copy a text, and say so. @param {string} text @param {string} what */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS, and not on this machine, a page has no clipboard interface: use the selection.
    const area = h("textarea", { value: text, class: "offscreen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  notify(`${what} copied`);
}
