// Groups by which a map is colored: fields, spans of years, or clusters; each with a color for light and for dark.

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3fa0", "#8c510a", "#b0305f", "#8a8a1f",
  "#332288", "#2aa198", "#66a61e", "#f4808a", "#1f5a66", "#b39ddb", "#6d1f2b", "#c2a200", "#3f51d0", "#d081e8"];
const DARK = ["#4fa3e0", "#ff7f32", "#2cc79a", "#e79ac4", "#f5b83d", "#9adcff", "#b98ae0", "#c98f4e", "#f0709e", "#cfcf5a",
  "#8f8ff0", "#7fdccb", "#9fdc5a", "#ff9aa2", "#4f9aa8", "#cbb8f5", "#b5525f", "#e5d04a", "#7f8cff", "#e3a6f5"];
const YEARS_LIGHT = ["#b9c9d6", "#8fb5c4", "#5f9db0", "#33839a", "#13677f", "#084a60"];
const YEARS_DARK = ["#3b5060", "#3f6d80", "#4a8ca0", "#62aac0", "#8acbdc", "#c4ecf5"];
const GRAY = ["#a39c90", "#6d675e"];

// {of: (n,) group of each point, groups: [{name, size, color: [light, dark]}]}
export function groupBy(points, kind) {
  if (kind === "year") return byYear(points);
  if (kind === "field") return byNumber(points.field, points.fields.slice(0, -1), points.n, "other or unknown");
  return byNumber(points.cluster, points.clusters.map((one) => one.name || "unnamed"), points.n, "none");
}

// whether the field of most papers is among those that have a color; the last name stands for all others
export function knowsFields({field, fields, n}) {
  let known = 0;
  for (let i = 0; i < n; i++) if (field[i] < fields.length - 1) known++;
  return known > n / 2;
}

// numbers beyond the names mean the rest
function byNumber(numbers, names, n, rest) {
  const none = names.length, sizes = new Array(none + 1).fill(0), raw = new Uint16Array(n);
  for (let i = 0; i < n; i++) { raw[i] = numbers[i] < none ? numbers[i] : none; sizes[raw[i]]++; }
  const order = [...sizes.keys()].filter((at) => sizes[at] > 0).sort((a, b) => (a === none) - (b === none) || sizes[b] - sizes[a]);
  const place = new Uint16Array(none + 1);
  order.forEach((at, now) => { place[at] = now; });
  const color = (at, now) => (at === none ? GRAY : [LIGHT[now % LIGHT.length], DARK[now % DARK.length]]);
  return {of: raw.map((at) => place[at]),
    groups: order.map((at, now) => ({name: at === none ? rest : names[at], number: at, size: sizes[at], color: color(at, now)}))};
}

// six spans with about as many papers each; a year of 0 is unknown
function byYear({year, n}) {
  const known = year.filter((one) => one > 0).sort(), cuts = [];
  for (let part = 1; part < 6; part++) {
    const cut = known[Math.floor((known.length * part) / 6)];
    if (cut !== undefined && cut > (cuts.at(-1) ?? known[0])) cuts.push(cut);
  }
  const starts = known.length ? [known[0], ...cuts] : [], last = known.at(-1), none = starts.length;
  const of = new Uint16Array(n), sizes = new Array(none + 1).fill(0);
  for (let i = 0; i < n; i++) {
    let at = none;
    if (year[i] > 0) { at = 0; while (at + 1 < none && year[i] >= starts[at + 1]) at++; }
    of[i] = at; sizes[at]++;
  }
  const name = (at) => { const end = at + 1 < none ? starts[at + 1] - 1 : last; return starts[at] === end ? `${end}` : `${starts[at]} to ${end}`; };
  const shade = (at) => Math.round((at / Math.max(1, none - 1)) * 5);
  const groups = starts.map((_, at) => ({name: name(at), number: at, size: sizes[at], color: [YEARS_LIGHT[shade(at)], YEARS_DARK[shade(at)]]}));
  return {of, groups: sizes[none] ? [...groups, {name: "unknown", number: none, size: sizes[none], color: GRAY}] : groups};
}
