// A list of hits: keyboard moves through its cards, more are loaded on request, all can be exported.

import {h} from "./dom.js";
import {card} from "./card.js";
import {exportMenu} from "./export.js";
import {filtered, isOfTag, withoutFilters} from "./filters.js";
import {changed, go, link} from "./route.js";
import {counted, number, sentence} from "./words.js";
import {empty} from "./states.js";
import {health} from "./health.js";

export const STEP = 20, MAX_HITS = 500;
export const shownCount = (route) => Math.max(STEP, Math.min(MAX_HITS, Number.parseInt(route.count, 10) || STEP));

export const list = (hits, options = {}) => h("ol", {class: "results", data: {list: "results"}},
  hits.map((hit, at) => h("li", {}, card(hit, {...options, rank: at + 1}))));

// heading, notes, cards and "more"
export function results(answer, route, {title, options = {}, nothing = null}) {
  const {hits} = answer;
  if (!hits.length) return answer.coming ? notYet(answer.coming) : nothing ?? noHits(route, answer);
  const sure = isOfTag(route) || !["low", "none"].includes(answer.confidence), note = isOfTag(route) ? "" : answer.note;
  const quick = answer.took_ms === undefined ? "" : ` in ${Math.max(1, Math.round(answer.took_ms))} ms`;
  return h("section", {"aria-label": title},
    h("div", {class: "head"}, h("h1", {}, title),
      h("div", {class: "tools"}, h("small", {class: "muted"}, totalOf(answer) + quick),
        route.view === "search" && h("a", {class: "button quiet", href: link({view: "map", q: route.q, index: route.index})}, "Show on the map"),
        exportMenu(hits, route.index))),
    sure ? note && h("p", {class: "note"}, note, answer.coming && `; ${answer.coming}, and this page updates automatically`)
      : unsure(answer.note),
    list(hits, {...options, phrases: answer.read?.phrases ?? [], scored: !["hybrid", "names"].includes(answer.by)}), // others do not measure similarity
    more(answer, route));
}

// "37 papers", "20 of 37 papers", or "the 20 best": every paper is somehow near a question, and the number of nearly all says nothing
export function totalOf({hits, total = hits.length}) {
  const isTold = total > hits.length && total <= (health()?.papers ?? Infinity) / 2;
  if (isTold) return `${number(hits.length)} of ${counted(total, "paper")}`;
  return total > hits.length ? `the ${number(hits.length)} best` : counted(hits.length, "paper");
}

const unsure = (note) => h("p", {class: "unsure", role: "note"}, h("b", {}, sentence(note || "no close match: these are the nearest")), " ", OTHER_WORDS);

function more({hits, total = MAX_HITS}, route) {
  const shown = shownCount(route);
  if (hits.length < shown || hits.length >= total || shown >= MAX_HITS) return null;
  const next = () => go(changed(route, {count: shown + STEP}), {replace: true});
  return h("div", {class: "tools"}, h("button", {type: "button", id: "more", on: {click: next}}, `Show ${STEP} more`));
}

const notYet = (coming) => h("section", {class: "state", role: "status", data: {state: "loading"}},
  h("h2", {}, "Nothing found by words yet"),
  h("p", {}, `${sentence(coming)} This page updates automatically.`));

const OTHER_WORDS = "Try other words, or the name of an author.", OTHER_IDS = "Check the id, or search by the title.";

function noHits(route, {note, confidence, read = {}}) {
  const some = filtered(route), advice = read.ids && !read.text ? OTHER_IDS : OTHER_WORDS;
  return empty("Nothing found", note ? sentence(note) + (confidence === "none" ? ` ${advice}` : "") : some ? "No paper in the library matches with these filters."
    : "No paper in the library matches. Try fewer or different words, or the name of an author.",
  some && h("a", {class: "button primary", href: withoutFilters(route)}, "Remove the filters"),
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
