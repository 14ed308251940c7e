// A menu that saves the papers on the screen as BibTeX, RIS, CSV or JSON.

import {download} from "./api.js";
import {h, announce} from "./dom.js";

const FORMATS = [["bibtex", "BibTeX", "bib"], ["ris", "RIS", "ris"], ["csv", "CSV", "csv"], ["json", "JSON", "json"]];

export function exportMenu(papers, index = "", label = "Export") {
  const menu = h("div", {role: "menu", hidden: true});
  const button = h("button", {type: "button", "aria-haspopup": "menu", "aria-expanded": "false", class: "export"}, label);
  const toggle = (open) => { menu.hidden = !open; button.ariaExpanded = String(open); if (open) menu.firstElementChild.focus(); };
  for (const [format, name, ending] of FORMATS) {
    menu.append(h("button", {type: "button", role: "menuitem", on: {click: () => { toggle(false); save(papers, {format, index}, name, ending, button, label); }}}, name));
  }
  menu.addEventListener("keydown", (event) => move(event, menu));
  button.addEventListener("click", () => toggle(menu.hidden));
  const box = h("div", {class: "popup"}, button, menu);
  box.addEventListener("focusout", (event) => { if (!box.contains(event.relatedTarget)) toggle(false); });
  box.addEventListener("keydown", (event) => { if (event.key === "Escape" && !menu.hidden) { event.stopPropagation(); toggle(false); button.focus(); } });
  return box;
}

function move(event, menu) {
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!step) return;
  event.preventDefault();
  const items = [...menu.children], at = items.indexOf(document.activeElement);
  items[(at + step + items.length) % items.length].focus();
}

async function save(papers, asked, name, ending, button, label) {
  button.disabled = true;
  try {
    const blob = await download("export", {...asked, ids: papers.map((one) => one.id)});
    const address = URL.createObjectURL(blob), anchor = h("a", {download: `papers.${ending}`});
    anchor.href = address;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
    announce(`${papers.length} papers saved as ${name}`);
    button.textContent = "Saved";
  } catch (error) {
    announce(error.what ?? "not saved");
    button.textContent = "Not saved";
    button.title = error.what ?? "";
  }
  button.disabled = false;
  setTimeout(() => { button.textContent = label; }, 2500);
}
