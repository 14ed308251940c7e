// Papers that the user liked or disliked, kept for this tab; the tray turns them into a query.

import {h, put, byId, announce} from "./dom.js";
import {exportMenu} from "./export.js";
import {link, read} from "./route.js";
import {counted} from "./words.js";

const KEY = "citeweave-marked";
let marked = new Map(); // id -> "like" | "dislike"

try { marked = new Map(JSON.parse(sessionStorage.getItem(KEY) ?? "[]")); } catch { /* storage may be forbidden */ }

const keep = () => { try { sessionStorage.setItem(KEY, JSON.stringify([...marked])); } catch { /* stays for this page */ } };
const ids = (kind) => [...marked].filter(([, one]) => one === kind).map(([id]) => id);

export const exportLiked = (likes, index) => exportMenu(likes.map((id) => ({id})), index, "Export liked");

export const markOf = (id) => marked.get(id) ?? "";

// mark a paper, or remove the mark if it has it; returns the new mark
export function mark(paper, kind) {
  if (marked.get(paper.id) === kind) marked.delete(paper.id); else marked.set(paper.id, kind);
  keep(); drawTray();
  announce(marked.has(paper.id) ? `marked: ${kind}` : "mark removed");
  return markOf(paper.id);
}

// a shared address brings its marks with it
export function takeMarks(likes = [], dislikes = []) {
  marked = new Map([...likes.map((id) => [id, "like"]), ...dislikes.map((id) => [id, "dislike"])]);
  keep(); drawTray();
}

export function drawTray() {
  const tray = byId("tray"), likes = ids("like"), dislikes = ids("dislike");
  const {view, like = [], dislike = [], index} = read(), address = link({view: "liked", like: likes, dislike: dislikes, index});
  tray.hidden = !marked.size || (view === "liked" && link({view, like, dislike, index}) === address); // it is what is shown
  const clear = () => { marked.clear(); keep(); drawTray(); document.querySelectorAll(".thumb").forEach((one) => { one.ariaPressed = "false"; }); };
  put(tray, h("span", {}, [likes.length && `${likes.length} liked`, dislikes.length && `${dislikes.length} disliked`].filter(Boolean).join(", ")),
    likes.length ? h("a", {class: "button primary", href: address}, "More like these")
      : h("span", {class: "muted"}, "like a paper to search"),
    likes.length > 0 && exportLiked(likes, index),
    h("button", {class: "quiet", type: "button", "aria-label": `Clear ${counted(marked.size, "mark")}`, on: {click: clear}}, "Clear"));
}
