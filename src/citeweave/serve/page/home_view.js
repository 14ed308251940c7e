// The home page: the search field, what the library has and lacks, and links to the other views.

import {h, put} from "./dom.js";
import {health, watch} from "./health.js";
import {counted, number} from "./words.js";

export function doorsOf(known) {
  return [
    ["?view=draft", "From your draft", "Find papers to cite in a paragraph, or papers similar to an abstract", "Draft"],
    ["?view=map", "Map", "Every paper as a point, similar papers close together", "Map"],
    ["?view=lacking", "Missing papers", "Papers that your papers cite but the library does not have", "Missing"],
    (known?.indexes?.length ?? 0) > 1 && ["?view=compare", "Compare", "Two indexes side by side for one query", "Compare"],
    known?.samples && ["?view=samples", "Samples", "Training samples of a model", "Samples"],
  ].filter(Boolean);
}

export function showHome(_route, place) {
  document.title = "citeweave";
  const facts = h("p", {class: "facts"}), doors = h("nav", {class: "doors", "aria-label": "Other views"}), lacks = h("div", {class: "lacks"});
  put(place, h("div", {class: "home"}, facts, doors, lacks));
  const draw = (known) => {
    if (!facts.isConnected) return;
    put(facts, factsOf(known));
    put(doors, doorsOf(known).map(([href, title, words]) => h("a", {href}, h("b", {}, title), h("span", {}, words))));
    put(lacks, (known.lacks ?? []).map((line) => h("p", {}, line.split("`").map((part, at) => at % 2 ? h("code", {}, part) : part))));
  };
  if (health()) draw(health());
  watch(draw);
}

function factsOf(known) {
  return [counted(known.papers, "paper"),
    known.with_vectors < known.papers ? `${number(known.with_vectors)} embedded` : null,
    known.model || "words only"].filter(Boolean).join(" · ");
}
