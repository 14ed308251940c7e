// A query and its results; also papers that are like some papers, and unlike others.

import {get} from "./api.js";
import {ask} from "./asking.js";
import {aspectsOf, indexesOf, orderOf, outsideOf, varietyOf, waysOf} from "./controls.js";
import {h, put, announce} from "./dom.js";
import {chips, filters} from "./filters.js";
import {exportLiked, takeMarks} from "./liked.js";
import {results, totalOf} from "./results.js";
import {changed, go, link} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {clip, titleOf} from "./words.js";

export function showSearch(route, place, signal) {
  document.title = `${clip(route.q ?? "", 60)} · citeweave`;
  if (!route.q) { put(place, empty("No query", "Type a question or a few words above.")); return null; }
  const tools = h("div", {class: "tools"}, waysOf(route), orderOf(route), aspectsOf(route));
  return answerInto(route, place, signal, {text: route.q}, {title: "Results", tools});
}

export async function showLiked(route, place, signal) {
  document.title = "More like these · citeweave";
  const like = route.like ?? [], dislike = route.dislike ?? [];
  if (!like.length) { put(place, empty("No liked papers yet", "Like papers with a thumb, then search for more like them.")); return null; }
  takeMarks(like, dislike);
  const tools = h("div", {}, h("div", {class: "tools"}, aspectsOf(route)));
  get("papers", {id: [...like, ...dislike], index: route.index}, signal)
    .then(({papers}) => tools.prepend(marksOf(route, papers))).catch(() => { /* the results below show the error */ });
  return answerInto(route, place, signal, {liked: like, disliked: dislike}, {title: "More like these", tools});
}

function marksOf(route, papers) {
  const titles = new Map(papers.map((one) => [one.id, titleOf(one)]));
  const chip = (name, id) => h("button", {type: "button", "aria-label": `Remove ${titles.get(id) ?? id}`,
    on: {click: () => go(changed(route, {[name]: route[name].filter((one) => one !== id)}))}},
  h("span", {}, titles.get(id) ?? id), h("span", {"aria-hidden": "true"}, "×"));
  const group = (name, label) => (route[name] ?? []).length > 0 && [h("p", {class: "note"}, label),
    h("div", {class: "chips", role: "group", "aria-label": label}, route[name].map((id) => chip(name, id)))];
  return h("div", {}, group("like", "Like"), group("dislike", "Unlike"), h("div", {class: "tools"}, exportLiked(route.like, route.index)));
}

const READ = {ids: "Id", authors: "Author", phrases: "Phrase", years: "Year", venues: "Venue"};
const quoted = (value) => `"${String(value).replaceAll('"', "")}"`;
const WRITTEN = {ids: String, authors: (name) => `author:${quoted(name)}`, phrases: quoted, years: (span) => `year:${span}`, venues: (name) => `venue:${quoted(name)}`};

// how the server understood the query, as chips; a click drops a part
export function readingOf(route, read = {}) {
  const partsOf = ([kind, values]) => (kind === "years" ? [spanOf(values)] : values).map((value) => ({kind, value: String(value)}));
  const parts = Object.entries(read).filter(([kind]) => kind in READ).flatMap(partsOf);
  if (!parts.length) return null;
  const without = (part) => [...parts.filter((one) => one !== part).map(({kind, value}) => WRITTEN[kind](value)), read.text ?? ""].join(" ").trim();
  const chip = (part) => h("button", {type: "button", "aria-label": `Search without ${READ[part.kind].toLowerCase()} ${part.value}`,
    on: {click: () => { const q = without(part); go(q ? changed(route, {q, count: ""}) : link({index: route.index})); }}},
  h("span", {}, h("small", {}, `${READ[part.kind]} `), part.value), h("span", {"aria-hidden": "true"}, "×"));
  return h("div", {class: "chips reading", role: "group", "aria-label": "How the query was read"}, parts.map(chip),
    read.text && h("span", {class: "rest"}, h("small", {}, "about "), read.text));
}

// the first and the last year, either of which may be null
const spanOf = ([from, to]) => (from === to ? from : `${from ?? ""}-${to ?? ""}`);

// results on the left, filters with counts on the right
export function answerInto(route, place, signal, query, {title, tools, options = {}, varied = true, show = null}) {
  const main = h("div", {}), understood = h("div", {}), side = h("div", {class: "filter-side"});
  put(place, h("div", {class: "with-filters"}, h("div", {}, tools, understood, chips(route), main), side));
  return fillFrom(main, () => ask(route, query, signal), (answer) => {
    const found = answer.hits.length > 0, isVaried = varied && found && !route.order;
    put(side, filters(route, found && answer.facets, h("div", {class: "order"}, isVaried && varietyOf(route), indexesOf(route), outsideOf(route))));
    put(understood, readingOf(route, answer.read));
    announce(`${totalOf(answer)} found`);
    return show ? show(answer) : results(answer, route, {title, options: {...options, index: route.index ?? ""}});
  }, signal);
}
