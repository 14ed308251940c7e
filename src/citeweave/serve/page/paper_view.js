// A paper: its abstract as sentences to select; beside it similar papers, or those that match the selected sentences.

import {get, paperPath} from "./api.js";
import {ask} from "./asking.js";
import {copyButton, metaOf, thumb} from "./card.js";
import {aspectsOf, indexesOf, outsideOf} from "./controls.js";
import {h, put, announce} from "./dom.js";
import {exportMenu} from "./export.js";
import {results, shownCount} from "./results.js";
import {link, note} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {clip, counted, elsewhere, titleOf, toneOf} from "./words.js";
import {paperLink} from "./why.js";

const LISTED = 12, AUTHORS = 12, TAGS = 12;

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
    h("h1", {}, titleOf(paper)), metaOf(paper, {index: route.index, named: AUTHORS}), sourceOf(paper), tagsOf(paper, route), toolsOf(paper, route),
    sentences), side, h("div", {class: "paper-links"},
    linksOf("References in this library", paper.references ?? [], paper.references_unknown, "outside the library"),
    linksOf("Cited by", paper.cited_by ?? [])));
}

// where the paper is: its page elsewhere, its PDF or file, its citation key
function sourceOf(paper) {
  const away = (address, words) => h("a", {href: address, target: "_blank", rel: "noopener noreferrer"}, words);
  const known = [paper.id, ...(paper.ids ?? [])].map((id) => [id, elsewhere(id)]).find(([, address]) => address);
  const places = [...new Set([paper.pdf, paper.file, paper.url].flat().filter(Boolean))].filter((one) => one !== known?.[1]);
  const isWeb = (one) => one.startsWith("https://") && URL.canParse(one), nameOf = (file) => file.split(/[\\/]/).filter(Boolean).at(-1) ?? file;
  const web = places.filter(isWeb), files = places.filter((one) => !isWeb(one)); // a page cannot open a file of this computer
  return h("p", {class: "source"},
    known ? away(known[1], known[0]) : !paper.key && h("span", {class: "muted"}, paper.id),
    web.map((one) => away(one, one === paper.pdf || /\.pdf$/i.test(one) ? "PDF" : new URL(one).hostname.replace(/^www\./, ""))),
    files.map((one) => h("span", {class: "copied"}, h("span", {title: one}, clip(nameOf(one), 40)), copyButton(one, /^https?:/.test(one) ? "Copy link" : "Copy path"))),
    paper.key && h("span", {class: "copied"}, h("code", {}, paper.key), copyButton(paper.key, "Copy key")));
}

// fields, keywords and collections lead to the papers of the library that have them
function tagsOf(paper, route) {
  const kinds = [["collection", paper.collections], ["field", paper.fields], ["keyword", paper.keywords]], seen = new Set();
  const isNew = (value) => !seen.has(value) && seen.add(value); // a source may name its fields as keywords too
  const tags = kinds.flatMap(([name, values]) => (values ?? []).filter(isNew).map((value) => h("a", {class: `tag ${name}`, title: name,
    href: link({view: "search", q: value, [name]: value, index: route.index})}, value)));
  if (!tags.length) return null;
  return h("p", {class: "fields"}, tags.slice(0, TAGS), tags.length > TAGS && h("span", {class: "small muted"}, `and ${tags.length - TAGS} more`));
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
  const can = sentences.some((one) => one.vector !== false);
  const label = h("p", {class: "label"}, h("span", {}, can ? "Select sentences to search by" : "Abstract"), h("span", {}, down, clear));
  const insideOf = ({number, text}) => [h("span", {class: "number"}, number + 1), h("span", {}, text)];
  const items = sentences.map((one) => (one.vector === false
    ? h("div", {class: "fixed", title: can ? "This sentence has no vector, so nothing can be searched by it" : null}, insideOf(one))
    : h("button", {type: "button", data: {sentence: one.number}}, insideOf(one))));
  const buttons = items.filter((one) => one.matches("button"));
  const paint = () => {
    clear.hidden = down.hidden = !state.chosen.length;
    buttons.forEach((button) => {
      const number = Number(button.dataset.sentence), pressed = state.chosen.includes(number);
      button.ariaPressed = String(pressed);
      button.style.setProperty("--tone", toneOf(number));
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
  return h("section", {"aria-label": "Abstract"}, label, h("ol", {class: "sentences"}, items.map((item) => h("li", {}, item))));
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
