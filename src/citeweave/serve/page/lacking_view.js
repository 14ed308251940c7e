// Papers that many papers of the library cite but that are not in it.

import {get} from "./api.js";
import {h} from "./dom.js";
import {link, read} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {counted, elsewhere, number} from "./words.js";

export function showLacking(route, place, signal) {
  document.title = "Missing papers · citeweave";
  return fillFrom(place, () => get("lacking", {index: route.index}, signal), (answer) => {
    const papers = answer.papers ?? answer.lacking ?? [];
    if (!papers.length) return empty("No missing papers known", "The library cites no paper outside of it, or its references are not known. Import references to see them.");
    return h("section", {}, h("div", {class: "head"}, h("h1", {}, "Missing papers")),
      h("p", {class: "note"}, "Papers that the library cites but does not have, the most cited first."),
      h("ol", {class: "counted"}, papers.map(entry)));
  }, signal, 3);
}

function entry(paper) {
  const id = paper.id ?? "", title = paper.title || id || `paper with unknown title (${paper.key ?? "?"})`, outside = elsewhere(id);
  return h("li", {}, h("span", {class: "count"}, number(paper.count)), h("span", {class: "what"},
    paper.in_index ? h("a", {href: link({paper: id, index: read().index})}, title) : h("span", {}, title),
    outside && h("a", {class: "small", href: outside, target: "_blank", rel: "noopener noreferrer"}, ` ${id}`),
    h("small", {class: "muted"}, ` ${[paper.year, `cited by ${counted(paper.count, "paper")} in the library`].filter(Boolean).join(" · ")}`)));
}
