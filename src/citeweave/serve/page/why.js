// Why two papers are similar: aligned sentences, shared references, papers that cite both, words in both.

import {get} from "./api.js";
import {h} from "./dom.js";
import {link, read} from "./route.js";
import {fillFrom} from "./states.js";
import {counted, titleOf, toneOf} from "./words.js";

const MAX_PAIRS = 4, MAX_LISTED = 8;

export function whyButton(left, right, index) {
  const button = h("button", {class: "quiet why-button", type: "button", "aria-expanded": "false"}, "Why");
  button.addEventListener("click", () => {
    const card = button.closest(".card"), open = card.querySelector(".why");
    button.ariaExpanded = String(!open);
    if (open) { open.remove(); return; }
    const place = h("div", {class: "why"});
    card.append(place);
    fillFrom(place, () => get("explain", {left, right, index}), reasons, undefined, 1);
  });
  return button;
}

function reasons(why) {
  const shared = why.shared_references ?? {}, known = shared.known ?? (Array.isArray(shared) ? shared : []);
  const unknown = shared.unknown ?? 0, together = Array.isArray(why.co_cited_by) ? why.co_cited_by : [];
  const words = why.words ?? why.shared_words ?? [];
  const parts = [
    pairs(why),
    known.length + unknown > 0 && papers(`They share ${counted(known.length + unknown, "reference")}`, known,
      unknown > 0 && `${counted(unknown, "reference")} outside the library`),
    together.length > 0 && papers(`Cited together by ${counted(together.length, "paper")}`, together),
    words.length > 0 && [h("h4", {}, "Words in both"), h("div", {class: "fields"},
      words.slice(0, 12).map((one) => h("span", {class: "tag"}, typeof one === "string" ? one : one.word)))],
  ].filter(Boolean);
  return parts.length ? parts : h("p", {class: "muted"}, "Only their vectors are similar: no matching sentences, references or words in common are known.");
}

const STRENGTHS = {
  strong: ["strong match", "closer than 999 of 1,000 pairs of sentences in this library"],
  close: ["match", "closer than 99 of 100 pairs of sentences in this library"],
};

// pairs of sentences that say something alike; papers that have only a title have none
function pairs(why) {
  const left = why.left?.sentences ?? [], right = why.right?.sentences ?? [];
  const known = (why.matches ?? []).filter((one) => left[one.left] && right[one.right] && STRENGTHS[one.strength]).slice(0, MAX_PAIRS);
  if (!known.length) return null;
  const side = (text, pair) => h("span", {vars: {"--tone": toneOf(pair.left)}}, text);
  return [h("h4", {}, "Matching sentences"), h("ol", {class: "pairs"}, known.map((pair) => {
    const [words, meaning] = STRENGTHS[pair.strength];
    return h("li", {}, h("b", {class: pair.strength, title: meaning}, words), side(left[pair.left], pair), side(right[pair.right], pair));
  }))];
}

export function papers(title, list, more = "") {
  return [h("h4", {}, title), h("ul", {class: "links"}, list.slice(0, MAX_LISTED).map((one) => h("li", {}, paperLink(one))),
    list.length > MAX_LISTED && h("li", {class: "muted"}, `and ${list.length - MAX_LISTED} more`),
    more && h("li", {class: "muted"}, more))];
}

export const paperLink = (one) => [h("a", {href: link({paper: one.id, index: read().index})}, titleOf(one)), one.year ? h("small", {class: "muted"}, ` ${one.year}`) : ""];
