// One run of an operation: its requests, their replies, and what of them is shown.

import { call, getJson, hasToken } from "./api.js";
import { LANGUAGES, snippet } from "./snippets.js";
import { byId, counted, element, onlyFirst, radios, timings } from "./views.js";

const MAX_INPUTS = 30;
const MAX_TOKENS = 500;

let running = new AbortController();
let last = null;
let language = LANGUAGES[0].id;
let server = null;

/**
 * Send the requests of an operation and show the result; a run before it is cancelled. Throw ApiError if one fails.
 * Tokens and code come after the result; if they fail, they say so and the result stays.
 */
export async function run(operation, { truncate, ...values }, model) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  byId("result").setAttribute("aria-busy", "true");
  try {
    const asked = operation.calls(values);
    const requests = asked.map(({ rpc, body, model: other }) => ({
      rpc,
      body: { model: other ?? model.reference, ...body, ...(truncate ? { truncate } : {}) },
    }));
    last = { requests, model, inputs: operation.texts(values, model) };
    const calls = await Promise.all(requests.map(({ rpc, body }) => call(rpc, body, signal)));
    if (signal.aborted) return;
    const replies = calls.map(({ reply }) => reply);
    const [said, ...shown] = operation.show(replies, values, model);
    byId("status").textContent = said;
    const warnings = replies.flatMap((reply, index) => cutWarning(reply, asked[index].cuts));
    byId("result").replaceChildren(...warnings, ...shown);
    byId("timings").replaceChildren(...timings(calls));
    await Promise.all([showTokens(), showCode()]);
  } finally {
    if (!signal.aborted) byId("result").removeAttribute("aria-busy");
  }
}

/** Return a warning if texts were cut. `part` is what may be cut, if that is not every text. */
function cutWarning({ num_truncated: numbers = [] }, part) {
  const cut = numbers.reduce((sum, number) => sum + number, 0);
  const places = numbers.flatMap((number, index) => (number ? [index + 1] : []));
  const listed = new Intl.ListFormat("en").format(places.map(String));
  const which = part ?? (numbers.length > 1 ? `text${places.length > 1 ? "s" : ""} ${listed}` : "");
  const said = `Cut, and not read by the model: ${counted(cut, "token")}${which && ` of ${which}`}.`;
  return cut ? [element("p", { class: "notice" }, said)] : [];
}

/** Remove the result of a run that failed or belongs to another operation, and cancel what is running. */
export function clearResult(...notes) {
  running.abort();
  byId("result").removeAttribute("aria-busy");
  last = null;
  for (const id of ["status", "result", "timings", "token-list", "snippet", "copied"]) byId(id).replaceChildren();
  byId("result").replaceChildren(...notes);
}

/** Show the tokens of the texts of the last requests. */
async function showTokens() {
  if (!last || !byId("tokens").open) return;
  const { model, inputs } = last;
  try {
    const body = { model: model.reference, inputs: inputs.slice(0, MAX_INPUTS) };
    const { reply } = await call("Tokenize", body, running.signal);
    const shown = reply.results.flatMap(({ tokens, ids, special }) => {
      const chips = tokens.slice(0, MAX_TOKENS).map((token, index) => {
        const attributes = { class: special[index] ? "special" : undefined };
        return element("li", attributes, element("bdi", {}, token), element("small", {}, `${ids[index]}`));
      });
      const count = `${counted(tokens.length, "token")} of ${model.length.toLocaleString("en")}`;
      const rest = onlyFirst(chips.length, tokens.length);
      return [element("p", { class: "hint" }, count), element("ol", { class: "tokens" }, ...chips), ...rest];
    });
    byId("token-list").replaceChildren(...shown, ...onlyFirst(reply.results.length, inputs.length));
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
