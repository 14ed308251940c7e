// One paper of a list: title, people, the sentence that matches, the reason, and what can be done with it.

import {h, icon, announce} from "./dom.js";
import {link} from "./route.js";
import {authorNames, clip, number, reasonOf, strengthOf, titleOf, toneOf} from "./words.js";
import {mark, markOf} from "./liked.js";
import {whyButton} from "./why.js";

const CLIPPED = 210, NAMED = 4; // characters of an abstract; authors before "and 7 others"

export function card(hit, {rank = 0, tones = null, against = "", index = "", scored = true, phrases = []} = {}) {
  const reason = reasonOf(hit.why), phrase = phrases.length ? patternOf(phrases) : null;
  return h("article", {class: "card", tabindex: "-1", data: {id: hit.id}, "aria-label": titleOf(hit)},
    h("h3", {}, h("a", {href: link({paper: hit.id, index})}, phrase ? marked(titleOf(hit), phrase) : titleOf(hit))),
    metaOf(hit, {index}),
    (phrase && quoted(hit, phrase)) ?? textOf(hit, tones),
    reason && h("p", {class: "reason"}, reason),
    actions(hit, {rank, against, index, scored}));
}

export function metaOf(paper, {index = "", named = NAMED} = {}) {
  const outside = paper.outside && h("span", {class: "tag"}, "around the library"), people = authorsOf(paper, index, named);
  const cited = paper.cited_by_count > 0 && `cited by ${number(paper.cited_by_count)}`;
  const parts = [people.length > 0 && people, paper.venue && h("i", {}, paper.venue), paper.year || null, cited, outside].filter(Boolean);
  return h("p", {class: "meta"}, parts.flatMap((part, at) => (at ? ["\u00a0· ", part] : [part])));
}

// "A. Reed, B. Cole and 4 others", each a link to that person's papers
function authorsOf(paper, index, max) {
  const names = authorNames(paper), shown = names.length <= max + 1 ? names : names.slice(0, max), others = names.slice(shown.length);
  const linked = (list) => list.flatMap((name, at) => [at ? ", " : "", authorLink(name, index)]);
  if (!others.length) return linked(shown);
  const rest = h("span", {hidden: true}, ", ", linked(others));
  const more = h("button", {class: "inline-more", type: "button"}, `and ${others.length} others`);
  more.addEventListener("click", () => { rest.hidden = false; rest.querySelector("a").focus(); more.remove(); });
  return [linked(shown), " ", more, rest];
}

const authorLink = (name, index) => h("a", {class: "author", href: link({q: `author:"${name.replaceAll('"', "")}"`, index})}, name);

// the words under the title: matching sentences, evidence of earlier citations, or the abstract's beginning
function textOf(hit, tones) {
  const sentences = hit.sentences ?? [], matches = (hit.matches ?? []).filter((one) => sentences[one.sentence]);
  if (hit.evidence) return h("p", {class: "snippet"}, "Cited elsewhere as: ", h("mark", {}, evidenceText(hit.evidence)));
  if (!matches.length || (!hit.abstract && !tones)) return hit.abstract ? h("p", {class: "snippet"}, clip(hit.abstract, CLIPPED)) : null;
  return tones ? matched(matches, sentences, tones) : snippet(matches, sentences);
}

// a quoted phrase as the server finds it: its words in order, whatever stands between them
function patternOf(phrases) {
  const words = phrases.map((one) => one.match(/[\p{L}\p{N}]+/gu)?.join("[^\\p{L}\\p{N}]+")).filter(Boolean);
  return words.length ? new RegExp(`(?<![\\p{L}\\p{N}])(${words.join("|")})(?![\\p{L}\\p{N}])`, "iu") : null;
}

const marked = (text, phrase, tag = "mark") => text.split(phrase).map((part, at) => (at % 2 ? h(tag, {}, part) : part));

// the first sentence with the phrase, between its neighbors; null where only the title has it
function quoted(hit, phrase) {
  const sentences = hit.sentences ?? (hit.abstract ?? "").split(/(?<=[.!?])\s+(?=\p{Lu})/u), at = sentences.findIndex((one) => phrase.test(one));
  return at < 0 || !hit.abstract ? null : inContext(sentences, at, h("mark", {}, marked(sentences[at], phrase, "b")));
}

function evidenceText(evidence) {
  const first = Array.isArray(evidence) ? evidence[0] : evidence;
  const text = String(first?.text ?? first?.sentence ?? first).replace(/^[^\p{L}\p{N}("“]+/u, "");
  return clip(text.replace(/^(?:(?:\d{1,2}\.)+\d{0,2}|\d{1,2})\s+(?=\p{Lu})/u, ""), CLIPPED); // a heading's number
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
  const best = matches.reduce((a, b) => (b.score > a.score ? b : a));
  return inContext(sentences, best.sentence, h("mark", {}, sentences[best.sentence]));
}

function inContext(sentences, at, shown) {
  const before = sentences[at - 1] ?? "", after = sentences[at + 1] ?? "";
  return h("p", {class: "snippet"},
    before && (before.length > 90 ? "… " + before.slice(-90).replace(/^\S*\s/, "") : before) + " ",
    shown, after && " " + clip(after, 110));
}

function actions(hit, {rank, against, index, scored}) {
  return h("div", {class: "actions"},
    thumb(hit, "like", "up", "More like this"), thumb(hit, "dislike", "down", "Less like this"),
    !against && h("a", {class: "button quiet", href: link({paper: hit.id, index})}, "Similar"),
    against && whyButton(against, hit.id, index), hit.key && copyButton(hit.key, "Copy key"),
    scored && Number.isFinite(hit.score) && h("span", {class: "score", title: `score, rank ${rank}`}, hit.score.toFixed(3)));
}

// a button that copies a text, and says so
export function copyButton(text, label) {
  const button = h("button", {class: "quiet copy", type: "button", title: text}, label);
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Not copied";
    announce(done ? `copied: ${text}` : "this browser does not allow copying");
    setTimeout(() => { button.textContent = label; }, 2000);
  });
  return button;
}

// pages from other machines over http have no clipboard of their own
async function copied(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* the older way */ }
  const field = h("textarea", {class: "hidden", "aria-hidden": "true"}, text);
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
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
