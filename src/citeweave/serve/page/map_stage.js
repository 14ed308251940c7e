// The surface of the map: its view (place and zoom), pointer, keys and the label at a point.

import {get} from "./api.js";
import {h, put} from "./dom.js";
import {Painter} from "./map_draw.js";
import {nearest, SIZE} from "./map_points.js";
import {clip, titleOf} from "./words.js";

const REST = 160, CLICK = 6;

export class Stage {
  constructor(points, {open, moved}) {
    Object.assign(this, {points, open, moved, titles: new Map(), fingers: new Map(), pinch: 0, traveled: 0, waiting: false});
    this.canvas = h("canvas", {id: "plot", tabindex: "0", role: "application", "aria-roledescription": "map",
      "aria-label": "Map of the papers. Arrow keys move, plus and minus zoom, Enter opens the paper in the center."});
    this.tip = h("div", {id: "tip", role: "status"});
    const tool = (text, label, act) => h("button", {type: "button", "aria-label": label, title: label, on: {click: act}}, text);
    this.element = h("div", {id: "stage"}, this.canvas, this.tip, h("div", {id: "map-tools"},
      tool("+", "Zoom in", () => this.zoom(1.6)), tool("−", "Zoom out", () => this.zoom(1 / 1.6)), tool("All", "Show all", () => { this.home(); this.later(); })));
    this.look = {view: null, whole: 1, grouping: null, shown: [], found: null, lit: -1, chosen: -1, dark: false, ground: [0, 0, 0], ink: "", moving: false};
    this.painter = new Painter(this.canvas, points);
    this.isActive = (i) => this.look.shown[this.look.grouping.of[i]] && (!this.look.found || this.look.found[i] === 1);
  }

  start(route, signal) {
    const theme = () => { this.readTheme(); this.later(); }, dark = matchMedia("(prefers-color-scheme: dark)");
    this.readTheme();
    const size = new ResizeObserver(() => this.fit(route));
    size.observe(this.element);
    addEventListener("themechange", theme); dark.addEventListener("change", theme);
    signal.addEventListener("abort", () => { size.disconnect(); removeEventListener("themechange", theme); dark.removeEventListener("change", theme); });
    this.listen();
  }

  readTheme() {
    const root = document.documentElement, style = getComputedStyle(document.body);
    this.look.dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.look.ground = style.backgroundColor.match(/\d+/g).slice(0, 3).map(Number);
    this.look.ink = style.color;
    this.look.serif = getComputedStyle(root).getPropertyValue("--serif") || "serif";
  }

  // ---- places: u, v on the map (v upwards), x, y in pixels of the canvas
  whole() {
    const {low, high} = this.points, {width, height} = this.canvas;
    return 0.92 * Math.min(width / Math.max(1, high[0] - low[0]), height / Math.max(1, high[1] - low[1]));
  }

  home() {
    const {low, high} = this.points;
    this.look.view = {u: (low[0] + high[0]) / 2, v: (low[1] + high[1]) / 2, scale: this.whole()};
  }

  fit(route) {
    const box = this.element.getBoundingClientRect(), was = this.look.view && this.whole(), {canvas} = this;
    this.painter.ratio = Math.min(2, devicePixelRatio || 1);
    canvas.width = Math.max(1, Math.round(box.width * this.painter.ratio));
    canvas.height = Math.max(1, Math.round(box.height * this.painter.ratio));
    if (this.look.view) this.look.view.scale *= this.whole() / was; else this.begin(route);
    this.later();
  }

  // where the address says: "at=u,v,zoom", or a paper's row
  begin(route) {
    this.home();
    const [u, v, zoom] = (route.at ?? "").split(",").map(Number), focus = this.points.row.indexOf(Number(route.focus ?? -1));
    if (zoom > 0 && Number.isFinite(u) && Number.isFinite(v)) this.look.view = {u, v, scale: this.whole() * Math.min(400, zoom)};
    else if (focus >= 0) {
      this.look.view = {u: this.points.xy[2 * focus], v: this.points.xy[2 * focus + 1], scale: this.whole() * 4};
      this.choose(focus);
    }
  }

  toMap(x, y) {
    const {view} = this.look;
    return [view.u + (x - this.canvas.width / 2) / view.scale, view.v - (y - this.canvas.height / 2) / view.scale];
  }

  under(x, y, reach) { return nearest(this.points, ...this.toMap(x, y), (reach * this.painter.ratio) / this.look.view.scale, this.isActive); }

  zoom(factor, x = this.canvas.width / 2, y = this.canvas.height / 2) {
    const {view} = this.look, [u, v] = this.toMap(x, y);
    view.scale = Math.max(this.whole() / 2, Math.min(this.whole() * 400, view.scale * factor));
    view.u = u - (x - this.canvas.width / 2) / view.scale;
    view.v = v + (y - this.canvas.height / 2) / view.scale;
    this.moving();
  }

