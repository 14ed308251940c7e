// What a view shows while it loads, when there is nothing, and when something went wrong.

import {h, put, announce} from "./dom.js";
import {onAnswer} from "./health.js";
import {sentence} from "./words.js";

export const waiting = (count = 4) => h("div", {"aria-busy": "true", "aria-label": "Loading", data: {state: "waiting"}},
  Array.from({length: count}, () => h("div", {class: "skeleton", "aria-hidden": "true"}, h("i"), h("i"), h("i"), h("i"))),
  h("p", {class: "slow"}, "Still working. A large library may take a few seconds."));

export const empty = (title, words, ...tools) => h("section", {class: "state", data: {state: "empty"}},
  h("h2", {}, title), h("p", {}, words), tools.length > 0 && h("div", {class: "tools"}, tools));

export function failed(error, again) {
  const offline = error.status === 0;
  const isWorthAgain = again && ![400, 404, 413, 422].includes(error.status); // a retry would fail the same way
  const title = offline ? "The server did not respond" : error.status === 404 ? "Not in this library" : "Something went wrong";
  announce(error.what ?? "An error");
  return h("section", {class: "state", role: "alert", data: {state: offline ? "offline" : "error"}},
    h("h2", {}, title), h("p", {}, error.what ?? String(error)), error.next && h("p", {}, error.next),
    h("div", {class: "tools"},
      error.instead && h("a", {class: "button", href: error.instead.href}, error.instead.words),
      isWorthAgain && h("button", {class: "primary", type: "button", on: {click: again}}, "Try again"),
      h("a", {class: isWorthAgain ? "button" : "button primary", href: "?"}, "Back to home")));
}

// what only needs time; the page retries automatically
const loading = (words) => h("section", {class: "state", role: "status", data: {state: "loading"}},
  h("h2", {}, "Not ready yet"), h("p", {}, sentence(words)), h("p", {}, "This page updates automatically."));

const PAUSE = 2000;
const comingOf = (answer) => [answer].flat().map((one) => one?.coming).find(Boolean);

// fill a place with what a promise brings: a skeleton first, then the content or the error's words
export async function fillFrom(place, ask, show, signal, skeletons = 4) {
  const again = () => fillFrom(place, ask, show, signal, skeletons);
  const later = (act) => setTimeout(() => { if (!signal?.aborted && place.isConnected) act(); }, PAUSE);
  put(place, waiting(skeletons));
  const fill = async (shown = "") => {
    try {
      const answer = await ask(), coming = comingOf(answer);
      if (signal?.aborted) return;
      if (!shown || coming !== shown) put(place, await show(answer)); // what is being read stays until there is more
      if (coming) later(() => fill(coming));
    } catch (error) {
      if (signal?.aborted || error.name === "AbortError") return;
      if (error.status === undefined) console.error(error);
      put(place, error.coming ? loading(error.what) : failed(error, again));
      if (error.coming) later(fill);
      if (error.status === 0) onAnswer(() => { if (!signal?.aborted) again(); });
    }
  };
  return fill();
}
