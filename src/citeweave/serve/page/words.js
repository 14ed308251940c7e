// Numbers, names and reasons in plain English.

export const number = (value) => Number(value ?? 0).toLocaleString("en");
export const counted = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;
export const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
export const titleOf = (paper) => (paper?.title || "").trim() || `untitled (${paper?.id ?? "?"})`;
export const clip = (text, max) => (text.length > max ? text.slice(0, max).replace(/[\s.,;:]*(\s\S{0,20})?$/, "") + "…" : text);

export const authorNames = (paper) => (paper.authors ?? []).map((one) => (typeof one === "string" ? one : one.name ?? "")).filter(Boolean);

const size = (value) => (Array.isArray(value) ? value.length : typeof value === "object" && value
  ? (value.known?.length ?? 0) + (value.unknown ?? 0) : Number(value ?? 0));

// why two papers are similar, as a line: "cites it · shares 4 references · co-cited by 3"
export function reasonOf(why) {
  if (!why) return "";
  const cites = {left: "cited by this paper", right: "cites this paper", both: "each cites the other"}[why.cites];
  const shared = size(why.shared_references), together = size(why.co_cited_by);
  return [
    cites,
    shared > 0 && `shares ${counted(shared, "reference")}`,
    together > 0 && `co-cited by ${counted(together, "paper")}`,
  ].filter(Boolean).join(" · ");
}

// how strongly a match of sentences is colored, in percent; cosines below 0.2 are all weak
export const strengthOf = (score) => Math.round(10 + 32 * Math.max(0, Math.min(1, (score - 0.2) / 0.6)));

export const toneOf = (at) => `var(--c${at % 8})`;

export function secondsLeft(seconds) {
  if (!Number.isFinite(seconds)) return "";
  return seconds < 90 ? `about ${Math.max(1, Math.round(seconds))} s left` : `about ${Math.round(seconds / 60)} min left`;
}

// a page elsewhere that shows the paper, or "" (only addresses made here, never one from the data)
export function elsewhere(id) {
  const [kind, ...rest] = id.split(":"), name = rest.join(":");
  if (/^doi$/i.test(kind) && /^10\./.test(name)) return "https://doi.org/" + encodeURI(name);
  if (/^arxiv$/i.test(kind) && /^[\w.\/-]+$/.test(name)) return "https://arxiv.org/abs/" + encodeURI(name);
  if (/^pmid$/i.test(kind) && /^\d+$/.test(name)) return "https://pubmed.ncbi.nlm.nih.gov/" + name;
  return "";
}
