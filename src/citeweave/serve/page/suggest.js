// Suggests titles of the library while the user types; arrow keys select one, Enter opens it.

import {get} from "./api.js";
import {h, put, byId} from "./dom.js";
import {go, link, read} from "./route.js";
import {clip, titleOf} from "./words.js";

const PAUSE = 140, MIN_LENGTH = 3, MAX_SUGGESTIONS = 6;

export function startSuggestions() {
  const input = byId("q"), list = byId("suggestions");
  let timer = 0, run = null, at = -1;
  const items = () => [...list.children];
  const close = () => { list.hidden = true; at = -1; input.ariaExpanded = "false"; input.removeAttribute("aria-activedescendant"); clearTimeout(timer); run?.abort(); };
  const choose = (next) => {
    at = next;
    items().forEach((item, place) => { item.ariaSelected = String(place === at); });
    if (at >= 0) input.setAttribute("aria-activedescendant", items()[at].id); else input.removeAttribute("aria-activedescendant");
  };
  const open = (found) => {
    put(list, found.slice(0, MAX_SUGGESTIONS).map((paper, place) => entry(paper, place, close)));
    list.hidden = !list.children.length || document.activeElement !== input;
    input.ariaExpanded = String(!list.hidden);
    at = -1;
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    const text = input.value.trim();
    if (text.length < MIN_LENGTH) { close(); return; }
    timer = setTimeout(async () => {
      run?.abort(); run = new AbortController();
      try { open((await get("suggest", {q: text, index: read().index}, run.signal)).suggestions ?? []); } catch { /* suggestions are optional */ }
    }, PAUSE);
  });
  input.addEventListener("keydown", (event) => {
    const count = items().length;
    if (event.key === "Escape") { if (!list.hidden) { event.stopPropagation(); close(); } else input.blur(); }
    if (list.hidden || !count) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      choose(event.key === "ArrowDown" ? Math.min(count - 1, at + 1) : Math.max(-1, at - 1));
    } else if (event.key === "Enter" && at >= 0) { event.preventDefault(); items()[at].dispatchEvent(new Event("pick")); }
  });
  input.addEventListener("blur", () => setTimeout(close, 120));
  return close;
}

function entry(suggestion, place, close) {
  const paper = suggestion.id ? suggestion : {title: suggestion.text}; // a title of the library, or words to search for
  const act = (event) => { event.preventDefault(); close(); go(link({...(paper.id ? {paper: paper.id} : {q: paper.title}), index: read().index})); };
  return h("li", {id: `suggestion-${place}`, role: "option", "aria-selected": "false", on: {mousedown: act, pick: act}},
    clip(titleOf(paper), 110), paper.year ? h("small", {}, paper.year) : null);
}
