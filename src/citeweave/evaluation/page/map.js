// A map of papers to look at and move: used by the explorer, and inside map.html beside a report.
//
//   const map = new PaperMap({xy, of, clusters}, {stage, canvas, tip}, {describe, titlesOf, open, moved, begin});
//   map.bindLegend(labels, all, none, changed);
//   map.start(signal);
//
// xy: Uint16Array of 2 n places. of: group of each point. clusters: names to write, {name, size, x, y}. describe(i, tell)
// calls tell(title, details); titlesOf([i, ...]) returns the known ones, "" for others, and calls later() when it knows more;
// open(i), moved({u, v, zoom}), begin() and titlesOf may be left out. Colors come from the style: groups
// from the legend's dots, the rest from the canvas (its background, and its color for points that are not highlighted)
// and the tip (text). Points are blended into an image of pixels: 100,000 calls to draw a circle would take seconds.
// `data-frame` of the canvas holds the milliseconds that the last frame took, `data-titles` how many titles it shows.

const SIZE = 65536, CELLS = 256, REST = 160, CLICK = 6, SLOW = 28, TITLED = 80, LETTERS = 52;
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const rgb = (color) => color.match(/\d+/g).slice(0, 3).map(Number);

export function unpack(packed, Type = Uint8Array) {
  const bytes = Uint8Array.from(atob(packed ?? ""), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer, 0, Math.floor(bytes.length / Type.BYTES_PER_ELEMENT));
}

export class PaperMap {
  constructor({xy, of, clusters = []}, parts, {describe, titlesOf, open, moved, begin}) {
    Object.assign(this, {xy, of, n: xy.length / 2, describe, titlesOf, open, moved, begin}, parts);
    Object.assign(this, {view: null, found: null, lit: -1, chosen: -1, ratio: 1, frame: 0, fingers: new Map(), pinch: 0, traveled: 0});
    this.clusters = clusters.filter((one) => one.name).sort((a, b) => b.size - a.size);
    this.context = this.canvas.getContext("2d", {alpha: false});
    this.sortIntoCells();
  }