  move(dx, dy) {
    const {view} = this.look, keep = (value) => Math.max(0, Math.min(SIZE, value));
    view.u = keep(view.u - dx / view.scale);
    view.v = keep(view.v + dy / view.scale);
    this.moving();
  }

  // while it moves a picture may be coarse; at rest it is whole, and the address follows
  moving() {
    this.look.moving = true;
    this.later();
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      this.look.moving = false;
      this.later();
      const {u, v, scale} = this.look.view;
      this.moved({at: `${Math.round(u)},${Math.round(v)},${(scale / this.whole()).toFixed(2)}`, focus: ""});
    }, REST);
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.look.whole = this.whole(); this.painter.draw(this.look); this.placeTip(); });
  }

  // ---- the label
  choose(i) {
    if (i === this.look.chosen) return;
    this.look.chosen = i;
    this.canvas.classList.toggle("over", i >= 0);
    this.later();
    clearTimeout(this.asking);
    if (i < 0) { put(this.tip); return; }
    const known = this.titles.get(this.points.row[i]);
    if (known) { this.tell(i, known); return; }
    put(this.tip, "…");
    this.asking = setTimeout(() => this.paperOf(i).then((paper) => { if (this.look.chosen === i) this.tell(i, paper); }), 60);
  }

  async paperOf(i) {
    const row = this.points.row[i];
    if (!this.titles.has(row)) {
      try {
        const told = (await get("map/titles", {rows: row})).titles?.[row];
        if (told) this.titles.set(row, typeof told === "string" ? {id: "", title: told} : told);
      } catch (error) { return {id: "", title: error.what ?? "no answer"}; }
    }
    return this.titles.get(row) ?? {id: "", title: "no longer in the library"};
  }

  tell(i, paper) {
    const group = this.look.grouping.groups[this.look.grouping.of[i]];
    put(this.tip, clip(titleOf(paper), 160), h("small", {}, [this.points.year[i] > 0 && this.points.year[i], group?.name].filter(Boolean).join(" · ")));
    this.placeTip();
  }

  placeTip() {
    if (this.look.chosen < 0) return;
    const {xy} = this.points, {ratio} = this.painter, i = this.look.chosen, gap = 14;
    const [x, y] = this.painter.toScreen(this.look, xy[2 * i], xy[2 * i + 1]).map((one) => one / ratio);
    const width = this.canvas.width / ratio, height = this.canvas.height / ratio, wide = this.tip.offsetWidth, high = this.tip.offsetHeight;
    const keep = (value, max) => `${Math.max(4, Math.min(max, value))}px`;
    this.tip.style.setProperty("left", keep(x + gap + wide > width ? x - gap - wide : x + gap, width - wide - 4));
    this.tip.style.setProperty("top", keep(y - high - gap < 0 ? y + gap : y - high - gap, height - high - 4));
  }

  // ---- pointer and keys
  at(event) {
    const box = this.canvas.getBoundingClientRect(), {ratio} = this.painter;
    return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
  }

  listen() {
    const {canvas, fingers} = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, this.at(event));
      Object.assign(this, {pinch: 0, traveled: 0, chosenBefore: this.look.chosen});
      this.choose(this.under(...this.at(event), 14));
    });
    canvas.addEventListener("pointermove", (event) => this.pointerMoved(event));
    canvas.addEventListener("pointerup", (event) => this.pointerLifted(event));
    canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); this.pinch = 0; });
    canvas.addEventListener("pointerleave", () => { if (!fingers.size) this.choose(-1); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-Math.max(-200, Math.min(200, event.deltaY * (event.deltaMode ? 30 : 1))) / 300), ...this.at(event));
    }, {passive: false});
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  pointerMoved(event) {
    const now = this.at(event), before = this.fingers.get(event.pointerId);
    if (!before) { this.choose(this.under(...now, 10)); return; }
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
    const i = this.look.chosen;
    if (i < 0 || this.traveled > CLICK * this.painter.ratio) return;
    if (event.pointerType === "mouse" || i === this.chosenBefore) this.openPoint(i);
  }

  async openPoint(i) {
    const paper = await this.paperOf(i);
    if (paper.id) this.open(paper);
  }

  key(event) {
    const step = 60 * this.painter.ratio, moves = {ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step]};
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.move(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") { this.home(); this.moving(); }
    else if (event.key === "Enter" && this.look.chosen >= 0) { event.preventDefault(); this.openPoint(this.look.chosen); return; }
    else if (event.key === "Escape") { this.choose(-1); return; }
    else return;
    event.preventDefault();
    this.choose(this.under(this.canvas.width / 2, this.canvas.height / 2, 90));
  }
}
