// One run of an operation: its requests, their replies, and what of them is shown.

import { call, getJson, hasToken, reading } from "./api.js";
import { byId, element, radios } from "./dom.js";
import { LANGUAGES, snippet } from "./snippets.js";
import { tokensOf } from "./tokens.js";
import { cutWarnings, timings } from "./views.js";

let running = new AbortController();
let last = null;
let language = LANGUAGES[0].id;
let server = null;

/**
 * Send the requests of an operation and show the result; a run before it is cancelled. Throw ApiError if one fails.
 * Tokens and code come after the result; if they fail, they say so and the result stays.
 */
export async function run(operation, values, model) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  byId("result").setAttribute("aria-busy", "true");
  try {
    const cut = values.truncate ? { truncate: true } : {};
    const asked = operation.calls(values);
    const requests = asked.map(({ rpc, body, model: other }) => ({
      rpc,
      body: { model: other ?? model.reference, ...body, ...cut },
    }));
    last = { requests, model, inputs: operation.texts(values, model) };
    const calls = await Promise.all(requests.map(({ rpc, body }) => call(rpc, body, signal)));
    if (signal.aborted) return;
    const [said, ...shown] = reading(() => operation.show(calls.map(({ reply }) => reply), values, model));
    byId("status").textContent = said;
    byId("result").replaceChildren(...cutWarnings(calls, asked), ...shown);
    byId("timings").replaceChildren(...timings(calls));
    await Promise.all([showTokens(), showCode()]);
  } finally {
    if (!signal.aborted) byId("result").removeAttribute("aria-busy");
  }
}

/** Remove the result of a run that failed or belongs to another operation, and cancel what is running. */
export function clearResult() {
  running.abort();
  byId("result").removeAttribute("aria-busy");
  last = null;
  for (const id of ["status", "result", "timings", "token-list", "snippet", "copied"]) byId(id).replaceChildren();
}

/** Show a note in place of a result. */
export function showNote(text) {
  clearResult();
  byId("result").replaceChildren(element("p", { class: "notice" }, text));
}

async function showTokens() {
  if (!last || !byId("tokens").open) return;
  try {
    byId("token-list").replaceChildren(...(await tokensOf(last.model, last.inputs, running.signal)));
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("token-list").replaceChildren(element("p", { class: "notice" }, error.message));
  }
}

async function showCode() {
  if (!last || !byId("code").open) return;
  const { requests } = last;
  const show = (code, said) => {
    byId("snippet").textContent = code;
    byId("copied").textContent = said;
  };
  try {
    server ??= await getJson("playground/server", { signal: running.signal });
    show(snippet(language, requests, server, hasToken()), "");
  } catch (error) {
    if (error.name !== "AbortError") show("", error.message);
  }
}

async function copy() {
  const text = byId("snippet");
  if (!text.textContent) return;
  try {
    await navigator.clipboard.writeText(text.textContent);
    byId("copied").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text); // pages without TLS have no clipboard, except on this machine
    byId("copied").textContent = "Selected: press Ctrl + C";
  }
}

/** Show tokens and code when they are opened. */
export function watchDetails() {
  byId("tokens").addEventListener("toggle", showTokens);
  byId("code").addEventListener("toggle", showCode);
  radios(byId("languages"), LANGUAGES, language, (chosen) => {
    language = chosen;
    showCode();
  });
  byId("copy").addEventListener("click", copy);
}
