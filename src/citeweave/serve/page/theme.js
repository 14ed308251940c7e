// The user's choice of light or dark, before anything is drawn; the system's setting without one.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("citeweave-theme"); } catch { /* storage may be forbidden */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