  start(signal) {
    const theme = () => { if (this.view) { this.readColors(); this.later(); } }, size = new ResizeObserver(() => this.fit());
    size.observe(this.stage);
    addEventListener("themechange", theme, {signal});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme, {signal});
    signal?.addEventListener("abort", () => size.disconnect());
    this.listen();
  }

  readColors() {
    const [canvas, tip, ...dots] = [this.canvas, this.tip, ...this.dots].map((one) => getComputedStyle(one));
    this.colors = dots.map((dot) => rgb(dot.backgroundColor));
    Object.assign(this, {ground: rgb(canvas.backgroundColor), faded: rgb(canvas.color), ink: tip.color, font: tip.fontFamily});
  }

  // ---- the legend: a label with a checkbox and a dot for each group
  bindLegend(labels, all, none, changed) {
    const boxes = labels.map((label) => label.querySelector("input"));
    const apply = () => { Object.assign(this, {shown: boxes.map((box) => box.checked), lit: -1}); changed(this.shown); this.refresh(); };
    const every = (on) => () => { boxes.forEach((box) => { box.checked = on; }); apply(); };
    this.dots = labels.map((label) => label.querySelector("i"));
    this.shown = boxes.map((box) => box.checked);
    all.addEventListener("click", every(true));
    none.addEventListener("click", every(false));
    labels.forEach((label, at) => {
      const box = boxes[at], light = (on) => () => { this.lit = on && this.shown[at] && labels.length > 1 ? at : -1; this.later(); };
      box.addEventListener("change", apply);
      box.addEventListener("focus", () => { if (box.matches(":focus-visible")) light(true)(); });
      box.addEventListener("blur", light(false));
      label.addEventListener("pointerenter", light(true));
      label.addEventListener("pointerleave", light(false));
    });
  }

  isActive(i) { return this.shown[this.of[i]] && (!this.found || this.found[i] === 1) && (this.lit < 0 || this.of[i] === this.lit); }
  refresh() { if (this.chosen >= 0 && !this.isActive(this.chosen)) this.choose(-1); this.later(); } // after groups were hidden or papers found

  // ---- points of cell c are inCell[first[c]] up to inCell[first[c + 1]]
  sortIntoCells() {
    const {xy, n} = this, first = new Uint32Array(CELLS * CELLS + 1), inCell = new Uint32Array(n), low = [SIZE, SIZE], high = [0, 0];
    const cellOf = (i) => (xy[2 * i + 1] >> 8) * CELLS + (xy[2 * i] >> 8);
    for (let i = 0; i < n; i++) first[cellOf(i) + 1]++;
    for (let c = 0; c < CELLS * CELLS; c++) first[c + 1] += first[c];
    const next = first.slice();
    for (let i = 0; i < n; i++) inCell[next[cellOf(i)]++] = i;
    for (let i = 0; i < 2 * n; i++) { low[i & 1] = Math.min(low[i & 1], xy[i]); high[i & 1] = Math.max(high[i & 1], xy[i]); }
    Object.assign(this, {first, inCell, low, high});
  }

  // the nearest active point to a place on the canvas, within a reach in pixels of the page; -1 if there is none
  nearest(x, y, pixels) {
    const {xy, first, inCell} = this, [u, v] = this.toMap(x, y), reach = (pixels * this.ratio) / this.view.scale;
    const cell = (value) => clamp(Math.floor(value / 256), 0, CELLS - 1);
    let best = -1, closest = reach * reach;
    for (let row = cell(v - reach); row <= cell(v + reach); row++) {
      for (let at = first[row * CELLS + cell(u - reach)]; at < first[row * CELLS + cell(u + reach) + 1]; at++) {
        const i = inCell[at], du = xy[2 * i] - u, dv = xy[2 * i + 1] - v, far = du * du + dv * dv;
        if (far < closest && this.isActive(i)) { closest = far; best = i; }
      }
    }
    return best;
  }

  // ---- places: u, v on the map (v upwards), x, y in pixels of the canvas; view is the middle, and pixels per unit
  toMap(x, y) { return [this.view.u + (x - this.canvas.width / 2) / this.view.scale, this.view.v - (y - this.canvas.height / 2) / this.view.scale]; }
  toScreen(u, v) { return [(u - this.view.u) * this.view.scale + this.canvas.width / 2, (this.view.v - v) * this.view.scale + this.canvas.height / 2]; }
  placeOf(i) { return this.toScreen(this.xy[2 * i], this.xy[2 * i + 1]); }
  whole() { return 0.92 * Math.min(...[this.canvas.width, this.canvas.height].map((size, at) => size / Math.max(1, this.high[at] - this.low[at]))); }
  look(u, v, zoom) { this.view = {u, v, scale: this.whole() * Math.min(400, zoom)}; this.later(); }
  home() { this.look((this.low[0] + this.high[0]) / 2, (this.low[1] + this.high[1]) / 2, 1); }
  goTo(i, zoom) { this.look(this.xy[2 * i], this.xy[2 * i + 1], Math.max(zoom, this.view.scale / this.whole())); this.choose(i); }

  fit() {
    const box = this.stage.getBoundingClientRect(), was = this.view && this.whole();
    this.ratio = Math.min(2, devicePixelRatio || 1);
    this.canvas.width = Math.max(1, Math.round(box.width * this.ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * this.ratio));
    if (this.view) this.view.scale *= this.whole() / was; else { this.readColors(); this.home(); this.begin?.(); }
    this.later();
  }

  zoom(factor, x = this.canvas.width / 2, y = this.canvas.height / 2) {
    const [u, v] = this.toMap(x, y), scale = clamp(this.view.scale * factor, this.whole() / 2, this.whole() * 400);
    this.view = {u: u - (x - this.canvas.width / 2) / scale, v: v + (y - this.canvas.height / 2) / scale, scale};
    this.rest();
  }

  move(dx, dy) {
    const {view: {u, v, scale}} = this;
    Object.assign(this.view, {u: clamp(u - dx / scale, 0, SIZE), v: clamp(v + dy / scale, 0, SIZE)});
    this.rest();
  }

  // while it moves a picture may be coarse; at rest it is whole
  rest() {
    this.moving = true;
    this.later();
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.moving = false;
      this.later();
      this.moved?.({u: Math.round(this.view.u), v: Math.round(this.view.v), zoom: (this.view.scale / this.whole()).toFixed(2)});
    }, REST);
  }

  // ---- the label of a point
  choose(i) {
    if (i === this.chosen) return;
    this.chosen = i;
    this.canvas.classList.toggle("over", i >= 0);
    this.tip.replaceChildren();
    this.later();
    if (i >= 0) this.describe(i, (title, details = "") => { if (this.chosen === i) this.tell(title, details); });
  }

  tell(title, details) {
    this.tip.replaceChildren(title, document.createElement("small"));
    this.tip.lastChild.textContent = details;
    this.placeTip();
  }

  placeTip() {
    if (this.chosen < 0) return;
    const {tip, canvas, ratio, chosen} = this, gap = 14, wide = tip.offsetWidth, high = tip.offsetHeight;
    const [x, y] = this.placeOf(chosen).map((one) => one / ratio), width = canvas.width / ratio;
    tip.style.setProperty("left", `${clamp(x + gap + wide > width ? x - gap - wide : x + gap, 4, width - wide - 4)}px`);
    tip.style.setProperty("top", `${clamp(y - high - gap < 0 ? y + gap : y - high - gap, 4, canvas.height / ratio - high - 4)}px`);
  }

  // ---- pointer and keys
  at(event) { const box = this.canvas.getBoundingClientRect(); return [(event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio]; }

  listen() {
    const {canvas, fingers} = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, this.at(event));
      Object.assign(this, {pinch: 0, traveled: 0, chosenBefore: this.chosen});
      this.choose(this.nearest(...this.at(event), 14));
    });
    canvas.addEventListener("pointermove", (event) => this.pointerMoved(event));
    canvas.addEventListener("pointerup", (event) => this.pointerLifted(event));
    canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); this.pinch = 0; });
    canvas.addEventListener("pointerleave", () => { if (!fingers.size) this.choose(-1); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-clamp(event.deltaY * (event.deltaMode ? 30 : 1), -200, 200) / 300), ...this.at(event));
    }, {passive: false});
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  pointerMoved(event) {
    const now = this.at(event), before = this.fingers.get(event.pointerId);
    if (!before) { this.choose(this.nearest(...now, 10)); return; }
    this.fingers.set(event.pointerId, now);
    this.traveled += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (this.fingers.size === 1) { this.move(now[0] - before[0], now[1] - before[1]); return; }
    const [a, b] = [...this.fingers.values()], apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
    if (this.pinch) this.zoom(apart / this.pinch, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
    this.pinch = apart;
  }

  // a mouse opens at once; a finger first sees the title, and opens at the second tap
  pointerLifted(event) {
    this.fingers.delete(event.pointerId);
    this.pinch = 0;
    if (this.chosen < 0 || this.traveled > CLICK * this.ratio) return;
    if (event.pointerType === "mouse" || this.chosen === this.chosenBefore) this.open?.(this.chosen);
  }

  key(event) {
    const step = 60 * this.ratio, moves = {ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step]};
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.move(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") { this.home(); this.rest(); }
    else if (event.key === "Enter" && this.open && this.chosen >= 0) { event.preventDefault(); this.open(this.chosen); return; }
    else if (event.key === "Escape") { this.choose(-1); return; }
    else return;
    event.preventDefault();
    this.choose(this.nearest(this.canvas.width / 2, this.canvas.height / 2, 90));
  }

  // ---- drawing
  later() {
    if (this.waiting || !this.view) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); this.placeTip(); });
  }

  draw() {
    const began = performance.now(), {canvas, context, ground: [red, green, blue]} = this;
    if (this.image?.width !== canvas.width || this.image?.height !== canvas.height) {
      this.image = context.createImageData(canvas.width, canvas.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill((0xff000000 | blue << 16 | green << 8 | red) >>> 0);
    const some = this.found !== null || this.lit >= 0, radius = this.radius();
    // a slow machine draws every other point while the map moves
    const step = this.moving && this.frame > SLOW ? Math.ceil(this.frame / SLOW) : 1;
    if (some) this.blend(stamp(radius * 0.85), this.colors.map(() => this.faded), false, 0.25, step);
    this.blend(stamp(some ? radius * 1.4 : radius), this.colors, true, 0.8, this.found ? 1 : step);
    context.putImageData(this.image, 0, 0);
    this.writeTitles(this.writeNames(), radius);
    if (this.chosen >= 0) this.ring(radius);
    const took = performance.now() - began;
    this.frame = step > 1 ? this.frame : took;
    canvas.dataset.frame = took.toFixed(1);
  }

  radius() { return this.ratio * Math.min(8, clamp(150 / Math.sqrt(this.n), 1.15, 4) * Math.max(0.5, this.view.scale / this.whole()) ** 0.35); }

  blend(marks, colors, wanted, strength, step) {
    const {xy, of, n, pixels, found, lit, view: {scale}, canvas: {width, height}} = this, some = found !== null || lit >= 0;
    const left = width / 2 - this.view.u * scale, top = height / 2 + this.view.v * scale, count = marks.length;
    const edge = marks.reduce((most, mark) => Math.max(most, mark[0]), 0), shown = Uint8Array.from(this.shown);
    const offset = Int32Array.from(marks, (mark) => mark[1] * width + mark[0]);
    const cover = Int32Array.from(marks, (mark) => mark[2] * strength);
    const redBlue = Int32Array.from(colors, (one) => one[2] << 16 | one[0]), green = Int32Array.from(colors, (one) => one[1] << 8);
    for (let i = 0; i < n; i += step) {
      const x = Math.round(xy[2 * i] * scale + left), y = Math.round(top - xy[2 * i + 1] * scale), group = of[i];
      // a dot that would be cut by the edge is left out: no pixel has to be checked
      if (x < edge || y < edge || x >= width - edge || y >= height - edge || !shown[group]) continue;
      if (some && ((found === null || found[i] === 1) && (lit < 0 || group === lit)) !== wanted) continue;
      const start = y * width + x, rb = redBlue[group], g = green[group];
      for (let m = 0; m < count; m++) {
        const place = start + offset[m], old = pixels[place], a = cover[m], rest = 256 - a;
        pixels[place] = 0xff000000
          | (Math.imul(old & 0xff00ff, rest) + Math.imul(rb, a) >>> 8) & 0xff00ff
          | (Math.imul(old & 0xff00, rest) + Math.imul(g, a) >>> 8) & 0xff00;
      }
    }
  }

  // names of clusters, the largest first; one that would cover another is left out until there is room
  writeNames() {
    const {context, ratio, canvas} = this, taken = [], size = 13 * ratio;
    context.font = `600 ${size}px ${this.font}`;
    Object.assign(context, {textAlign: "center", textBaseline: "middle", lineJoin: "round", lineWidth: 4 * ratio});
    Object.assign(context, {strokeStyle: `rgb(${this.ground.join(" ")} / .85)`, fillStyle: this.ink});
    for (const {name, x, y} of this.clusters) {
      const [cx, cy] = this.toScreen(x, y), text = name.length > 42 ? name.slice(0, 41) + "…" : name;
      const wide = context.measureText(text).width / 2 + 8 * ratio, high = size * 0.9;
      const box = [cx - wide, cy - high, cx + wide, cy + high];
      if (box[0] < 0 || box[1] < 0 || box[2] > canvas.width || box[3] > canvas.height) continue;
      if (taken.some((one) => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3])) continue;
      taken.push(box);
      context.strokeText(text, cx, cy);
      context.fillText(text, cx, cy);
    }
    return taken;
  }

  // the active points in view, the nearest to its middle first; none where there are more than `limit`
  inView(limit) {
    const {xy, first, inCell, canvas: {width, height}} = this, [left, top] = this.toMap(0, 0), [right, bottom] = this.toMap(width, height);
    const cell = (value) => clamp(Math.floor(value / 256), 0, CELLS - 1), seen = [], {u, v} = this.view;
    for (let row = cell(bottom); row <= cell(top); row++) {
      for (let at = first[row * CELLS + cell(left)]; at < first[row * CELLS + cell(right) + 1]; at++) {
        const i = inCell[at], x = xy[2 * i], y = xy[2 * i + 1];
        if (x < left || x > right || y < bottom || y > top || !this.isActive(i)) continue;
        if (seen.push([Math.hypot(x - u, y - v), i]) > limit) return [];
      }
    }
    return seen.sort((a, b) => a[0] - b[0]).map(([, i]) => i);
  }

  // titles beside their points, once few are in view; one that would cover a name or another title is left out
  writeTitles(taken, radius) {
    const {context, ratio, canvas} = this, size = 12 * ratio, gap = radius + 5 * ratio;
    const seen = this.titlesOf ? this.inView(TITLED) : [], titles = seen.length ? this.titlesOf(seen) : [];
    let written = 0;
    context.font = `${size}px ${this.font}`;
    context.textAlign = "left";
    seen.forEach((i, at) => {
      if (!titles[at]) return;
      const text = titles[at].length > LETTERS ? titles[at].slice(0, LETTERS - 1).trimEnd() + "…" : titles[at];
      const [x, y] = this.placeOf(i), wide = context.measureText(text).width;
      const start = [x + gap, x - gap - wide].find((from) => {
        const box = [from - 3 * ratio, y - size * 0.7, from + wide + 3 * ratio, y + size * 0.7];
        if (box[0] < 0 || box[1] < 0 || box[2] > canvas.width || box[3] > canvas.height) return false;
        return !taken.some((one) => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3]);
      });
      if (start === undefined) return;
      taken.push([start - 3 * ratio, y - size * 0.7, start + wide + 3 * ratio, y + size * 0.7]);
      context.strokeText(text, start, y);
      context.fillText(text, start, y);
      written++;
    });
    canvas.dataset.titles = written;
  }

  ring(radius) {
    const {context, ratio} = this;
    context.beginPath(); context.arc(...this.placeOf(this.chosen), radius + 4 * ratio, 0, 7);
    Object.assign(context, {strokeStyle: this.ink, lineWidth: 2 * ratio}).stroke();
  }
}

// the pixels that a dot covers and how much of each, from 0 to 256
function stamp(radius) {
  const found = [], reach = Math.ceil(radius + 0.5);
  for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) {
    const cover = Math.round(256 * clamp(radius + 0.5 - Math.hypot(dx, dy), 0, 1));
    if (cover > 20) found.push([dx, dy, cover]);
  }
  return found;
}
