// A pasted text: a title with its abstract, or a paragraph of a draft that needs citations.

import {segments} from "./controls.js";
import {h, put} from "./dom.js";
import {changed, go} from "./route.js";
import {answerInto} from "./search_view.js";

const MAX_TEXT = 20000, MAX_ADDRESS = 6000, KEY = "citeweave-draft"; // characters; characters of an address
const KINDS = [["cite", "Find citations"], ["paper", "Find similar papers"]];
const HINTS = {
  cite: "Paste a paragraph of your draft. Write [CIT] where a citation is missing, or leave the text as it is.",
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
  const query = kind === "cite" ? {cite: {text: given}} : {text: given, by: route.by ?? "vectors"};
  return answerInto(route, found, signal, query, {title: kind === "cite" ? "Papers to cite" : "Similar papers", tools: null});
}

// a text that is too long for an address is kept by this tab
function addressed(text) {
  if (encodeURIComponent(text).length <= MAX_ADDRESS) return {text, kept: ""};
  try { sessionStorage.setItem(KEY, text); } catch { /* the search below still has it, a reload does not */ }
  return {text: "", kept: 1};
}

function recall() {
  try { return sessionStorage.getItem(KEY) ?? ""; } catch { return ""; }
}
