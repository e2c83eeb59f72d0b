// One run of an operation: its requests, their replies, and what of them is shown.

import { call, getJson, hasToken, pathOf } from "./api.js";
import { byId, counted, element, onlyFirst, radios, timings } from "./views.js";

const MAX_INPUTS = 30;
const MAX_TOKENS = 500;
const LANGUAGES = [
  { id: "curl", title: "curl" },
  { id: "python", title: "Python" },
  { id: "grpc", title: "gRPC" },
];

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
  const body = { model: model.reference, inputs: inputs.slice(0, MAX_INPUTS) };
  try {
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

/** Return the code of calls, `{rpc, body}` each. `server` has `grpc_port` and `tls`; a token is a variable in it. */
function snippet(language, calls, server, withToken) {
  const target = `${location.hostname}:${server.grpc_port}`;
  if (language === "python") return python(calls, target, server.tls, withToken);
  const header = withToken ? [`-H "authorization: Bearer $TOKEN"`] : [];
  const commands = calls.map(({ rpc, body }) => {
    const data = `-d '${JSON.stringify(body).replaceAll("'", `'\\''`)}'`;
    const parts =
      language === "curl"
        ? [`curl ${new URL(pathOf(rpc), document.baseURI)}`, ...header, `-H 'content-type: application/json'`, data]
        : [`grpcurl${server.tls ? "" : " -plaintext"}`, ...header, data, `${target} bertline.v1.Encoder/${rpc}`];
    return parts.join(" \\\n  ");
  });
  return commands.join("\n\n");
}

/** Return a value in Python; an object, an input of a request, as a tuple of its parts, or its only part. */
function pythonOf(value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const parts = Object.values(value).filter((part) => part !== undefined).map(pythonOf);
  return parts.length === 1 ? parts[0] : `(${parts.join(", ")})`;
}

function python(calls, target, tls, withToken) {
  const options = [
    pythonOf(target),
    ...(tls ? ["credentials=grpc.ssl_channel_credentials()"] : []),
    ...(withToken ? [`token=os.environ["TOKEN"]`] : []),
  ];
  const lines = calls.map(({ rpc, body: { model, texts, inputs, labels, input_type: type, ...others } }) => {
    const kind = type?.replace("INPUT_TYPE_", "").toLowerCase();
    const named = Object.entries({ model: model.name, version: model.version, ...others, input_type: kind })
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `${name}=${pythonOf(value)}`);
    const given = [pythonOf(texts ?? inputs), ...(labels ? [pythonOf(labels)] : []), ...named];
    return `    print(client.${pathOf(rpc).slice(3).replaceAll("-", "_")}(${given.join(", ")}))`;
  });
  const imports = [...(withToken ? ["import os", ""] : []), ...(tls ? ["import grpc"] : [])];
  const opening = ["from bertline import Client", "", `with Client(${options.join(", ")}) as client:`];
  return [...imports, ...opening, ...lines].join("\n");
}
