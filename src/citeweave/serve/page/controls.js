// Controls above the results of a search: by meaning or words, the aspect, variety, the index.

import {h} from "./dom.js";
import {changed, go} from "./route.js";
import {health} from "./health.js";
import {counted} from "./words.js";

const WAYS = [["", "Meaning + words"], ["vectors", "Meaning"], ["words", "Words"]];

export function segments(name, label, choices, chosen, act) {
  return h("fieldset", {class: "segments", "aria-label": label}, choices.map(([value, text]) => h("label", {},
    h("input", {type: "radio", name, value, checked: value === chosen, on: {change: () => act(value)}}), text)));
}

export const waysOf = (route) => segments("by", "Search by", WAYS, route.by ?? "", (by) => go(changed(route, {by, count: ""})));

export function aspectsOf(route) {
  const aspects = health()?.aspects ?? [];
  if (!aspects.length) return null;
  const choices = [["", "everything"], ...aspects.map((one) => [one, one])];
  return select("Similar in", choices, route.aspect ?? "", (aspect) => go(changed(route, {aspect, count: ""})));
}

export function indexesOf(route) {
  const names = health()?.indexes ?? [];
  if (names.length < 2) return null;
  return select("Index", names.map((one, at) => [at ? one : "", one]), route.index ?? "", (index) => go(changed(route, {index})));
}

// papers around a library cite it or are cited by it; they are left out unless included
export function outsideOf(route) {
  const around = health()?.around ?? 0;
  if (!around && !route.outside) return null;
  return h("label", {class: "inline outside"}, h("input", {type: "checkbox", name: "outside", checked: Boolean(route.outside),
    on: {change: (event) => go(changed(route, {outside: event.target.checked ? 1 : "", count: ""}))}}),
  `Include ${counted(around, "paper")} around the library`);
}

const ORDERS = [["", "Best match"], ["newest", "Newest"], ["oldest", "Oldest"], ["cited", "Most cited"]];
export const orderOf = (route) => select("Sort by", ORDERS, route.order ?? "", (order) => go(changed(route, {order, count: ""})));

export const varietyOf = (route) => select("Variety", [["", "none"], ["0.3", "some"], ["0.7", "a lot"]], route.diversity ?? "",
  (diversity) => go(changed(route, {diversity})));

export function select(label, choices, chosen, act) {
  return h("label", {class: "inline"}, label, h("select", {on: {change: (event) => act(event.target.value)}},
    choices.map(([value, text]) => h("option", {value, selected: value === chosen}, text))));
}
