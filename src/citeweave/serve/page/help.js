// The keys that the page knows, and the overlay that lists them.

import {h, put, byId} from "./dom.js";
import {go} from "./route.js";
import {moveFocus, openFocused} from "./results.js";
import {pressSentence} from "./paper_view.js";

const KEYS = [
  [["/"], "search"], [["j", "k"], "next and previous paper"], [["Enter"], "open the paper"],
  [["s"], "select the next sentence of the abstract"], [["w"], "why this paper is similar"], [["m"], "map"], [["d"], "search from a draft"],
  [["?"], "this help"], [["Esc"], "close, or leave an input field"],
];

export function toggleHelp() {
  const dialog = byId("help");
  if (dialog.open) { dialog.close(); return; }
  put(dialog, h("h2", {id: "help-title"}, "Keyboard shortcuts"),
    h("dl", {}, KEYS.flatMap(([keys, words]) => [h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, words)])),
    h("p", {class: "small muted"}, 'In the search box: author:"Jacob Devlin", year:2019, year:2015-2020, venue:ACL, "exact words", a DOI, an arXiv or PubMed id, a citation key, a title.'),
    h("p", {class: "small muted"}, "On the map: arrow keys move, + and - zoom, 0 shows everything, Enter opens the paper in the center."),
    h("div", {class: "tools"}, h("button", {type: "button", class: "primary", on: {click: () => dialog.close()}}, "Close")));
  dialog.showModal();
}

const ACTS = {
  "/": () => { byId("q").focus(); byId("q").select(); return true; },
  j: () => (moveFocus(1), true),
  k: () => (moveFocus(-1), true),
  s: pressSentence,
  w: () => { const button = document.activeElement?.closest?.(".card")?.querySelector(".why-button"); button?.click(); return Boolean(button); },
  m: () => (go("?view=map"), true),
  d: () => (go("?view=draft"), true),
  "?": () => (toggleHelp(), true),
  Enter: openFocused,
};

const writes = (element) => element?.matches?.("input:not([type=checkbox],[type=radio]),textarea,select,[contenteditable]");

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || byId("help").open) return;
    if (writes(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
    if (Object.hasOwn(ACTS, event.key) && ACTS[event.key]()) event.preventDefault();
  });
}
