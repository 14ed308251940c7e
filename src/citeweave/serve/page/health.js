// The state of the server: polled often while it works or does not respond, seldom otherwise. Draws the line at the top.

import {get} from "./api.js";
import {h, put, byId} from "./dom.js";
import {number, secondsLeft} from "./words.js";

const BUSY = 1500, CALM = 30000, SILENT = 3000;
let known = null, silent = false, timer = 0, waiting = [];
const watchers = [];

export const health = () => known;
export const watch = (act) => { watchers.push(act); if (known) act(known); };
export const onAnswer = (act) => { waiting.push(act); if (!silent) ask(); };

async function ask() {
  clearTimeout(timer);
  try {
    known = await get("health");
    const back = silent;
    silent = false;
    if (back || waiting.length) { const acts = waiting; waiting = []; acts.forEach((act) => act()); }
    watchers.forEach((act) => act(known));
  } catch (error) { silent = error.status === 0; }
  draw();
  timer = setTimeout(ask, silent ? SILENT : known?.working || isLoading() ? BUSY : CALM);
}

const isLoading = () => known?.reads_texts === false && known.model;

function draw() {
  const place = byId("health");
  place.classList.toggle("bad", silent);
  if (silent) { put(place, "The server is not responding. This page stays as it is; retrying."); return; }
  const working = known?.working;
  if (!working) { put(place, isLoading() && "The model is loading. You can already search by words."); return; }
  const {what, done, total, seconds_left: left} = working, doing = what === "embedding" ? "Embedding papers" : what;
  put(place,
    h("span", {}, `${doing}: ${number(done)} of ${number(total)}`),
    h("progress", {max: total || 1, value: done || 0, "aria-label": doing}),
    h("span", {class: "muted"}, ["You can already search by words", left && secondsLeft(left)].filter(Boolean).join(" · ")));
}

export const startHealth = () => ask();
