// The citation neighborhood of a paper: older papers to the left, newer ones to the right, lines from citing to cited.

import {get} from "./api.js";
import {h, s} from "./dom.js";
import {link, read} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {clip, counted, titleOf} from "./words.js";
import {paperLink} from "./why.js";

const LABELED = 14, ROWS = [0, 2, -2, 4, -4, 1, -1, 3, -3];

export function showGraph(route, place, signal) {
  document.title = "Neighborhood · citeweave";
  return fillFrom(place, () => get("neighborhood", {paper: route.paper, index: route.index}, signal), (answer) => view(answer, route), signal, 2);
}

const endsOf = (edge) => (Array.isArray(edge) ? edge : [edge.citing, edge.cited]);

function view(answer, route) {
  const nodes = answer.nodes ?? [], known = new Set(nodes.map((one) => one.id));
  const edges = (answer.edges ?? []).map(endsOf).filter(([citing, cited]) => known.has(citing) && known.has(cited));
  const center = nodes.find((one) => one.id === (answer.paper?.id ?? answer.paper ?? route.paper)) ?? nodes[0];
  const back = h("a", {class: "button", href: link({paper: route.paper, index: route.index})}, "Back to the paper");
  if (nodes.length < 2) return empty("No neighbors", "The library has no paper that cites this one or is cited by it. Import citations to see them.", back);
  const cited = new Set(edges.filter(([from]) => from === center.id).map(([, to]) => to));
  const citing = new Set(edges.filter(([, to]) => to === center.id).map(([from]) => from));
  const kindOf = (id) => (id === center.id ? "itself" : citing.has(id) ? "citing" : cited.has(id) ? "cited" : "near");
  return h("section", {},
    h("div", {class: "head"}, h("h1", {}, titleOf(center)), back),
    h("p", {class: "keyed"}, h("span", {}, h("i", {}), counted(cited.size, "paper"), " it cites"), h("span", {}, h("i", {class: "full"}), counted(citing.size, "paper"), " that cite it")),
    picture(nodes, edges, center, kindOf),
    h("div", {class: "columns"}, group("References", nodes.filter((one) => cited.has(one.id))), group("Cited by", nodes.filter((one) => citing.has(one.id)))));
}

const group = (title, papers) => h("section", {class: "links"}, h("h2", {}, title),
  papers.length ? h("ul", {}, papers.map((one) => h("li", {}, paperLink(one)))) : h("p", {class: "muted"}, "none"));

// ---- positions: x by year, y wherever there is room
function picture(nodes, edges, center, kindOf) {
  const narrow = matchMedia("(max-width: 40rem)").matches, width = narrow ? 400 : 1100, few = nodes.length <= 16;
  const letters = narrow ? 16 : few ? 42 : 28, room = narrow ? 130 : few ? 310 : 215;
  const years = nodes.map((one) => one.year || 0).filter(Boolean), first = Math.min(...years), last = Math.max(...years);
  const span = Math.max(1, last - first), plot = width - 60;
  const xOf = (node) => 24 + (years.length && node.year ? ((node.year - first) / span) * plot : plot / 2);
  const degree = new Map();
  for (const edge of edges) for (const id of edge) degree.set(id, (degree.get(id) ?? 0) + 1);
  const order = [...nodes].sort((a, b) => (b === center) - (a === center) || (degree.get(b.id) ?? 0) - (degree.get(a.id) ?? 0));
  const labeled = new Set(order.slice(0, narrow ? 6 : LABELED).map((one) => one.id));
  const isLate = (x) => x > width - room - 30; // its label is on the left
  const boxOf = (node) => { const x = xOf(node), wide = labeled.has(node.id) ? room : 22; return isLate(x) ? [x - wide, x + 20] : [x - 20, x + wide]; };
  const places = lay(order, xOf, boxOf, narrow ? 30 : 40);
  const height = Math.max(...[...places.values()].map(([, y]) => y)) + 46;
  const lines = edges.map(([from, to]) => line(places.get(from), places.get(to), from === center.id || to === center.id, from, to));
  const dots = order.map((node) => dot(node, places.get(node.id), kindOf(node.id), labeled.has(node.id), letters, lines, isLate));
  return s("svg", {class: "graph", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Citing and cited papers by year"},
    axis(years.length ? first : 0, last, 24, plot, height), lines, dots.reverse());
}

// each begins in a row of its own, and goes outwards until nothing is in the way
function lay(order, xOf, boxOf, gap) {
  const taken = [], places = new Map();
  const isFree = (row, [from, to]) => !taken.some((one) => one.row === row && from < one.to && one.from < to);
  order.forEach((node, at) => {
    const box = boxOf(node), start = ROWS[at % ROWS.length];
    let away = 0, row = start;
    while (!isFree(row, box)) { away = away > 0 ? -away : 1 - away; row = start + away; }
    taken.push({from: box[0], to: box[1], row});
    places.set(node.id, [xOf(node), row]);
  });
  const top = Math.min(...taken.map((one) => one.row));
  for (const [id, [x, row]] of places) places.set(id, [x, 24 + (row - top) * gap]);
  return places;
}

function line([x1, y1], [x2, y2], own, from, to) {
  const bend = Math.min(60, Math.abs(x2 - x1) / 3 + 12);
  return s("path", {class: own ? "edge own" : "edge", d: `M${x1} ${y1}C${x1 - bend} ${y1} ${x2 + bend} ${y2} ${x2} ${y2}`, "data-from": from, "data-to": to});
}

function dot(node, [x, y], kind, labeled, letters, lines, isLate) {
  const title = titleOf(node), light = (on) => () => {
    for (const one of lines) one.classList.toggle("lit", on && (one.dataset.from === node.id || one.dataset.to === node.id));
  };
  return s("a", {href: link({paper: node.id, index: read().index}), class: `${kind}${labeled ? "" : " quiet"}`, "aria-label": `${title} ${node.year || ""}`,
    on: {pointerenter: light(true), pointerleave: light(false), focus: light(true), blur: light(false)}},
  s("circle", {cx: x, cy: y, r: kind === "itself" ? 7 : 5}), s("circle", {cx: x, cy: y, r: 15, "fill-opacity": 0, "stroke-opacity": 0}),
  s("text", {x: isLate(x) ? x - 12 : x + 12, y: y + 4, "text-anchor": isLate(x) ? "end" : "start"}, clip(title, letters)));
}

function axis(first, last, left, plot, height) {
  if (!first) return null;
  const step = Math.max(1, Math.ceil((last - first) / 6)), marks = [];
  for (let year = first; year <= last; year += step) {
    const x = left + ((year - first) / Math.max(1, last - first)) * plot;
    marks.push(s("line", {class: "axis", x1: x, x2: x, y1: 0, y2: height - 24}), s("text", {x, y: height - 6, "text-anchor": "middle"}, year));
  }
  return marks;
}
