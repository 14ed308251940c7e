// The map: every paper is a point, colored by field, year or cluster; the legend hides and shows groups; a click opens a paper.

import {get, post} from "./api.js";
import {segments} from "./controls.js";
import {h, put, announce} from "./dom.js";
import {PaperMap, unpack} from "./map.js";
import {groupBy, knowsFields} from "./map_groups.js";
import {changed, go, link, note, read} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {clip, counted, number, secondsLeft, titleOf} from "./words.js";

const AGAIN = 2000, REQUESTED = 1000, SHARE = 0.5, LETTERED = 120;
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

function readPoints(answer) {
  const xy = unpack(answer.xy, Uint16Array);
  return {
    xy, n: xy.length / 2, row: unpack(answer.row, Int32Array), year: unpack(answer.year, Int16Array), titles: new Map(),
    field: unpack(answer.field), fields: answer.fields ?? [], cluster: unpack(answer.cluster), clusters: answer.clusters ?? [],
  };
}

function view(answer, route, place, signal) {
  if (kept.state !== answer.state || kept.index !== (route.index ?? "")) kept = {state: answer.state, index: route.index ?? "", points: readPoints(answer)};
  const {points} = kept;
  if (!points.n) return empty("No points yet", "Points appear once papers are embedded.");
  const kinds = [points.fields.length > 1 && ["field", "Field"], points.clusters.length && ["cluster", "Topic"], ["year", "Year"]].filter(Boolean);
  const usual = kinds[0][0] === "field" && !knowsFields(points) ? kinds[1][0] : kinds[0][0];
  const kind = kinds.some(([one]) => one === route.color) ? route.color : usual;
  const {of, groups} = groupBy(points, kind), found = h("div", {}), state = {route};
  const moved = (change) => { state.route = {...state.route, ...change}; note(link(state.route)); };
  const parts = {canvas: canvas(), tip: h("div", {id: "tip", role: "status"})};
  const tool = (text, label, act) => h("button", {type: "button", "aria-label": label, title: label, on: {click: act}}, text);
  parts.stage = h("div", {id: "stage"}, parts.canvas, parts.tip, h("div", {id: "map-tools"},
    tool("+", "Zoom in", () => map.zoom(1.6)), tool("−", "Zoom out", () => map.zoom(1 / 1.6)), tool("All", "Show all", () => map.home())));
  const map = new PaperMap({xy: points.xy, of, clusters: points.clusters}, parts, {
    begin: () => begin(map, points, route),
    titlesOf: titleFinder(points, () => map.later()),
    describe: teller(points, (i) => groups[of[i]]?.name),
    moved: ({u, v, zoom}) => moved({at: `${u},${v},${zoom}`, focus: ""}),
    open: async (i) => { const {id} = await paperOf(points, i); if (id) go(link({paper: id, index: route.index})); },
  });
  const recolor = (color) => go(changed(state.route, {color, hide: ""}), {replace: true});
  const side = h("div", {class: "map-side"},
    h("p", {class: "muted small"}, `${counted(points.n, "paper")}. Points that are close together are similar papers. Zoom in to read titles.`),
    found,
    segments("color", "Color by", kinds, kind, recolor),
    legend(map, groups, route, (shown) => moved({hide: [...shown.keys()].filter((at) => !shown[at]).join(",")})));
  queueMicrotask(() => { map.start(signal); if (route.q) findOnMap(route, points, map, found, signal); });
  return h("div", {class: "map"}, parts.stage, side);
}

const canvas = () => h("canvas", {id: "plot", tabindex: "0", role: "application", "aria-roledescription": "map",
  "aria-label": "Map of the papers. Arrow keys move, plus and minus zoom, Enter opens the paper in the center."});

// where the address says: "at=u,v,zoom", or a paper's row
function begin(map, points, route) {
  const [u, v, zoom] = (route.at ?? "").split(",").map(Number), focus = points.row.indexOf(Number(route.focus ?? -1));
  if (zoom > 0 && Number.isFinite(u) && Number.isFinite(v)) map.look(u, v, zoom);
  else if (focus >= 0) map.goTo(focus, 4);
}

