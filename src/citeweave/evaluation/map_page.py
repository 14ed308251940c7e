"""The script of the map's page, written by hand: it reads the packed points, draws them and answers the reader.

Points are blended into an image of pixels, since 100,000 calls to draw a circle would take seconds. A grid of cells over
the map finds the point under the pointer. Everything that comes from the data is set as text, never as markup.
`data-frame` of the canvas tells how many milliseconds the last picture took.

A map of papers as one page: points on a canvas to move and zoom, titles to hover and search, topics to hide.

    Path("map.html").write_text(map_page(map_data), encoding="utf-8")

Points are packed as whole numbers of 16 bits, topics as 8, both in base64; 100,000 points and their titles are about
9 MB. The script is `map_script`; it loads nothing, and without it the page says so.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.randomness import stream
from citeweave.evaluation.html import (
    dots,
    json_text,
    number,
    one_line,
    page,
    text,
)
from citeweave.evaluation.paper_map import MapData
from citeweave.evaluation.style import DARK_GRAY, DARK_PALETTE, GRAY, PALETTE

SCRIPT = r"""
"use strict";
(() => {
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const titles = JSON.parse(byId("titles").textContent).split("\n");
const unpack = (packed) => Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
const xy = new Uint16Array(unpack(data.xy).buffer), topic = unpack(data.topic), n = topic.length;
const SIZE = 65536, CELLS = 256, LISTED = 12;
const plot = byId("plot"), tip = byId("tip"), ctx = plot.getContext("2d", {alpha: false});
const dark = matchMedia("(prefers-color-scheme: dark)");
const shown = data.topics.map(() => true);
let view = null, image = null, pixels = null, ratio = 1;   // view: middle of the screen on the map, pixels per unit
let matches = null, lit = -1, chosen = -1, waiting = false, lower = null;

// ---- points by cells of a grid: those of cell c are inCell[first[c]] up to inCell[first[c + 1]]
const first = new Uint32Array(CELLS * CELLS + 1), inCell = new Uint32Array(n);
const cellOf = (i) => (xy[2 * i + 1] >> 8) * CELLS + (xy[2 * i] >> 8);
for (let i = 0; i < n; i++) first[cellOf(i) + 1]++;
for (let c = 0; c < CELLS * CELLS; c++) first[c + 1] += first[c];
const next = first.slice();
for (let i = 0; i < n; i++) inCell[next[cellOf(i)]++] = i;

const isActive = (i) => shown[topic[i]] && (!matches || matches[i] === 1) && (lit < 0 || topic[i] === lit);

function nearest(x, y, reach) {   // of the active points, in pixels of the screen
  const [u, v] = toMap(x, y), r = reach / view.scale;
  const cell = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value / 256)));
  let best = -1, least = r * r;
  for (let row = cell(v - r); row <= cell(v + r); row++) {
    const line = row * CELLS;
    for (let at = first[line + cell(u - r)]; at < first[line + cell(u + r) + 1]; at++) {
      const i = inCell[at], du = xy[2 * i] - u, dv = xy[2 * i + 1] - v, far = du * du + dv * dv;
      if (far < least && isActive(i)) { least = far; best = i; }
    }
  }
  return best;
}

// ---- places: u, v on the map (v upwards), x, y in pixels of the canvas
const toMap = (x, y) => [view.u + (x - plot.width / 2) / view.scale, view.v - (y - plot.height / 2) / view.scale];
const toScreen = (i) => [(xy[2 * i] - view.u) * view.scale + plot.width / 2,
                         (view.v - xy[2 * i + 1]) * view.scale + plot.height / 2];
const low = [SIZE, SIZE], high = [0, 0];
for (let i = 0; i < 2 * n; i++) { low[i & 1] = Math.min(low[i & 1], xy[i]); high[i & 1] = Math.max(high[i & 1], xy[i]); }
const whole = () => 0.94 * Math.min(plot.width / Math.max(1, high[0] - low[0]), plot.height / Math.max(1, high[1] - low[1]));
function home() { view = {u: (low[0] + high[0]) / 2, v: (low[1] + high[1]) / 2, scale: whole()}; }
function zoom(factor, x = plot.width / 2, y = plot.height / 2) {
  const [u, v] = toMap(x, y);
  view.scale = Math.max(whole() / 2, Math.min(whole() * 400, view.scale * factor));
  view.u = u - (x - plot.width / 2) / view.scale;
  view.v = v + (y - plot.height / 2) / view.scale;
  later();
}
function move(dx, dy) {
  const keep = (value) => Math.max(0, Math.min(SIZE, value));
  view.u = keep(view.u - dx / view.scale); view.v = keep(view.v + dy / view.scale); later();
}

