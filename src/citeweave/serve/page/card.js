// One paper of a list: title, people, the sentence that matches, the reason, and what can be done with it.

import {h, icon} from "./dom.js";
import {link} from "./route.js";
import {authorsOf, clip, reasonOf, strengthOf, titleOf, toneOf} from "./words.js";
import {mark, markOf} from "./liked.js";
import {whyButton} from "./why.js";

const CLIPPED = 210;

export function card(hit, {rank = 0, tones = null, against = "", index = "", scored = true} = {}) {
  const reason = reasonOf(hit.why);
  return h("article", {class: "card", tabindex: "-1", data: {id: hit.id}, "aria-label": titleOf(hit)},
    h("h3", {}, h("a", {href: link({paper: hit.id, index})}, titleOf(hit))),
    metaOf(hit),
    textOf(hit, tones),
    reason && h("p", {class: "reason"}, reason),
    actions(hit, {rank, against, index, scored}));
}

export function metaOf(paper) {
  const outside = paper.outside && h("span", {class: "tag"}, "around the library");
  const parts = [authorsOf(paper), paper.venue && h("i", {}, paper.venue), paper.year || null, outside].filter(Boolean);
  return h("p", {class: "meta"}, parts.flatMap((part, at) => (at ? ["\u00a0· ", part] : [part])));
}

// the words under the title: matching sentences, evidence of earlier citations, or the abstract's beginning
function textOf(hit, tones) {
  const sentences = hit.sentences ?? [], matches = (hit.matches ?? []).filter((one) => sentences[one.sentence]);
  if (hit.evidence) return h("p", {class: "snippet"}, "Cited elsewhere as: ", h("mark", {}, evidenceText(hit.evidence)));
  if (!matches.length) return hit.abstract ? h("p", {class: "snippet"}, clip(hit.abstract, CLIPPED)) : null;
  return tones ? matched(matches, sentences, tones) : snippet(matches, sentences);
}

function evidenceText(evidence) {
  const first = Array.isArray(evidence) ? evidence[0] : evidence;
  return clip(String(first?.text ?? first?.sentence ?? first), CLIPPED);
}

// each matching sentence beside the number and color of the selected sentence that it matches
function matched(matches, sentences, tones) {
  const best = new Map();
  for (const one of matches) if (!(best.get(one.query)?.score >= one.score)) best.set(one.query, one);
  return h("ol", {class: "matched"}, [...best.values()].sort((a, b) => a.query - b.query).map((one) => {
    const tone = tones[one.query] ?? {number: one.query + 1, tone: toneOf(one.query)};
    return h("li", {data: {query: one.query}},
      h("span", {class: "number toned", vars: {"--tone": tone.tone}, title: "matches this selected sentence"}, tone.number),
      h("span", {}, h("mark", {class: "hit-mark", vars: {"--tone": tone.tone, "--strength": strengthOf(one.score)}},
        sentences[one.sentence])));
  }));
}

// the best sentence with its context
function snippet(matches, sentences) {
  const best = matches.reduce((a, b) => (b.score > a.score ? b : a)), at = best.sentence;
  const before = sentences[at - 1] ?? "", after = sentences[at + 1] ?? "";
  return h("p", {class: "snippet"},
    before && (before.length > 90 ? "… " + before.slice(-90).replace(/^\S*\s/, "") : before) + " ",
    h("mark", {}, sentences[at]), after && " " + clip(after, 110));
}

function actions(hit, {rank, against, index, scored}) {
  return h("div", {class: "actions"},
    thumb(hit, "like", "up", "More like this"), thumb(hit, "dislike", "down", "Less like this"),
    !against && h("a", {class: "button quiet", href: link({paper: hit.id, index})}, "Similar"),
    against && whyButton(against, hit.id, index),
    scored && Number.isFinite(hit.score) && h("span", {class: "score", title: `score, rank ${rank}`}, hit.score.toFixed(3)));
}

export function thumb(paper, kind, picture, label) {
  const button = h("button", {class: "quiet thumb", type: "button", "aria-label": label, title: label, data: {kind},
    "aria-pressed": String(markOf(paper.id) === kind)}, icon(picture));
  button.addEventListener("click", () => {
    const now = mark(paper, kind);
    for (const one of button.parentElement.querySelectorAll(".thumb")) one.ariaPressed = String(one.dataset.kind === now);
  });
  return button;
}
