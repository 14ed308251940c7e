// Filters by year, venue, author, field, keyword and collection: offered with counts, shown as chips that a click removes.

import {h} from "./dom.js";
import {changed, go} from "./route.js";
import {number} from "./words.js";

const LISTED = 5, MAX_LISTED = 60;
const NAMES = {collection: "Collections", venue: "Venues", author: "Authors", field: "Fields", keyword: "Keywords"};
const NO_FILTERS = {year_from: "", year_to: "", ...Object.fromEntries(Object.keys(NAMES).map((name) => [name, []]))};

export const filtered = (route) => Object.keys(NO_FILTERS).some((name) => route[name]?.length);
// a tag of a paper was clicked: its papers are wanted, and how well they fit its name does not matter
export const isOfTag = (route) => Object.keys(NAMES).some((name) => route[name]?.includes(route.q));
export const withoutFilters = (route) => changed(route, NO_FILTERS);

// the part of a query that filters, as the server reads it
export function whereOf(route) {
  const year = (text) => { const value = Number.parseInt(text, 10); return Number.isFinite(value) ? value : null; };
  const where = {}, from = year(route.year_from), to = year(route.year_to);
  if (from !== null || to !== null) where.years = [from, to];
  for (const name of Object.keys(NAMES)) if (route[name]?.length) where[`${name}s`] = route[name];
  return where;
}

export function chips(route) {
  const found = [];
  const chip = (text, values) => found.push(h("button", {type: "button", "aria-label": `Remove the filter ${text}`,
    on: {click: () => go(changed(route, {...values, count: ""}))}}, h("span", {}, text), h("span", {"aria-hidden": "true"}, "×")));
  if (route.year_from || route.year_to) chip(yearsText(route), {year_from: "", year_to: ""});
  for (const name of Object.keys(NAMES)) {
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
    Object.entries(NAMES).filter(([name]) => name !== "keyword" || !areFields(route, facets))
      .map(([name, title]) => choices(route, name, title, pairsOf(facets[`${name}s`]))), order);
}

// a source may name its fields as keywords too: one list is enough
function areFields(route, {fields, keywords}) {
  return !route.keyword?.length && JSON.stringify(pairsOf(fields).sort()) === JSON.stringify(pairsOf(keywords).sort());
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

const isSame = (one, other) => one.toLowerCase() === other.toLowerCase(); // as the server compares names

function choices(route, name, title, counts) {
  const chosen = route[name] ?? [], isChosen = (value) => chosen.some((one) => isSame(one, value));
  const missing = chosen.filter((one) => !counts.some(([other]) => isSame(other, one))).map((one) => [one, null]);
  const all = [...missing, ...counts].sort((a, b) => isChosen(b[0]) - isChosen(a[0]));
  if (!all.length) return null;
  const toggle = (value) => go(changed(route, {count: "",
    [name]: isChosen(value) ? chosen.filter((one) => !isSame(one, value)) : [...chosen, value]}));
  const entry = ([value, count]) => h("li", {}, h("label", {},
    h("input", {type: "checkbox", checked: isChosen(value), on: {change: () => toggle(value)}}),
    h("span", {}, value), count !== null && h("small", {}, number(count))));
  const rest = all.slice(LISTED);
  return h("fieldset", {data: {filter: name}}, h("legend", {}, title), h("ul", {}, all.slice(0, LISTED).map(entry)),
    rest.length > 0 && h("details", {}, h("summary", {}, `${rest.length} more`), h("ul", {}, rest.slice(0, MAX_LISTED).map(entry))));
}