// ---- drawing
function parse(color) {
  const digits = color.trim().slice(1), full = digits.length === 3 ? [...digits].map((d) => d + d).join("") : digits;
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
}
function stamp(radius) {   // the pixels that a dot covers and how much of each
  const found = [], reach = Math.ceil(radius + 0.5);
  for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) {
    const cover = Math.round(256 * Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(dx, dy))));
    if (cover > 20) found.push([dx, dy, cover]);
  }
  return found;
}
function radiusOf() {
  const base = Math.max(1.1, Math.min(3.2, 150 / Math.sqrt(n)));
  return ratio * Math.min(7, base * Math.pow(view.scale / whole(), 0.35));
}
function pass(marks, colors, wanted, strength) {   // blend the points that are, or are not, active
  const width = plot.width, height = plot.height, scale = view.scale, count = marks.length, some = matches || lit >= 0;
  const left = width / 2 - view.u * scale, top = height / 2 + view.v * scale;
  const edge = marks.reduce((most, m) => Math.max(most, m[0]), 0);
  const offset = Int32Array.from(marks, (m) => m[1] * width + m[0]);
  const cover = Int32Array.from(marks, (m) => m[2] * strength);
  const redBlue = Int32Array.from(colors, (c) => c[2] << 16 | c[0]), green = Int32Array.from(colors, (c) => c[1] << 8);
  const open = Uint8Array.from(shown);
  for (let i = 0; i < n; i++) {
    const x = Math.round(xy[2 * i] * scale + left), y = Math.round(top - xy[2 * i + 1] * scale), t = topic[i];
    // a dot that would be cut by the edge is left out: no pixel has to be checked
    if (x < edge || y < edge || x >= width - edge || y >= height - edge || !open[t]) continue;
    if (some && isActive(i) !== wanted) continue;
    const start = y * width + x, rb = redBlue[t], g = green[t];
    for (let m = 0; m < count; m++) {
      const place = start + offset[m], old = pixels[place], a = cover[m], rest = 256 - a;
      pixels[place] = 0xff000000
        | (Math.imul(old & 0xff00ff, rest) + Math.imul(rb, a) >>> 8) & 0xff00ff
        | (Math.imul(old & 0xff00, rest) + Math.imul(g, a) >>> 8) & 0xff00;
    }
  }
}
function draw() {
  waiting = false;
  if (!plot.width || !plot.height) return;
  const began = performance.now(), style = getComputedStyle(document.body);
  const ground = parse(style.getPropertyValue("--ground")), ink = style.getPropertyValue("--ink");
  const palette = data.palette[dark.matches ? 1 : 0].map(parse), last = palette.length - 1;
  if (!image || image.width !== plot.width || image.height !== plot.height) {
    image = ctx.createImageData(plot.width, plot.height);
    pixels = new Uint32Array(image.data.buffer);
  }
  pixels.fill((0xff000000 | ground[2] << 16 | ground[1] << 8 | ground[0]) >>> 0);
  const own = data.topics.map((one) => palette[one[2]]), radius = radiusOf();
  const some = matches !== null || lit >= 0;
  if (some) pass(stamp(radius), own.map(() => palette[last]), false, 0.3);
  pass(stamp(some ? radius * 1.25 : radius), own, true, 0.85);
  ctx.putImageData(image, 0, 0);
  if (chosen >= 0) {
    const [x, y] = toScreen(chosen);
    ctx.beginPath(); ctx.arc(x, y, radius + 4 * ratio, 0, 7);
    ctx.strokeStyle = ink; ctx.lineWidth = 2 * ratio; ctx.stroke();
  }
  place();
  plot.dataset.frame = (performance.now() - began).toFixed(1);
}
function later() { if (!waiting) { waiting = true; requestAnimationFrame(draw); } }
function fit() {
  const box = byId("stage").getBoundingClientRect(), was = view && whole();
  ratio = Math.min(2, devicePixelRatio || 1);
  plot.width = Math.max(1, Math.round(box.width * ratio)); plot.height = Math.max(1, Math.round(box.height * ratio));
  if (view) view.scale *= whole() / was; else home();
  later();
}

