// The reader's choice of light or dark, before anything is drawn; without one the system's holds.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("citeweave-theme"); } catch { /* storage may be forbidden */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
