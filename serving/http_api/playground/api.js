// Calls of the server's routes. The token lives in this module only, until the page is closed.

const FOREIGN = "The reply is not from this server; is there a proxy?";
const BROKEN = "The connection ended before the whole reply was there.";

let token = "";

/** Error of the server, or of the network with status 0. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Use a bearer token for all further calls; throw ApiError if no header can carry it. */
export function setToken(value) {
  if (!/^[\x21-\x7e]+$/.test(value)) throw new ApiError(401, "A token has no spaces and only ASCII characters.");
  token = value;
}

export const hasToken = () => token !== "";

/** Return the path of an RPC: `v1/fill-mask` for FillMask. It is relative, so that a proxy may add a prefix. */
export const pathOf = (rpc) => `v1/${rpc.replace(/(?!^)[A-Z]/g, "-$&").toLowerCase()}`;

/** Call an RPC. Return its reply, and the seconds until it was there. */
export async function call(rpc, body, signal) {
  const started = performance.now();
  const text = JSON.stringify(body);
  const sent = { method: "POST", headers: { "content-type": "application/json" }, body: text, signal };
  const reply = await getJson(pathOf(rpc), sent);
  return { reply, seconds: (performance.now() - started) / 1000 };
}

/** Return what `read` makes of a reply; throw ApiError if the reply is not what this server sends. */
export function reading(read) {
  try {
    return read();
  } catch (error) {
    throw Object.assign(new ApiError(0, FOREIGN), { cause: error });
  }
}

/** Fetch JSON as `get` does. */
export async function getJson(path, options) {
  const text = await textOf(await get(path, options));
  return reading(() => JSON.parse(text));
}

/** Return the text of a reply; throw ApiError if it ends too early. */
export async function textOf(found) {
  try {
    return await found.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, BROKEN);
  }
}

/** Fetch a path with the token; throw ApiError if that fails. */
export async function get(path, options = {}) {
  const headers = token ? { ...options.headers, authorization: `Bearer ${token}` } : options.headers;
  let found;
  try {
    found = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it running?");
  }
  if (!found.ok) throw new ApiError(found.status, await messageOf(found));
  return found;
}

async function messageOf(found) {
  const values = await found.json().catch(() => ({}));
  return values.error?.message ?? values.message ?? `The server answered with status ${found.status}.`;
}
