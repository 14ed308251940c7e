// The entry point: shows the view of the address, and runs the header, its form and its keys.

import {h, put, byId, icon} from "./dom.js";
import {read, link, go, listen, onRoute} from "./route.js";
import {startHealth, watch, health} from "./health.js";
import {startSuggestions} from "./suggest.js";
import {startKeys, toggleHelp} from "./help.js";
import {drawTray} from "./liked.js";
import {doorsOf, showHome} from "./home_view.js";
import {showLiked, showSearch} from "./search_view.js";
import {showPaper} from "./paper_view.js";
import {empty, failed} from "./states.js";

// rarely used views are loaded when they are opened
const later = (path, name) => async (...args) => (await import(path))[name](...args);
const VIEWS = {
  home: showHome, search: showSearch, liked: showLiked, paper: showPaper,
  draft: later("./draft_view.js", "showDraft"), map: later("./map_view.js", "showMap"),
  graph: later("./graph_view.js", "showGraph"), compare: later("./compare_view.js", "showCompare"),
  samples: later("./samples_view.js", "showSamples"), lacking: later("./lacking_view.js", "showLacking"),
};

let run = null, closeSuggestions = () => {};

async function show({moved = false, top = 0} = {}) {
  run?.abort();
  run = new AbortController();
  const {signal} = run, route = read(), place = byId("main");
  const known = Object.hasOwn(VIEWS, route.view) && !(route.view === "paper" && !route.paper);
  const view = known ? VIEWS[route.view] : null;
  document.body.dataset.view = view ? route.view : "none";
  byId("q").value = route.q ?? "";
  closeSuggestions();
  openMenu(false);
  drawNav(health());
  drawTray();
  if (moved) { place.focus({preventScroll: true}); scrollTo(0, 0); }
  try {
    if (view) await view(route, place, signal);
    else put(place, empty("No such page", "This address does not belong to any view.", h("a", {class: "button primary", href: "?"}, "Back to home")));
  } catch (error) {
    if (signal.aborted) return;
    console.error(error);
    put(place, failed({what: "An error occurred on this page.", next: "Reload it."}, () => location.reload()));
  }
  if (moved && top && !signal.aborted) scrollTo(0, top);
}

// ---- header
function drawNav(known) {
  const {view} = read();
  put(byId("nav"), doorsOf(known).map(([href, , , short]) => h("a", {class: "button quiet", href,
    "aria-current": link({view}) === href ? "page" : null}, short)),
  h("button", {class: "quiet", type: "button", "aria-label": "Light or dark", title: "Light or dark", on: {click: turnTheme}}, icon("moon")),
  h("button", {class: "quiet", type: "button", "aria-label": "Help and keys", title: "Help and keys", on: {click: toggleHelp}}, "?"));
}

function turnTheme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("citeweave-theme", root.dataset.theme); } catch { /* holds for this page */ }
  dispatchEvent(new Event("themechange"));
}

function openMenu(open) {
  byId("nav").classList.toggle("open", open);
  byId("menu").ariaExpanded = String(open);
}

// a new query keeps the filters and options of the current search
function submit(event) {
  event.preventDefault();
  const q = byId("q").value.trim(), route = read();
  if (!q) { byId("q").focus(); return; }
  const kept = ["search", "map", "compare"].includes(route.view) ? route : {index: route.index};
  go(link({...kept, view: kept.view ?? "search", q, count: ""}));
}

onRoute(show);
listen();
startKeys();
closeSuggestions = startSuggestions();
byId("ask").addEventListener("submit", submit);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") openMenu(false); });
byId("menu").addEventListener("click", () => openMenu(!byId("nav").classList.contains("open")));
watch(drawNav);
// most views need aspects and indexes of the library: a short wait avoids drawing twice
Promise.race([startHealth(), new Promise((done) => setTimeout(done, 400))]).then(() => show());
