// Two indexes side by side for one query: what both find, and what only one finds.

import {post} from "./api.js";
import {select} from "./controls.js";
import {h, put} from "./dom.js";
import {list} from "./results.js";
import {changed, go} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {health} from "./health.js";

const COUNT = 15;

export function showCompare(route, place, signal) {
  document.title = "Compare · citeweave";
  const names = health()?.indexes ?? [];
  if (names.length < 2) { put(place, empty("Only one index is served", "Start the server with --compare NAME=INDEX to compare it with a second one.")); return null; }
  const left = names.includes(route.left) ? route.left : names[0], right = names.includes(route.right) ? route.right : names.find((one) => one !== left);
  const choose = (name, label, chosen) => select(label, names.map((one) => [one, one]), chosen, (value) => go(changed(route, {[name]: value})));
  const body = h("div", {});
  put(place, h("div", {class: "head"}, h("h1", {}, "Side by side"),
    h("div", {class: "tools"}, choose("left", "Left", left), choose("right", "Right", right))), body);
  if (!route.q && !route.paper) { put(body, empty("Enter a query", "Type it above; both indexes are searched.")); return null; }
  const query = route.q ? {text: route.q} : {paper: route.paper};
  const ask = (index) => post("search", {...query, count: COUNT, index, ...(route.by ? {by: route.by} : {})}, signal);
  return fillFrom(body, () => Promise.all([ask(left), ask(right)]), ([one, other]) => columns(left, one.hits, right, other.hits), signal);
}

function columns(left, one, right, other) {
  const both = one.filter((hit) => other.some((there) => there.id === hit.id)).length;
  return [h("p", {class: "note"}, `${both} of the first ${Math.max(one.length, other.length)} papers are found in both.`),
    h("div", {class: "columns"}, column(left, one, other, right), column(right, other, one, left))];
}

function column(name, hits, others, otherName) {
  const places = new Map(others.map((hit, at) => [hit.id, at + 1]));
  const items = list(hits, {index: name});
  [...items.children].forEach((item, at) => {
    const there = places.get(hits[at].id);
    item.firstChild.insertBefore(h("p", {class: there ? "reason" : "reason only"}, there ? `${at + 1} here, ${there} in ${otherName}` : `${at + 1} here, not in ${otherName}`),
      item.firstChild.querySelector(".actions"));
  });
  return h("section", {"aria-label": name}, h("h2", {}, name), hits.length ? items : h("p", {class: "muted"}, "nothing found"));
}
