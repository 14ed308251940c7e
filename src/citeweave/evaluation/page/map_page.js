// The page map.html, after map.js in the same script: titles at points, and words in titles.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent), titles = JSON.parse(byId("titles").textContent).split("\n");
const LISTED = 12, labels = [...document.querySelectorAll("#legend label")];
let lower = null, pause = 0;

const map = new PaperMap({xy: unpack(data.xy, Uint16Array), of: unpack(data.topic)},
  {stage: byId("stage"), canvas: byId("plot"), tip: byId("tip")},
  {titlesOf: (points) => points.map((i) => titles[i]), describe: (i, tell) => tell(titles[i] || "untitled", labels[map.of[i]].querySelector("span").textContent)});
map.bindLegend(labels, byId("all"), byId("none"), find);
byId("in").onclick = () => map.zoom(1.6);
byId("out").onclick = () => map.zoom(1 / 1.6);
byId("home").onclick = () => map.home();
byId("filter").oninput = () => { clearTimeout(pause); pause = setTimeout(find, 120); };
map.start();

function find() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean), listed = [];
  let count = 0;
  map.found = words.length ? new Uint8Array(map.n) : null;
  if (words.length) {
    lower ??= titles.map((title) => title.toLowerCase());
    for (let i = 0; i < map.n; i++) {
      if (!map.shown[map.of[i]] || !words.every((word) => lower[i].includes(word))) continue;
      map.found[i] = 1;
      if (count++ < LISTED) listed.push(entry(i));
    }
  }
  byId("found").replaceChildren(...listed);
  byId("count").textContent = !words.length ? "" : count.toLocaleString("en") + (count === 1 ? " paper" : " papers")
    + (count > LISTED ? `, of which ${LISTED} are listed` : "");
  map.refresh();
}

function entry(i) {
  const item = document.createElement("li"), button = document.createElement("button");
  button.textContent = titles[i] || "untitled";
  button.onclick = () => map.goTo(i, 6);
  item.append(button);
  return item;
}
