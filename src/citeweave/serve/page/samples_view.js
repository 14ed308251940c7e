// Mined samples: an anchor, its positives and negatives, each with the rule that selected it.

import {get} from "./api.js";
import {h} from "./dom.js";
import {changed, go} from "./route.js";
import {empty, fillFrom} from "./states.js";
import {counted, number} from "./words.js";
import {paperLink} from "./why.js";

const COUNT = 10;

export function showSamples(route, place, signal) {
  document.title = "Samples · citeweave";
  const start = Math.max(0, Number.parseInt(route.start, 10) || 0);
  return fillFrom(place, () => get("samples", {anchor: route.anchor, start, count: COUNT}, signal), (answer) => view(answer, route, start), signal);
}

function view(answer, route, start) {
  const samples = answer.samples ?? [], total = answer.total ?? start + samples.length;
  const filter = h("input", {type: "search", name: "anchor", value: route.anchor, placeholder: "id of an anchor", "aria-label": "Only samples of the paper with this id"});
  const submit = (event) => { event.preventDefault(); go(changed(route, {anchor: filter.value.trim(), start: ""})); };
  const head = h("div", {class: "head"}, h("h1", {}, "Samples"), h("form", {class: "tools", on: {submit}}, filter, h("button", {type: "submit"}, "Show")));
  if (!samples.length) return [head, empty("No samples", route.anchor ? "No sample has this paper as its anchor." : "There are no more samples.")];
  return [head, h("p", {class: "note"}, `${number(start + 1)} to ${number(start + samples.length)} of ${counted(total, "sample")}. `,
    "A model learns to place the anchor closer to its positives than to its negatives."),
  samples.map(sample), pager(route, start, samples.length, total)];
}

function sample(one) {
  const anchor = one.anchor ?? {}, positives = one.positives ?? [one.positive].filter(Boolean), negatives = one.negatives ?? [one.negative].filter(Boolean);
  return h("article", {class: "sample"}, h("h3", {}, paperLink(anchor)), one.aspect && h("span", {class: "tag"}, one.aspect),
    h("div", {class: "roles"}, picks("near", "Positives", positives), picks("far", "Negatives", negatives)));
}

const picks = (kind, title, papers) => h("section", {class: kind}, h("h4", {}, title), h("ul", {}, papers.map((one) => h("li", {},
  h("span", {class: "tag", title: "the rule that selected it"}, one.rule ?? "?"), h("span", {}, paperLink(one))))));

function pager(route, start, shown, total) {
  const to = (at, text) => h("a", {class: "button", href: changed(route, {start: at || ""})}, text);
  return h("div", {class: "tools"}, start > 0 && to(Math.max(0, start - COUNT), "Previous"), start + shown < total && to(start + COUNT, "Next"));
}