// ---- titles, which are requested when the pointer rests on a point
function teller(points, groupOf) {
  let asking = 0;
  return (i, tell) => {
    const say = (paper) => tell(clip(titleOf(paper), 160), [points.year[i] > 0 && points.year[i], groupOf(i)].filter(Boolean).join(" · "));
    const known = points.titles.get(points.row[i]);
    clearTimeout(asking);
    if (known) { say(known); return; }
    tell("…");
    asking = setTimeout(() => paperOf(points, i).then(say), 60);
  };
}

// titles of the points in view, requested together once the map rests; "" until they are known
function titleFinder({row: rows, titles}, later) {
  let pause = 0;
  return (points) => {
    const unknown = points.map((i) => rows[i]).filter((row) => !titles.has(row));
    clearTimeout(pause);
    if (unknown.length) pause = setTimeout(async () => {
      try {
        const told = (await get("map/titles", {rows: unknown.join(","), index: read().index})).titles ?? {};
        for (const row of unknown) titles.set(row, told[row] ?? {id: "", title: ""});
        later();
      } catch { /* the titles stay away; a pointer that rests on a point says why */ }
    }, LETTERED);
    return points.map((i) => titles.get(rows[i])?.title ?? "");
  };
}

async function paperOf({row: rows, titles}, i) {
  const row = rows[i];
  if (!titles.has(row)) {
    try {
      const told = (await get("map/titles", {rows: row, index: read().index})).titles?.[row];
      if (told) titles.set(row, typeof told === "string" ? {id: "", title: told} : told);
    } catch (error) { return {id: "", title: error.what ?? "no answer"}; }
  }
  return titles.get(row) ?? {id: "", title: "no longer in the library"};
}

// ---- legend
function legend(map, groups, route, changed) {
  const hidden = new Set((route.hide ?? "").split(",").filter((one) => /^\d+$/.test(one)).map(Number));
  const [all, none] = ["All", "None"].map((text) => h("button", {type: "button"}, text));
  const labels = groups.map((group, at) => h("label", {}, h("input", {type: "checkbox", checked: !hidden.has(at)}),
    h("i", {vars: {"--dot": `light-dark(${group.color[0]},${group.color[1]})`}}), h("span", {}, group.name), h("small", {}, number(group.size))));
  map.bindLegend(labels, all, none, changed);
  return h("fieldset", {class: "legend"}, h("legend", {class: "hidden"}, "Groups on the map"), h("ul", {}, labels.map((label) => h("li", {}, label))),
    h("div", {class: "tools"}, all, none));
}

// ---- the papers that match a query, as highlighted points

// what a search found by name fits as a whole; of what it ranked, the papers with at least half of the best score
function matching({hits, read: how = {}, confidence = ""}) {
  const named = Object.keys(how).length > 0 && !how.text;
  if (named || !hits.length) return {hits, rule: ""};
  if (confidence === "none") return {hits: [], rule: ""};
  return {hits: hits.filter((one) => one.score >= SHARE * hits[0].score), rule: ": at least half as relevant as the best one"};
}

async function findOnMap(route, points, map, place, signal) {
  try {
    const {hits, rule} = matching(await post("search", {text: route.q, count: REQUESTED, ...(route.index ? {index: route.index} : {})}, signal));
    const rows = new Set(hits.map((one) => one.row)), found = new Uint8Array(points.n);
    let count = 0;
    for (let i = 0; i < points.n; i++) if (rows.has(points.row[i])) { found[i] = 1; count++; }
    map.found = found;
    map.refresh();
    const words = `${counted(count, "paper")} of ${number(points.n)} ${count === 1 ? "matches" : "match"} “${clip(route.q, 60)}”${count ? rule : ""}. `;
    announce(words);
    put(place, h("p", {class: "note"}, words, h("a", {href: changed(route, {q: ""})}, "Show all")));
  } catch (error) { if (error.name !== "AbortError") put(place, h("p", {class: "note"}, error.what ?? String(error))); }
}