// ---- the title of one point
function choose(i) {
  if (i === chosen) return;
  chosen = i; tip.textContent = "";
  if (i >= 0) {
    tip.append(titles[i] || "untitled");
    const name = document.createElement("small");
    name.textContent = data.topics[topic[i]][0]; tip.append(name);
  }
  later();
}
function place() {
  if (chosen < 0) return;
  const [x, y] = toScreen(chosen), width = plot.width / ratio, height = plot.height / ratio, gap = 12;
  const wide = tip.offsetWidth, high = tip.offsetHeight, cx = x / ratio, cy = y / ratio;
  tip.style.left = Math.max(4, Math.min(width - wide - 4, cx + gap + wide > width ? cx - gap - wide : cx + gap)) + "px";
  tip.style.top = Math.max(4, Math.min(height - high - 4, cy - high - gap < 0 ? cy + gap : cy - high - gap)) + "px";
}

// ---- pointer and keys
const fingers = new Map();
let pinch = 0;
const at = (event) => { const box = plot.getBoundingClientRect(); return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio]; };
plot.addEventListener("pointerdown", (event) => {
  plot.setPointerCapture(event.pointerId); fingers.set(event.pointerId, at(event)); pinch = 0;
  choose(nearest(...at(event), 14 * ratio));
});
plot.addEventListener("pointermove", (event) => {
  const now = at(event), before = fingers.get(event.pointerId);
  if (!before) { choose(nearest(...now, 10 * ratio)); return; }
  fingers.set(event.pointerId, now);
  if (fingers.size === 1) { move(now[0] - before[0], now[1] - before[1]); return; }
  const [a, b] = [...fingers.values()], apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
  if (pinch) zoom(apart / pinch, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
  pinch = apart;
});
for (const name of ["pointerup", "pointercancel"]) plot.addEventListener(name, (event) => { fingers.delete(event.pointerId); pinch = 0; });
plot.addEventListener("pointerleave", () => { if (!fingers.size) choose(-1); });
plot.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-Math.max(-200, Math.min(200, event.deltaY * (event.deltaMode ? 30 : 1))) / 300), ...at(event));
}, {passive: false});
plot.addEventListener("keydown", (event) => {
  const step = 60 * ratio, moves = {ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step]};
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (moves[event.key]) move(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.4);
  else if (event.key === "-") zoom(1 / 1.4);
  else if (event.key === "0") { home(); later(); }
  else if (event.key === "Escape") { choose(-1); return; }
  else return;
  event.preventDefault();
  choose(nearest(plot.width / 2, plot.height / 2, 80 * ratio));
});
byId("in").onclick = () => zoom(1.6);
byId("out").onclick = () => zoom(1 / 1.6);
byId("home").onclick = () => { home(); later(); };

// ---- legend
const boxes = data.topics.map(([name, count, color], t) => {
  const item = document.createElement("li"), label = document.createElement("label");
  const box = document.createElement("input"), dot = document.createElement("i");
  const words = document.createElement("span"), size = document.createElement("small");
  box.type = "checkbox"; box.checked = true; words.textContent = name; size.textContent = count.toLocaleString("en");
  dot.className = "c" + color;
  box.onchange = () => { shown[t] = box.checked; find(); };
  const light = (on) => () => { if (data.topics.length > 1) { lit = on && shown[t] ? t : -1; later(); } };
  label.onpointerenter = light(true); label.onpointerleave = light(false);
  box.onfocus = () => { if (box.matches(":focus-visible")) light(true)(); }; box.onblur = light(false);
  label.append(box, dot, words, size); item.append(label); byId("legend").append(item);
  return box;
});
const every = (on) => () => { boxes.forEach((box, t) => { box.checked = shown[t] = on; }); find(); };
byId("all").onclick = every(true);
byId("none").onclick = every(false);

