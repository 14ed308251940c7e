// The page's state is its address: "?view=search&q=graphs&year_from=2015". Reads it, writes it, follows links.

const LISTS = new Set(["author", "venue", "field", "keyword", "collection", "like", "dislike"]);

// {view, q, venue: [..], ...} of an address
export function read(text = location.search) {
  const params = new URLSearchParams(text), route = {};
  for (const [name, value] of params) {
    if (LISTS.has(name)) (route[name] ??= []).push(value);
    else if (value !== "") route[name] = value;
  }
  route.view ??= route.paper ? "paper" : route.q ? "search" : route.like ? "liked" : "home";
  if (route.view === "missing") route.view = "lacking"; // as the page calls it
  return route;
}

// a link to a state; values that are empty are left out, lists are repeated
export function link(values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined && one !== false) params.append(name, String(one));
    }
  }
  return "?" + params.toString();
}

export const changed = (route, values) => link({...route, ...values});

let follow = () => {};
export const onRoute = (act) => { follow = act; };

export function go(address, {replace = false} = {}) {
  const url = new URL(address, location.href);
  if (replace) history.replaceState({top: 0}, "", url);
  else {
    history.replaceState({top: scrollY}, "");
    history.pushState({top: 0}, "", url);
  }
  follow({moved: !replace, top: 0});
}

// state that the view has shown already: the address follows, nothing is drawn again
export const note = (address) => history.replaceState(history.state, "", new URL(address, location.href));

export function listen() {
  history.scrollRestoration = "manual";
  addEventListener("popstate", (event) => follow({moved: true, top: event.state?.top ?? 0}));
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    if (!anchor || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.defaultPrevented) return;
    if (!anchor.getAttribute("href").startsWith("?")) return;
    event.preventDefault();
    go(anchor.getAttribute("href"));
  });
}
