// The map: every paper is a point, colored by field, year or cluster; the legend hides and shows groups; a click opens a paper.

import {get, post} from "./api.js";
import {segments} from "./controls.js";
import {h, put, announce} from "./dom.js";
import {groupBy, knowsFields} from "./map_groups.js";
import {Stage} from "./map_stage.js";
import {readPoints} from "./map_points.js";
import {changed, go, link, note} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {counted, number, secondsLeft} from "./words.js";

const AGAIN = 2000, HIGHLIGHTED = 100;
let kept = {state: null, index: "", points: null};

export function showMap(route, place, signal) {
  document.title = "Map · citeweave";
  return fillFrom(place, () => get("map", {index: route.index}, signal),
    (answer) => (answer.pending || answer.working ? working(answer, route, place, signal) : view(answer, route, place, signal)), signal, 3);
}

function working(answer, route, place, signal) {
  setTimeout(() => { if (!signal.aborted) showMap(route, place, signal); }, AGAIN);
  const {done, total, seconds_left: left} = answer.working ?? {};
  return empty("The map is being computed", ["It opens automatically when it is ready.", total && `${number(done)} of ${number(total)}`, left && secondsLeft(left)].filter(Boolean).join(" "),
    h("progress", {max: total || 1, value: total ? done : null, "aria-label": "The map is being computed"}));
}

function view(answer, route, place, signal) {
  if (kept.state !== answer.state || kept.index !== (route.index ?? "")) kept = {state: answer.state, index: route.index ?? "", points: readPoints(answer)};
  const {points} = kept;
  if (!points.n) return empty("No points yet", "Points appear once papers are embedded.");
  const kinds = [points.fields.length > 1 && ["field", "Field"], points.clusters.length && ["cluster", "Topic"], ["year", "Year"]].filter(Boolean);
  const usual = kinds[0][0] === "field" && !knowsFields(points) ? kinds[1][0] : kinds[0][0];
  const kind = kinds.some(([one]) => one === route.color) ? route.color : usual;
  const state = {route, grouping: groupBy(points, kind), hidden: hiddenOf(route)};
  const open = (paper) => go(link({paper: paper.id, index: route.index}));
  const stage = new Stage(points, {open, moved: (view) => { state.route = {...state.route, ...view}; note(link(state.route)); }});
  const recolor = (color) => go(changed(state.route, {color, hide: ""}), {replace: true});
  stage.look.grouping = state.grouping;
  stage.look.shown = state.grouping.groups.map((_, at) => !state.hidden.has(at));
  const found = h("div", {});
  queueMicrotask(() => { stage.start(route, signal); if (route.q) findOnMap(route, points, stage, found, signal); });
  return h("div", {class: "map"}, stage.element, h("div", {class: "map-side"},
    h("p", {class: "muted small"}, `${counted(points.n, "paper")}. Points that are close together are similar papers.`),
    segments("color", "Color by", kinds, kind, recolor), legend(state, stage), found));
}

const hiddenOf = (route) => new Set((route.hide ?? "").split(",").filter((one) => /^\d+$/.test(one)).map(Number));

// ---- legend
function legend(state, stage) {
  const {groups} = state.grouping, {look} = stage;
  const apply = () => {
    look.shown = groups.map((_, at) => !state.hidden.has(at));
    state.route = {...state.route, hide: [...state.hidden].join(",")};
    note(link(state.route));
    stage.later();
  };
  const boxes = groups.map((group, at) => h("input", {type: "checkbox", checked: !state.hidden.has(at), on: {change: (event) => {
    if (event.target.checked) state.hidden.delete(at); else state.hidden.add(at);
    apply();
  }}}));
  const light = (at) => () => { look.lit = at >= 0 && look.shown[at] && groups.length > 1 ? at : -1; stage.later(); };
  const every = (on) => () => {
    state.hidden = new Set(on ? [] : groups.keys());
    boxes.forEach((box) => { box.checked = on; });
    apply();
  };
  const entries = groups.map((group, at) => h("li", {}, h("label", {on: {pointerenter: light(at), pointerleave: light(-1)}},
    boxes[at], h("i", {vars: {"--dot": `light-dark(${group.color[0]},${group.color[1]})`}}), h("span", {}, group.name), h("small", {}, number(group.size)))));
  return h("fieldset", {class: "legend"}, h("legend", {class: "hidden"}, "Groups on the map"), h("ul", {}, entries),
    h("div", {class: "tools"}, h("button", {type: "button", on: {click: every(true)}}, "All"), h("button", {type: "button", on: {click: every(false)}}, "None")));
}

// ---- the hits of a query, as highlighted points
async function findOnMap(route, points, stage, place, signal) {
  try {
    const {hits} = await post("search", {text: route.q, count: HIGHLIGHTED, ...(route.index ? {index: route.index} : {})}, signal);
    const rows = new Set(hits.map((one) => one.row)), found = new Uint8Array(points.n);
    let count = 0;
    for (let i = 0; i < points.n; i++) if (rows.has(points.row[i])) { found[i] = 1; count++; }
    stage.look.found = found;
    stage.later();
    announce(`${counted(count, "paper")} highlighted on the map`);
    put(place, h("p", {class: "note"}, `${counted(count, "paper")} nearest to the query are highlighted. `, h("a", {href: changed(route, {q: ""})}, "Show all")));
  } catch (error) { if (error.name !== "AbortError") put(place, h("p", {class: "note"}, error.what ?? String(error))); }
}
