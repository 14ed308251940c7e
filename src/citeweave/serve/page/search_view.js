// A query and its results; also papers that are like some papers, and unlike others.

import {get} from "./api.js";
import {ask} from "./asking.js";
import {aspectsOf, indexesOf, outsideOf, varietyOf, waysOf} from "./controls.js";
import {h, put, announce} from "./dom.js";
import {chips, filters} from "./filters.js";
import {takeMarks} from "./liked.js";
import {results} from "./results.js";
import {changed, go} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {clip, counted, titleOf} from "./words.js";

export function showSearch(route, place, signal) {
  document.title = `${clip(route.q ?? "", 60)} · citeweave`;
  if (!route.q) { put(place, empty("No query", "Type a question or a few words above.")); return null; }
  const tools = h("div", {class: "tools"}, waysOf(route), aspectsOf(route));
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
  return h("div", {}, group("like", "Like"), group("dislike", "Unlike"));
}

// results on the left, filters with counts on the right
export function answerInto(route, place, signal, query, {title, tools, options = {}}) {
  const main = h("div", {}), side = h("div", {class: "filter-side"});
  put(place, h("div", {class: "with-filters"}, h("div", {}, tools, chips(route), main), side));
  return fillFrom(main, () => ask(route, query, signal), (answer) => {
    put(side, filters(route, answer.facets, h("div", {class: "order"}, varietyOf(route), indexesOf(route), outsideOf(route))));
    announce(`${counted(answer.hits.length, "paper")} found`);
    return results(answer, route, {title, options: {...options, index: route.index ?? ""}});
  }, signal);
}
