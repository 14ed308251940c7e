// The home page: the search field, what the library has and lacks, and links to the other views.

import {get} from "./api.js";
import {h, put} from "./dom.js";
import {health, watch} from "./health.js";
import {fillFrom} from "./states.js";
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
    put(facts, factsOf(known), " · ", modelOf(known.model));
    put(doors, doorsOf(known).map(([href, title, words]) => h("a", {href}, h("b", {}, title), h("span", {}, words))));
    if (lacks.dataset.known === JSON.stringify([known.lacks, known.rejected])) return; // an opened list stays open
    lacks.dataset.known = JSON.stringify([known.lacks, known.rejected]);
    put(lacks, (known.lacks ?? []).map((line) => h("p", {}, line.split("`").map((part, at) => at % 2 ? h("code", {}, part) : part))),
      known.rejected > 0 && leftOut(known.rejected));
  };
  if (health()) draw(health());
  watch(draw);
}

// the entries of the source that did not become papers, asked for when the list is opened
function leftOut(count) {
  const list = h("div", {}), box = h("details", {class: "left-out"}, h("summary", {}, `Show ${count === 1 ? "the entry" : `the ${number(count)} entries`} left out`), list);
  box.addEventListener("toggle", () => {
    if (box.open && !list.firstChild) fillFrom(list, () => get("rejected"), ({entries}) => h("ul", {}, entries.map(rejected)), undefined, 1);
  });
  return box;
}

const rejected = (entry) => h("li", {}, h("b", {}, entry.key || "an entry without a key"),
  h("span", {}, entry.reason), h("small", {}, [entry.file, entry.line > 0 && `line ${number(entry.line)}`].filter(Boolean).join(", ")));

function factsOf(known) {
  return [counted(known.papers, "paper"),
    known.with_vectors < known.papers ? `${number(known.with_vectors)} embedded` : null].filter(Boolean).join(" · ");
}

// "weave", of "weave@570b9f9dd5be-openvino-int8"
const modelOf = (model) => (model ? h("span", {title: model}, model.replace(/(?<=.)@[^@]*$/, "")) : "words only");
