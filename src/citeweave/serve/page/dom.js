// Elements from plain values. Text is set as text, attributes from a short list: nothing from the data becomes markup.
//
//   h("p", {class: "meta"}, "by ", h("i", {}, name))      p with a text and an i

const SVG = "http://www.w3.org/2000/svg";
const FORBIDDEN = /^(on|style$|srcdoc$|innerhtml$)/i;

function fill(element, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "href" && !/^([?#]|https:\/\/)/.test(value)) throw new TypeError("a link must lead to a view or to https");
    else if (FORBIDDEN.test(name)) throw new TypeError(`attribute ${name} cannot be set from data`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export const h = (tag, options = {}, ...children) => fill(document.createElement(tag), options, children);
export const s = (tag, options = {}, ...children) => fill(document.createElementNS(SVG, tag), options, children);

export function put(place, ...children) {
  place.replaceChildren();
  append(place, children);
  return place;
}

export const byId = (id) => document.getElementById(id);

const ICONS = {
  up: "M7 11v9H4v-9zM7 11l4-8c1.6 0 2.5 1 2.5 2.6L13 9h5.2c1.3 0 2.1 1.1 1.8 2.3l-1.6 7c-.2 1-1 1.7-2 1.7H7",
  down: "M17 13V4h3v9zM17 13l-4 8c-1.6 0-2.5-1-2.5-2.6L11 15H5.800c-1.300 0-2.100-1.100-1.800-2.300l1.600-7c.2-1 1-1.700 2-1.700H17",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500z",
};
export const icon = (name) => s("svg", {viewBox: "0 0 24 24", "aria-hidden": "true"}, s("path", {d: ICONS[name]}));

// for screen readers; cleared first, so that a repeated text is read again
export function announce(words) {
  const live = byId("live");
  live.textContent = "";
  setTimeout(() => { live.textContent = words; }, 30);
}
