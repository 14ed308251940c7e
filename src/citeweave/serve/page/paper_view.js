// A paper: its abstract as sentences to select; beside it similar papers, or those that match the selected sentences.

import {get, paperPath} from "./api.js";
import {ask} from "./asking.js";
import {metaOf, thumb} from "./card.js";
import {aspectsOf, indexesOf, outsideOf} from "./controls.js";
import {h, put, announce} from "./dom.js";
import {exportMenu} from "./export.js";
import {results, shownCount} from "./results.js";
import {link, note} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {clip, counted, elsewhere, titleOf, toneOf} from "./words.js";
import {paperLink} from "./why.js";

const LISTED = 12;

export function showPaper(route, place, signal) {
  return fillFrom(place, () => get(paperPath(route.paper), {index: route.index}, signal), (paper) => {
    document.title = `${clip(titleOf(paper), 70)} · citeweave`;
    return view(paper, route, signal);
  }, signal, 2);
}

const chosenOf = (route) => [...new Set((route.s ?? "").split(",").filter((one) => /^\d+$/.test(one)).map(Number))].sort((a, b) => a - b);

function view(paper, route, signal) {
  const side = h("div", {class: "side"});
  const state = {route, chosen: chosenOf(route), run: null};
  const refresh = () => { state.run?.abort(); state.run = new AbortController(); beside(paper, state, side); };
  signal.addEventListener("abort", () => state.run?.abort());
  const sentences = sentenceList(paper, state, refresh);
  refresh();
  return h("div", {class: "paper-view"}, h("article", {class: "paper"},
    h("h1", {}, titleOf(paper)), metaOf(paper), fieldsOf(paper), toolsOf(paper, route),
    sentences), side, h("div", {class: "paper-links"},
    linksOf("References in this library", paper.references ?? [], paper.references_unknown, "outside the library"),
    linksOf("Cited by", paper.cited_by ?? [])));
}

function fieldsOf(paper) {
  const fields = paper.fields ?? [], outside = [paper.id, ...(paper.ids ?? [])].map((id) => [id, elsewhere(id)]).find(([, address]) => address);
  return h("p", {class: "fields"}, fields.map((one) => h("span", {class: "tag"}, one)),
    outside ? h("a", {class: "small", href: outside[1], target: "_blank", rel: "noopener noreferrer"}, outside[0]) : h("span", {class: "small muted"}, paper.id));
}

function toolsOf(paper, route) {
  const at = {paper: paper.id, index: route.index};
  return h("div", {class: "actions"}, thumb(paper, "like", "up", "More like this"), thumb(paper, "dislike", "down", "Less like this"),
    h("a", {class: "button quiet", href: link({view: "graph", ...at})}, "Neighborhood"),
    h("a", {class: "button quiet", href: link({view: "map", focus: paper.row, index: route.index})}, "On the map"), exportMenu([paper], route.index));
}

// ---- sentences: each a button; those chosen have a color each, which their matches on the other side share
function sentenceList(paper, state, refresh) {
  const sentences = paper.sentences ?? [];
  if (!paper.abstract || !sentences.length) return h("p", {class: "note"}, "The library has no abstract of this paper, only its title.");
  const clear = h("button", {type: "button", class: "quiet clear", on: {click: () => choose([])}}, "Clear");
  const down = h("button", {type: "button", class: "quiet down", on: {click: () => document.querySelector(".side").scrollIntoView()}}, "See matches");
  const label = h("p", {class: "label"}, h("span", {}, "Select sentences to search by"), h("span", {}, down, clear));
  const buttons = sentences.map(({number, text}) => h("button", {type: "button", data: {sentence: number}},
    h("span", {class: "number"}, number + 1), h("span", {}, text)));
  const paint = () => {
    clear.hidden = down.hidden = !state.chosen.length;
    buttons.forEach((button, at) => {
      const pressed = state.chosen.includes(sentences[at].number);
      button.ariaPressed = String(pressed);
      button.style.setProperty("--tone", toneOf(sentences[at].number));
      button.firstChild.classList.toggle("toned", pressed);
    });
  };
  const choose = (chosen) => {
    state.chosen = chosen.sort((a, b) => a - b);
    state.route = {...state.route, s: state.chosen.join(","), count: ""};
    note(link(state.route));
    paint(); refresh();
  };
  buttons.forEach((button) => button.addEventListener("click", () => {
    const number = Number(button.dataset.sentence);
    choose(state.chosen.includes(number) ? state.chosen.filter((one) => one !== number) : [...state.chosen, number]);
  }));
  paint();
  return h("section", {"aria-label": "Abstract"}, label, h("ol", {class: "sentences"}, buttons.map((button) => h("li", {}, button))));
}

// ---- the other side
function beside(paper, state, side) {
  const {route, chosen} = state, signal = state.run.signal, body = h("div", {});
  const tools = [chosen.length ? null : aspectsOf(route), indexesOf(route), outsideOf(route)].filter(Boolean);
  put(side, tools.length > 0 && h("div", {class: "tools"}, tools), body);
  if (chosen.length) bySentences(paper, route, chosen, body, signal);
  else similar(paper, route, body, signal);
}

function similar(paper, route, body, signal) {
  const query = {paper: paper.id, count: shownCount(route), explain: true, aspect: route.aspect, index: route.index, outside: route.outside ? true : ""};
  fillFrom(body, () => get("similar", query, signal), (answer) => results(answer, route, {
    title: route.aspect ? `Similar in ${route.aspect}` : "Similar papers", options: {against: paper.id, index: route.index ?? ""},
    nothing: empty("No similar papers", "This paper is not embedded yet, or the library has no other papers.")}), signal);
}

function bySentences(paper, route, chosen, body, signal) {
  const tones = chosen.map((number) => ({number: number + 1, tone: toneOf(number)}));
  const byWords = (error) => { // vectors of sentences may be missing; their words are not
    const texts = paper.sentences.filter((one) => chosen.includes(one.number)).map((one) => one.text);
    if (error.status === 400) error.instead = {href: link({q: clip(texts.join(" "), 1500), index: route.index}), words: "Search by words instead"};
    throw error;
  };
  fillFrom(body, () => ask({...route, by: ""}, {sentences: {paper: paper.id, numbers: chosen}}, signal, {facets: false}).catch(byWords), (answer) => {
    announce(`${counted(answer.hits.length, "paper")} match ${counted(chosen.length, "sentence")}`);
    return results(answer, route, {title: chosen.length === 1 ? `Papers that match sentence ${chosen[0] + 1}` : "Papers that match the selected sentences",
      options: {tones, against: paper.id, index: route.index ?? ""}});
  }, signal);
}

function linksOf(title, papers, unknown = 0, where = "") {
  if (!papers.length && !unknown) return null;
  const entries = papers.map((one) => h("li", {}, paperLink(one)));
  return h("section", {class: "links"}, h("h2", {}, `${title} `, h("small", {class: "muted"}, papers.length)),
    h("ul", {}, entries.slice(0, LISTED)),
    entries.length > LISTED && h("details", {}, h("summary", {}, `${entries.length - LISTED} more`), h("ul", {}, entries.slice(LISTED))),
    unknown > 0 && h("p", {class: "muted"}, `and ${counted(unknown, "paper")} ${where}`));
}

// the key s: the next sentence that is not chosen, or the one that has the focus
export function pressSentence() {
  const focused = document.activeElement?.closest?.('.sentences button:not([aria-pressed="true"])');
  const next = focused ?? document.querySelector('.sentences button:not([aria-pressed="true"])');
  next?.focus();
  next?.click();
  return Boolean(next);
}