// ---- words in titles
function find() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean), found = byId("found");
  found.textContent = ""; matches = null;
  let count = 0;
  if (words.length) {
    lower = lower || titles.map((title) => title.toLowerCase());
    matches = new Uint8Array(n);
    for (let i = 0; i < n; i++) {
      if (!shown[topic[i]] || !words.every((word) => lower[i].includes(word))) continue;
      matches[i] = 1;
      if (count++ < LISTED) found.append(entry(i));
    }
  }
  if (chosen >= 0 && !isActive(chosen)) choose(-1);
  byId("count").textContent = !words.length ? "" : count.toLocaleString("en") + (count === 1 ? " paper" : " papers")
    + (count > LISTED ? ", of which " + LISTED + " are listed" : "");
  later();
}
function entry(i) {
  const item = document.createElement("li"), button = document.createElement("button");
  button.textContent = titles[i] || "untitled";
  button.onclick = () => {
    view = {u: xy[2 * i], v: xy[2 * i + 1], scale: Math.max(view.scale, whole() * 6)};
    choose(i); later();
  };
  item.append(button); return item;
}
let pause = 0;
byId("filter").oninput = () => { clearTimeout(pause); pause = setTimeout(find, 120); };

dark.addEventListener("change", later);
new ResizeObserver(fit).observe(byId("stage"));
fit();
})();
"""


# A map of papers as one page: points on a canvas to move and zoom, titles to hover and search, topics to hide.

MAP, REPORT = "map.html", "report.html"
"""Names of the files, side by side in a report's folder."""

NO_TOPIC = "no topic"
TITLE_SIGNS = (80, 60, 40, 25)
TITLE_BYTES = 8_500_000
"""Titles are cut to the first of these lengths by which all of them fit into so many bytes."""

MOST_TOPICS = 250
"""Of more topics the smallest share an entry of the legend."""

PREVIEW_POINTS = 3000
_EXTENT = 65535


class Topics(NamedTuple):
    """The topics of a map."""

    names: list[str]
    colors: list[int]
    """Places in the palette; its length stands for gray."""

    of_paper: NDArray[np.uint8]
    """(papers,) places among the names."""


def map_page(map_data: MapData, *, title: str = "Map of papers", back: str = "") -> str:
    """The page; `back` is the file of the report to link, such as `report.html`."""
    # in a random order, else the last topic lies over all others
    order = stream(0, "map page").permutation(len(map_data.xy))  # (n,)
    topics = number_topics(map_data.labels)
    counts = np.bincount(topics.of_paper, minlength=len(topics.names)).tolist()
    data = {
        "xy": _base64(pack(map_data.xy)[order], "<u2"),
        "topic": _base64(topics.of_paper[order], "u1"),
        "topics": list(zip(topics.names, counts, topics.colors, strict=True)),
        "palette": [[*PALETTE, GRAY], [*DARK_PALETTE, DARK_GRAY]],
    }
    titles = _titles([map_data.titles[row] for row in order.tolist()])
    link = f' <a href="{text(back)}">report</a>' if back else ""
    body = (
        f"<header><h1>{text(title)}</h1><p>{facts(map_data)}{link}</p></header>\n{_STAGE}\n{_ASIDE}\n"
        f'<script type="application/json" id="data">{json_text(data)}</script>\n'
        f'<script type="application/json" id="titles">{titles}</script>'
    )
    return page(title, body, script=SCRIPT, kind="map")


_STAGE = """<main id="stage">
<canvas id="plot" tabindex="0" role="img" aria-describedby="help" aria-label="map of papers"></canvas>
<div id="tip" role="status" aria-live="polite"></div>
<div id="tools"><button id="in" aria-label="zoom in">+</button><button id="out" aria-label="zoom out">−</button>
<button id="home" aria-label="show all">⌂</button></div>
<noscript><p>This map is drawn by a script in this page, and scripts are switched off. The report beside it needs none.</p></noscript>
</main>"""

