// The points of a map: unpacked from the response, and found under the pointer with a grid of cells.

export const SIZE = 65536;
const CELLS = 256;

function unpack(packed, Type) {
  const bytes = Uint8Array.from(atob(packed ?? ""), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer, 0, Math.floor(bytes.length / Type.BYTES_PER_ELEMENT));
}

export function readPoints(answer) {
  const xy = unpack(answer.xy, Uint16Array), n = xy.length / 2;
  const points = {
    n, xy, row: unpack(answer.row, Int32Array), year: unpack(answer.year, Int16Array),
    field: unpack(answer.field, Uint8Array), fields: answer.fields ?? [],
    cluster: unpack(answer.cluster, Uint8Array), clusters: answer.clusters ?? [],
  };
  return {...points, ...gridOf(xy, n), ...boundsOf(xy, n)};
}

// points of cell c are inCell[first[c]] up to inCell[first[c + 1]]
function gridOf(xy, n) {
  const first = new Uint32Array(CELLS * CELLS + 1), inCell = new Uint32Array(n);
  const cellOf = (i) => (xy[2 * i + 1] >> 8) * CELLS + (xy[2 * i] >> 8);
  for (let i = 0; i < n; i++) first[cellOf(i) + 1]++;
  for (let c = 0; c < CELLS * CELLS; c++) first[c + 1] += first[c];
  const next = first.slice();
  for (let i = 0; i < n; i++) inCell[next[cellOf(i)]++] = i;
  return {first, inCell};
}

function boundsOf(xy, n) {
  const low = [SIZE, SIZE], high = [0, 0];
  for (let i = 0; i < 2 * n; i++) { low[i & 1] = Math.min(low[i & 1], xy[i]); high[i & 1] = Math.max(high[i & 1], xy[i]); }
  return {low, high};
}

// the nearest point that is allowed within a reach, all in units of the map; -1 if there is none
export function nearest({xy, first, inCell}, u, v, reach, isAllowed) {
  const cell = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value / 256)));
  let best = -1, closest = reach * reach;
  for (let row = cell(v - reach); row <= cell(v + reach); row++) {
    const line = row * CELLS;
    for (let at = first[line + cell(u - reach)]; at < first[line + cell(u + reach) + 1]; at++) {
      const i = inCell[at], du = xy[2 * i] - u, dv = xy[2 * i + 1] - v, far = du * du + dv * dv;
      if (far < closest && isAllowed(i)) { closest = far; best = i; }
    }
  }
  return best;
}
