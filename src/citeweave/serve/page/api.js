// Requests to the server, and its messages when something goes wrong.

export class ApiError extends Error {
  constructor(status, what, next, coming = false) {
    super(what);
    Object.assign(this, {status, what, next, coming});
  }
}

const SILENT = new ApiError(0, "The server is not responding.", "Is it still running? Start it again, then retry.");

async function asError(response) {
  let body = {};
  try { body = (await response.json()).error ?? {}; } catch { /* not JSON: say the status */ }
  const later = response.headers.get("Retry-After");
  const next = body.next || (later ? `Try again in ${later} s.` : "Try again, or change the query.");
  return new ApiError(response.status, body.what || `The server responded with status ${response.status}.`, next, body.coming === true);
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
    throw new ApiError(response.status, "The response of the server could not be read.", "Is another program running at this address?");
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
