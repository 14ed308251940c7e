// A list of hits: keyboard moves through its cards, more are loaded on request, all can be exported.

import {h} from "./dom.js";
import {card} from "./card.js";
import {exportMenu} from "./export.js";
import {changed, go} from "./route.js";
import {counted, sentence} from "./words.js";
import {empty} from "./states.js";

export const STEP = 20, MAX_HITS = 500;
export const shownCount = (route) => Math.max(STEP, Math.min(MAX_HITS, Number.parseInt(route.count, 10) || STEP));

export const list = (hits, options = {}) => h("ol", {class: "results", data: {list: "results"}},
  hits.map((hit, at) => h("li", {}, card(hit, {...options, rank: at + 1}))));

// heading, notes, cards and "more"
export function results(answer, route, {title, options = {}, nothing = null}) {
  const {hits} = answer;
  if (!hits.length) return answer.coming ? notYet(answer.coming) : nothing ?? noHits(route, answer.note);
  const quick = answer.took_ms === undefined ? "" : ` in ${Math.max(1, Math.round(answer.took_ms))} ms`;
  return h("section", {"aria-label": title},
    h("div", {class: "head"}, h("h1", {}, title),
      h("div", {class: "tools"}, h("small", {class: "muted"}, counted(hits.length, "paper") + quick), exportMenu(hits, route.index))),
    answer.note && h("p", {class: "note"}, answer.note, answer.coming && `; ${answer.coming}, and this page updates automatically`),
    list(hits, {...options, scored: answer.by !== "hybrid"}), // fused scores do not measure similarity
    more(hits, route));
}

function more(hits, route) {
  const shown = shownCount(route);
  if (hits.length < shown || shown >= MAX_HITS) return null;
  const next = () => go(changed(route, {count: shown + STEP}), {replace: true});
  return h("div", {class: "tools"}, h("button", {type: "button", id: "more", on: {click: next}}, `Show ${STEP} more`));
}

const notYet = (coming) => h("section", {class: "state", role: "status", data: {state: "loading"}},
  h("h2", {}, "Nothing found by words yet"),
  h("p", {}, `${sentence(coming)} This page updates automatically.`));

function noHits(route, note) {
  const filtered = route.year_from || route.year_to || route.venue || route.field;
  const free = changed(route, {year_from: "", year_to: "", venue: [], field: []});
  return empty("Nothing found", filtered && note ? sentence(note) : filtered ? "No paper in the library matches with these filters."
    : "No paper in the library matches. Try fewer or different words.",
  filtered && h("a", {class: "button primary", href: free}, "Remove the filters"),
  h("a", {class: "button", href: "?view=draft"}, "Paste an abstract instead"));
}

// ---- keyboard: the card that has the focus is the current one
export function moveFocus(step) {
  const cards = [...document.querySelectorAll(".card")];
  if (!cards.length) return;
  const now = cards.findIndex((one) => one.contains(document.activeElement));
  const next = cards[Math.max(0, Math.min(cards.length - 1, now < 0 ? 0 : now + step))];
  next.focus();
  next.scrollIntoView({block: "nearest"});
}

export function openFocused() {
  const current = document.activeElement?.closest?.(".card");
  if (!current || document.activeElement !== current) return false;
  current.querySelector("h3 a").click();
  return true;
}
