// The request of the page as code: curl, Python, grpcurl.

import { pathOf } from "./api.js";

export const LANGUAGES = [
  { id: "curl", title: "curl" },
  { id: "python", title: "Python" },
  { id: "grpc", title: "gRPC" },
];

/** Return the code of calls, `{rpc, body}` each. `server` has `grpc_port` and `tls`; a token is a variable in it. */
export function snippet(language, calls, server, withToken) {
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

const string = (value) => JSON.stringify(value);
const list = (values) => `[${values.join(", ")}]`;

/** Return an input of a request as an argument of the client: a text, or a tuple of its parts. */
function inputOf(input) {
  const parts = Object.values(input).filter((value) => value !== undefined);
  const written = parts.map((part) => (Array.isArray(part) ? list(part.map(string)) : string(part)));
  return written.length === 1 ? written[0] : `(${written.join(", ")})`;
}

function python(calls, target, tls, withToken) {
  const options = [
    string(target),
    ...(tls ? ["credentials=grpc.ssl_channel_credentials()"] : []),
    ...(withToken ? [`token=os.environ["TOKEN"]`] : []),
  ];
  const lines = calls.map(({ rpc, body: { model, texts, inputs, labels, ...others } }) => {
    const first = texts ? texts.map(string) : inputs.map(inputOf);
    const positional = [list(first), ...(labels ? [list(labels.map(string))] : [])];
    const named = Object.entries({ model: model.name, version: model.version, ...others })
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `${name}=${pythonValue(name, value)}`);
    return `    print(client.${pathOf(rpc).slice(3).replaceAll("-", "_")}(${[...positional, ...named].join(", ")}))`;
  });
  const imports = [...(withToken ? ["import os", ""] : []), ...(tls ? ["import grpc"] : [])];
  const opening = ["from bertline import Client", "", `with Client(${options.join(", ")}) as client:`];
  return [...imports, ...opening, ...lines].join("\n");
}

function pythonValue(name, value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  return string(name === "input_type" ? value.replace("INPUT_TYPE_", "").toLowerCase() : value);
}
