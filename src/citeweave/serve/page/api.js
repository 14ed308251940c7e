// Questions to the server, and its words when something goes wrong.

export class ApiError extends Error {
  constructor(status, what, next, coming = false) {
    super(what);
    Object.assign(this, {status, what, next, coming});
  }
}

const SILENT = new ApiError(0, "The server does not answer.", "Is it still running? Start it again, then try once more.");

async function asError(response) {
  let told = {};
  try { told = (await response.json()).error ?? {}; } catch { /* not JSON: say the status */ }
  const later = response.headers.get("Retry-After");
  const next = told.next || (later ? `Try again in ${later} s.` : "Try again, or ask in another way.");
  return new ApiError(response.status, told.what || `The server answered ${response.status}.`, next, told.coming === true);
}

async function send(path, options) {
  let response;
  try { response = await fetch(path, options); } catch (error) {
    if (error.name === "AbortError") throw error;
    throw SILENT;
  }
  if (!response.ok) throw await asError(response);
  return response;
}

async function asJson(response) {
  try { return await response.json(); } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(response.status, "The server's answer could not be read.", "Is another program at this address?");
  }
}

function address(path, values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") params.append(name, one);
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

export async function get(path, values = {}, signal = undefined) {
  const response = await send(address(path, values), {signal});
  const answer = await asJson(response);
  return response.status === 202 ? {...answer, pending: true} : answer;
}

const posted = (value, signal) => ({
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(value), signal,
});
export const post = async (path, value, signal = undefined) => asJson(await send(path, posted(value, signal)));
export const download = async (path, value) => (await send(path, posted(value))).blob();

// dots and slashes of an id must not become steps of a path
export const paperPath = (id) => "papers/" + encodeURIComponent(id);
