// Calls of the server's routes. The token lives in this module only, until the page is closed.

const FOREIGN = "The reply is not from this server; is there a proxy?";
const UNREACHABLE = "The server does not answer, or not to the end. Is it running?";

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

/** Fetch JSON with the token; throw ApiError if that fails. */
export async function getJson(path, options = {}) {
  const headers = token ? { ...options.headers, authorization: `Bearer ${token}` } : options.headers;
  try {
    const found = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    if (found.ok) return await found.json();
    const values = await found.json().catch(() => ({}));
    const message = values.error?.message ?? values.message ?? `The server answered with status ${found.status}.`;
    throw new ApiError(found.status, message);
  } catch (error) {
    if (error instanceof SyntaxError) throw new ApiError(0, FOREIGN);
    if (error instanceof TypeError) throw new ApiError(0, UNREACHABLE);
    throw error;
  }
}