_ASIDE = """<aside>
<label for="filter">Find in titles</label>
<input id="filter" type="search" autocomplete="off" spellcheck="false">
<p id="count" class="muted" role="status"></p>
<ul id="found"></ul>
<h2>Topics</h2>
<p><button id="all">show all</button> <button id="none">hide all</button></p>
<ul id="legend"></ul>
<p id="help" class="muted">Drag to move, wheel or pinch to zoom, point at a dot for its title. With the keyboard: arrows,
+, − and 0; the title is that of the dot nearest to the middle. Only nearness means something on this map.</p>
</aside>"""


def facts(map_data: MapData) -> str:
    """How many papers, how well topics hold together, and the map's note."""
    count = len(map_data.xy)
    told = f"{count:,} {'paper' if count == 1 else 'papers'}"
    if math.isfinite(map_data.homogeneity):
        told += f", homogeneity {number(map_data.homogeneity)}, completeness {number(map_data.completeness)}"
    return f"{told}. {text(map_data.note, 500)}".strip()


def preview(map_data: MapData) -> str:
    """A small picture of the map for the report, of some of its points."""
    topics = number_topics(map_data.labels)
    order = stream(0, "map page").permutation(len(map_data.xy))[:PREVIEW_POINTS]  # (shown,)
    colors = np.array(topics.colors)[topics.of_paper[order]]  # (shown,)
    picture = dots(map_data.xy[order], colors, len(PALETTE) + 1)
    named = [_key(*one) for one in zip(topics.names, topics.colors, strict=True)]
    more = len(named) - len(PALETTE) - 1
    keys = [*named[: len(PALETTE)], _key(f"{more + 1:,} more", len(PALETTE))] if more > 0 else named
    some = f" Shown: {len(order):,} of them." if len(order) < len(map_data.xy) else ""
    return f'<figure><div class="preview">{picture}</div><figcaption>{"".join(keys)}</figcaption></figure><p>{facts(map_data)}{some}</p>'


def _key(name: str, color: int) -> str:
    dot = f'<svg width="10" height="10" aria-hidden="true"><path class="dots c{color}" stroke-width="9" d="M5 5h0"/></svg>'
    return f'<span class="key">{dot}{text(name, 40)}</span>'


def number_topics(labels: Sequence[str]) -> Topics:
    """Number topics by their size, the largest first; small ones beyond the legend and papers without any come last.

    >>> found = number_topics(["a", "b", "b", ""])
    >>> found.names, found.colors, found.of_paper.tolist()
    (['b', 'a', 'no topic'], [0, 1, 20], [1, 0, 0, 2])
    """
    lines = [one_line(label, 80) for label in labels]
    sizes = Counter(lines)
    unnamed = sizes.pop("", 0)
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    names = ordered[:MOST_TOPICS]
    colors = [min(number, len(PALETTE)) for number in range(len(names))]
    place = {name: number for number, name in enumerate(names)}
    if rest := ordered[MOST_TOPICS:]:
        place |= dict.fromkeys(rest, len(names))
        names, colors = [*names, f"{len(rest):,} smaller topics"], [*colors, len(PALETTE)]
    if unnamed:
        place[""] = len(names)
        names, colors = [*names, NO_TOPIC], [*colors, len(PALETTE)]
    return Topics(names, colors, np.array([place[line] for line in lines], np.uint8))


def pack(xy: NDArray[Any]) -> NDArray[np.uint16]:
    """(n, 2) whole numbers from 0 to 65535, the same scale on both axes.

    >>> pack(np.array([[0.0, 0.0], [2.0, 1.0]])).tolist()
    [[0, 16384], [65535, 49151]]
    """
    wide = np.asarray(xy, np.float64)
    low, high = wide.min(axis=0), wide.max(axis=0)
    size = float((high - low).max()) or 1.0
    places = np.rint(_EXTENT * (0.5 + (wide - (low + high) / 2) / size)).clip(0, _EXTENT)
    return np.asarray(places, np.uint16)


def _base64(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def _titles(titles: Sequence[str]) -> str:
    """All titles as one JSON string, a line each."""
    found = ""
    for most in TITLE_SIGNS:
        found = json_text("\n".join(one_line(title, most) for title in titles))
        if len(found.encode()) <= TITLE_BYTES:
            break
    return found
