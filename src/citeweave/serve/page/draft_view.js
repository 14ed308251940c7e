// A pasted text: a title with its abstract, or a paragraph of a draft that needs citations.

import {segments} from "./controls.js";
import {h, put} from "./dom.js";
import {exportMenu} from "./export.js";
import {list} from "./results.js";
import {changed, go} from "./route.js";
import {answerInto} from "./search_view.js";
import {empty} from "./states.js";
import {counted, sentence} from "./words.js";

const PER_SENTENCE = 3, MAX_PER_SENTENCE = 15; // papers
const MAX_TEXT = 20000, MAX_ADDRESS = 6000, KEY = "citeweave-draft"; // characters; characters of an address
const KINDS = [["cite", "Find citations"], ["paper", "Find similar papers"]];
const HINTS = {
  cite: "Paste a paragraph of your draft; each sentence gets its own suggestions. Write [CIT] where a citation is missing to ask for those sentences only.",
  paper: "Paste a title, then an empty line, then the abstract.",
};

export function showDraft(route, place, signal) {
  document.title = "From a draft · citeweave";
  const given = route.text ?? (route.kept ? recall() : "");
  const kind = route.kind === "paper" ? "paper" : "cite";
  const text = h("textarea", {id: "draft", maxlength: MAX_TEXT, placeholder: HINTS[kind], "aria-label": HINTS[kind]}, given);
  const submit = (event) => {
    event.preventDefault();
    if (text.value.trim()) go(changed(route, {...addressed(text.value.trim()), kind, count: ""}));
    else text.focus();
  };
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event); });
  const form = h("form", {on: {submit}}, h("h1", {}, "From your draft"),
    h("div", {class: "tools"}, segments("kind", "Search for", KINDS, kind, (value) => go(changed(route, {kind: value, ...addressed(text.value)}), {replace: true}))),
    text, h("div", {class: "tools"}, h("button", {class: "primary", type: "submit"}, "Find papers"),
      h("small", {class: "muted"}, "Ctrl + Enter. The text goes only to this server and into this page's address.")));
  const found = h("div", {});
  put(place, h("div", {class: "draft"}, form, found));
  if (!given.trim()) { text.focus({preventScroll: true}); return null; }
  if (kind === "paper") return answerInto(route, found, signal, {text: given, by: route.by ?? "vectors"}, {title: "Similar papers", tools: null});
  const count = Math.max(PER_SENTENCE, Math.min(MAX_PER_SENTENCE, Number.parseInt(route.count, 10) || PER_SENTENCE));
  return answerInto(route, found, signal, {cite: {text: given, each: true}, count}, {
    title: "Papers to cite", tools: null, varied: false, show: (answer) => bySentence(answer, route, count)});
}

// every sentence of the passage with the papers to cite in it
function bySentence(answer, route, count) {
  const {hits, passage = []} = answer, options = {index: route.index ?? "", scored: false};
  const groups = passage.map((text, number) => [text, number, hits.filter((hit) => hit.passage === number)]);
  const wanted = groups.filter(([, , found]) => found.length), distinct = [...new Map(hits.map((hit) => [hit.id, hit])).values()];
  if (!wanted.length) return empty("Nothing to cite", answer.note ? sentence(answer.note) : "No paper in the library matches with these filters.");
  const more = () => go(changed(route, {count: count + PER_SENTENCE}), {replace: true});
  return h("section", {"aria-label": "Papers to cite"},
    h("div", {class: "head"}, h("h1", {}, "Papers to cite"), h("div", {class: "tools"},
      h("small", {class: "muted"}, `${counted(distinct.length, "paper")} for ${counted(wanted.length, "sentence")}`), exportMenu(distinct, route.index))),
    answer.note && h("p", {class: "note"}, answer.note),
    h("ol", {class: "passage"}, groups.map(([text, number, found]) => (found.length
      ? h("li", {data: {passage: number}}, h("h2", {}, text), !found.some(isClose) && h("p", {class: "unsure"}, "No close match: these are the nearest."), list(found, options))
      : h("li", {class: "unasked", data: {passage: number}}, h("p", {}, text, h("small", {}, " (no citation mark, so not asked for)")))))),
    count < MAX_PER_SENTENCE && h("div", {class: "tools"}, h("button", {type: "button", id: "more", on: {click: more}}, "Show more for each sentence")));
}

const isClose = (hit) => !["low", "none"].includes(hit.confidence);

// a text that is too long for an address is kept by this tab
function addressed(text) {
  if (encodeURIComponent(text).length <= MAX_ADDRESS) return {text, kept: ""};
  try { sessionStorage.setItem(KEY, text); } catch { /* the search below still has it, a reload does not */ }
  return {text: "", kept: 1};
}

function recall() {
  try { return sessionStorage.getItem(KEY) ?? ""; } catch { return ""; }
}
