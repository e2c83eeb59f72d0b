// One run of an operation: its requests, their replies, and what of them is shown.

import { call, get, hasToken } from "./api.js";
import { byId, radios } from "./dom.js";
import { LANGUAGES, snippet } from "./snippets.js";
import { tokensOf } from "./tokens.js";
import { cutWarning, timings } from "./views.js";

let running = new AbortController();
let last = null;
let language = LANGUAGES[0].id;
let server = null;

/** Send the requests of an operation and show the result; a run before it is cancelled. Throw ApiError if one fails. */
export async function run(operation, values, model) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  byId("result").setAttribute("aria-busy", "true");
  try {
    const cut = values.truncate ? { truncate: true } : {};
    const requests = operation
      .calls(values)
      .map(({ rpc, body, model: other }) => ({ rpc, body: { model: other ?? model.reference, ...body, ...cut } }));
    last = { requests, model, inputs: operation.texts(values) };
    const calls = await Promise.all(requests.map(({ rpc, body }) => call(rpc, body, signal)));
    if (signal.aborted) return;
    const [said, ...shown] = operation.show(calls.map(({ reply }) => reply), values, model);
    byId("status").textContent = said;
    byId("result").replaceChildren(...cutWarning(calls), ...shown);
    byId("timings").replaceChildren(...timings(calls));
    await Promise.all([showTokens(), showCode()]);
  } finally {
    if (!signal.aborted) byId("result").removeAttribute("aria-busy");
  }
}

/** Remove the result of a run that failed or belongs to another operation. */
export function clearResult() {
  last = null;
  for (const id of ["status", "result", "timings", "token-list", "snippet", "copied"]) byId(id).replaceChildren();
}

async function showTokens() {
  if (!last || !byId("tokens").open) return;
  byId("token-list").replaceChildren(...(await tokensOf(last.model, last.inputs, running.signal)));
}

async function showCode() {
  if (!last || !byId("code").open) return;
  server ??= await (await get("playground/server")).json();
  byId("snippet").textContent = snippet(language, last.requests, server, hasToken());
  byId("copied").textContent = "";
}

async function copy() {
  const text = byId("snippet");
  try {
    await navigator.clipboard.writeText(text.textContent);
    byId("copied").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text); // pages without TLS have no clipboard, except on this machine
    byId("copied").textContent = "Selected: press Ctrl + C";
  }
}

/** Show tokens and code when they are opened. `fail` is called with the error if that is not possible. */
export function watchDetails(fail) {
  byId("tokens").addEventListener("toggle", () => showTokens().catch(fail));
  byId("code").addEventListener("toggle", () => showCode().catch(fail));
  radios(byId("languages"), LANGUAGES, language, (chosen) => {
    language = chosen;
    showCode().catch(fail);
  });
  byId("copy").addEventListener("click", copy);
}
