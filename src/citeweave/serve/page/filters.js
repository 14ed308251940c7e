// Filters by year, field and venue: offered with counts, shown as chips that a click removes.

import {h} from "./dom.js";
import {changed, go} from "./route.js";
import {number} from "./words.js";

const LISTED = 8;

// the part of a query that filters, as the server reads it
export function whereOf(route) {
  const year = (text) => { const value = Number.parseInt(text, 10); return Number.isFinite(value) ? value : null; };
  const where = {}, from = year(route.year_from), to = year(route.year_to);
  if (from !== null || to !== null) where.years = [from, to];
  if (route.venue) where.venues = route.venue;
  if (route.field) where.fields = route.field;
  return where;
}

export function chips(route) {
  const found = [];
  const chip = (text, values) => found.push(h("button", {type: "button", "aria-label": `Remove the filter ${text}`,
    on: {click: () => go(changed(route, {...values, count: ""}))}}, h("span", {}, text), h("span", {"aria-hidden": "true"}, "×")));
  if (route.year_from || route.year_to) chip(yearsText(route), {year_from: "", year_to: ""});
  for (const name of ["field", "venue"]) {
    for (const value of route[name] ?? []) chip(value, {[name]: route[name].filter((one) => one !== value)});
  }
  return found.length ? h("div", {class: "chips", role: "group", "aria-label": "Active filters"}, found) : null;
}

function yearsText({year_from: from, year_to: to}) {
  if (from && to) return from === to ? from : `${from} to ${to}`;
  return from ? `since ${from}` : `until ${to}`;
}

export function filters(route, facets, order) {
  if (!facets) return order;
  const open = matchMedia("(min-width: 60rem)").matches;
  return h("details", {class: "filters", open}, h("summary", {}, "Filters"),
    years(route, facets.years ?? {}),
    choices(route, "field", "Fields", pairsOf(facets.fields)),
    choices(route, "venue", "Venues", pairsOf(facets.venues)), order);
}

// [["name", 3], ...] of any of the forms in which counts come
function pairsOf(counts) {
  if (!counts) return [];
  const entries = Array.isArray(counts) ? counts.map((one) => (Array.isArray(one) ? one : [one.name, one.count])) : Object.entries(counts);
  return entries.filter(([name]) => name).map(([name, count]) => [String(name), Number(count)]);
}

function years(route, counts) {
  const known = pairsOf(counts).map(([year, count]) => [Number(year), count]).filter(([year]) => year > 0).sort((a, b) => a[0] - b[0]);
  if (!known.length) return null;
  const first = known[0][0], last = known.at(-1)[0];
  const field = (name, label, hint) => h("input", {type: "number", name, "aria-label": label, placeholder: hint, value: route[name],
    min: 1000, max: 2999, inputmode: "numeric", on: {change: (event) => go(changed(route, {[name]: event.target.value, count: ""}))}});
  return h("fieldset", {}, h("legend", {}, "Years"), histogram(known, first, last),
    h("div", {class: "years"}, field("year_from", "From year", first), h("span", {"aria-hidden": "true"}, "–"), field("year_to", "To year", last)));
}

function histogram(known, first, last) {
  const span = last - first + 1, bins = Math.min(40, span), sums = new Array(bins).fill(0);
  if (bins < 3) return null;
  for (const [year, count] of known) sums[Math.min(bins - 1, Math.floor(((year - first) / span) * bins))] += count;
  const largest = Math.max(...sums);
  return h("div", {class: "bars", "aria-hidden": "true"}, sums.map((sum) => h("i", {vars: {"--share": (100 * sum) / largest}})));
}

function choices(route, name, title, counts) {
  const chosen = route[name] ?? [], missing = chosen.filter((one) => !counts.some(([other]) => other === one)).map((one) => [one, null]);
  const all = [...missing, ...counts].sort((a, b) => chosen.includes(b[0]) - chosen.includes(a[0]));
  if (!all.length) return null;
  const toggle = (value) => go(changed(route, {count: "",
    [name]: chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value]}));
  const entry = ([value, count]) => h("li", {}, h("label", {},
    h("input", {type: "checkbox", checked: chosen.includes(value), on: {change: () => toggle(value)}}),
    h("span", {}, value), count !== null && h("small", {}, number(count))));
  const rest = all.slice(LISTED);
  return h("fieldset", {data: {filter: name}}, h("legend", {}, title), h("ul", {}, all.slice(0, LISTED).map(entry)),
    rest.length > 0 && h("details", {}, h("summary", {}, `${rest.length} more`), h("ul", {}, rest.slice(0, 60).map(entry))));
}
