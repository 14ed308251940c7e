// Papers to add to the library: those that it cites but lacks, and those outside that cite it; the chosen ones are exported.

import {get} from "./api.js";
import {h, put, announce} from "./dom.js";
import {exportMenu} from "./export.js";
import {link, read} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {authorNames, counted, elsewhere, number} from "./words.js";

const PAPERS = 100, NAMED = 3; // authors before "and 7 others"
let chosen = new Map(), chosenIn = ""; // id -> paper, kept while the page is open

export function showLacking(route, place, signal) {
  document.title = "Papers to add · citeweave";
  if (chosenIn !== (route.index ?? "")) { chosen = new Map(); chosenIn = route.index ?? ""; }
  return fillFrom(place, () => get("lacking", {index: route.index, most: PAPERS}, signal), ({papers = [], citing = []}) => {
    if (!papers.length && !citing.length) {
      return empty("No missing papers known", "The library cites no paper outside of it, or its references are not known. "
        + "Import references, or start it with “citeweave explore --enrich openalex”, to see them.");
    }
    const tray = h("div", {class: "tools", id: "to-add"}), draw = () => drawChosen(tray, draw, route.index);
    draw();
    return h("section", {}, h("div", {class: "head"}, h("h1", {}, "Papers to add")),
      h("p", {class: "note"}, "Choose papers and export them, to add them with your reference manager. Your own files are never changed."),
      tray,
      list("Missing papers", "Papers that your library cites but does not contain, most cited first.", "cited by", papers, draw),
      list("New papers that cite yours", "Newest first, with how many of your papers they cite.", "cites", citing, draw),
      !citing.length && h("p", {class: "note"}, "Papers that cite yours are fetched by “citeweave explore --enrich openalex” or “--enrich s2”, only on request."));
  }, signal, 3);
}

function list(title, words, verb, papers, draw) {
  return papers.length > 0 && h("section", {}, h("h2", {}, title), h("p", {class: "muted small"}, words),
    h("ol", {class: "counted"}, papers.map((paper) => entry(paper, verb, draw))));
}

function peopleOf(paper) {
  const names = authorNames(paper), others = names.length - NAMED;
  return others > 1 ? `${names.slice(0, NAMED).join(", ")} and ${others} others` : names.join(", ");
}

function entry(paper, verb, draw) {
  const id = paper.id ?? "", title = paper.title || id || `paper with unknown title (${paper.key ?? "?"})`, outside = elsewhere(id);
  const about = [peopleOf(paper), paper.venue, paper.year, `${verb} ${counted(paper.count, "paper")} of yours`].filter(Boolean).join(" · ");
  return h("li", {}, h("span", {class: "count"}, number(paper.count)), h("span", {class: "what"},
    paper.in_index && chooser(paper, title, draw),
    paper.in_index ? h("a", {href: link({paper: id, index: read().index})}, title) : h("span", {}, title),
    outside && h("a", {class: "small", href: outside, target: "_blank", rel: "noopener noreferrer"}, ` ${id}`),
    h("small", {class: "muted block"}, about)));
}

function chooser(paper, title, draw) {
  const box = h("input", {type: "checkbox", checked: chosen.has(paper.id), data: {id: paper.id}, "aria-label": `Add to the list: ${title}`});
  box.addEventListener("change", () => {
    if (box.checked) chosen.set(paper.id, paper); else chosen.delete(paper.id);
    draw();
    announce(`${counted(chosen.size, "paper")} chosen`);
  });
  return h("label", {class: "choose"}, box);
}

function drawChosen(tray, draw, index) {
  const clear = () => { chosen.clear(); document.querySelectorAll(".choose input").forEach((box) => { box.checked = false; }); draw(); };
  put(tray, h("span", {role: "status"}, chosen.size ? `${counted(chosen.size, "paper")} chosen` : "No paper chosen yet"),
    chosen.size > 0 && exportMenu([...chosen.values()], index), chosen.size > 0 && h("button", {class: "quiet", type: "button", on: {click: clear}}, "Clear"));
}
