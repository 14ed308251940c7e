// Queries of the address, as the server's POST /search reads them.

import {post} from "./api.js";
import {shownCount} from "./results.js";
import {whereOf} from "./filters.js";

export function ask(route, query, signal, {facets = true} = {}) {
  const body = {count: shownCount(route), ...query, where: whereOf(route), facets};
  for (const name of ["by", "aspect", "index", "order"]) if (route[name]) body[name] = route[name];
  if (route.outside) body.outside = true;
  if (Number(route.diversity) > 0 && !route.order) body.diversity = Number(route.diversity);
  return post("search", body, signal);
}
