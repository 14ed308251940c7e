// Draws the points into an image of pixels: 100,000 calls to draw a circle would take seconds, blending takes milliseconds.
// `data-frame` of the canvas holds the milliseconds that the last frame took.

import {GRAY} from "./map_groups.js";

const SLOW = 28;

export class Painter {
  constructor(canvas, points) {
    Object.assign(this, {canvas, points, image: null, pixels: null, ratio: 1, frame: 0});
    this.context = canvas.getContext("2d", {alpha: false});
  }

  // `look`: view {u, v, scale}, grouping, shown, found (Uint8Array or null), lit, chosen, dark, ground, ink, moving
  draw(look) {
    const began = performance.now(), {canvas, context} = this;
    if (!canvas.width || !canvas.height) return;
    if (this.image?.width !== canvas.width || this.image?.height !== canvas.height) {
      this.image = context.createImageData(canvas.width, canvas.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const [red, green, blue] = look.ground;
    this.pixels.fill((0xff000000 | blue << 16 | green << 8 | red) >>> 0);
    const radius = this.radius(look), own = look.grouping.groups.map((one) => parse(one.color[look.dark ? 1 : 0]));
    const some = look.found !== null || look.lit >= 0;
    // a slow machine draws every other point while the map moves
    const step = look.moving && this.frame > SLOW ? Math.ceil(this.frame / SLOW) : 1;
    if (some) this.blend(stamp(radius * 0.85), own.map(() => parse(GRAY[look.dark ? 1 : 0])), look, false, 0.25, step);
    this.blend(stamp(some ? radius * 1.4 : radius), own, look, true, 0.8, some && look.found ? 1 : step);
    context.putImageData(this.image, 0, 0);
    this.labels(look);
    this.ring(look, radius);
    const took = performance.now() - began;
    this.frame = step > 1 ? this.frame : took;
    canvas.dataset.frame = took.toFixed(1);
  }

  radius(look) {
    const base = Math.max(1.15, Math.min(4, 150 / Math.sqrt(this.points.n)));
    return this.ratio * Math.min(8, base * Math.pow(Math.max(0.5, look.view.scale / look.whole), 0.35));
  }

  blend(marks, colors, look, wanted, strength, step) {
    const {points: {xy, n}, pixels, canvas: {width, height}} = this, {scale} = look.view, {of} = look.grouping;
    const left = width / 2 - look.view.u * scale, top = height / 2 + look.view.v * scale, count = marks.length;
    const edge = marks.reduce((most, mark) => Math.max(most, mark[0]), 0);
    const offset = Int32Array.from(marks, (mark) => mark[1] * width + mark[0]);
    const cover = Int32Array.from(marks, (mark) => mark[2] * strength);
    const redBlue = Int32Array.from(colors, (one) => one[2] << 16 | one[0]), green = Int32Array.from(colors, (one) => one[1] << 8);
    const shown = Uint8Array.from(look.shown), {found, lit} = look, some = found !== null || lit >= 0;
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

  toScreen(look, u, v) {
    return [(u - look.view.u) * look.view.scale + this.canvas.width / 2, (look.view.v - v) * look.view.scale + this.canvas.height / 2];
  }

  // names of clusters, the largest first; one that would cover another is left out until there is room
  labels(look) {
    const {context, ratio, canvas} = this, taken = [], size = 13 * ratio;
    context.font = `600 ${size}px ${look.serif}`;
    context.textAlign = "center"; context.textBaseline = "middle"; context.lineJoin = "round";
    const clusters = [...this.points.clusters].sort((a, b) => b.size - a.size);
    for (const {name, x, y} of clusters) {
      if (!name) continue;
      const [cx, cy] = this.toScreen(look, x, y), text = name.length > 42 ? name.slice(0, 41) + "…" : name;
      const wide = context.measureText(text).width / 2 + 8 * ratio, high = size * 0.9;
      const box = [cx - wide, cy - high, cx + wide, cy + high];
      if (box[0] < 0 || box[1] < 0 || box[2] > canvas.width || box[3] > canvas.height) continue;
      if (taken.some((one) => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3])) continue;
      taken.push(box);
      context.strokeStyle = `rgb(${look.ground.join(" ")} / .85)`; context.lineWidth = 4 * ratio;
      context.strokeText(text, cx, cy);
      context.fillStyle = look.ink; context.fillText(text, cx, cy);
    }
  }

  ring(look, radius) {
    if (look.chosen < 0) return;
    const {xy} = this.points, {context, ratio} = this, [x, y] = this.toScreen(look, xy[2 * look.chosen], xy[2 * look.chosen + 1]);
    context.beginPath(); context.arc(x, y, radius + 4 * ratio, 0, 7);
    context.strokeStyle = look.ink; context.lineWidth = 2 * ratio; context.stroke();
  }
}

const parse = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

// the pixels that a dot covers and how much of each, from 0 to 256
function stamp(radius) {
  const found = [], reach = Math.ceil(radius + 0.5);
  for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) {
    const cover = Math.round(256 * Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(dx, dy))));
    if (cover > 20) found.push([dx, dy, cover]);
  }
  return found;
}
