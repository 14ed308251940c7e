"use strict";
(() => {
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const titles = JSON.parse(byId("titles").textContent).split("\n");
const unpack = (packed) => Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
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
