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
  const write = language === "curl" ? curl : grpcurl;
  return calls.map((item) => write(item, target, server.tls, withToken)).join("\n\n");
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

const command = (...parts) => parts.join(" \\\n  ");
const authorization = (withToken) => (withToken ? [`-H "authorization: Bearer $TOKEN"`] : []);
const data = (body) => `-d ${quoted(JSON.stringify(body))}`;

function curl({ rpc, body }, _target, _tls, withToken) {
  const url = new URL(pathOf(rpc), document.baseURI);
  return command(`curl ${url}`, ...authorization(withToken), `-H 'content-type: application/json'`, data(body));
}

function grpcurl({ rpc, body }, target, tls, withToken) {
  const first = tls ? "grpcurl" : "grpcurl -plaintext";
  return command(first, ...authorization(withToken), data(body), `${target} bertline.v1.Encoder/${rpc}`);
}

/** Arguments of the client's methods by position, from the fields of a request. The others are named alike. */
const POSITIONAL = {
  Embed: ({ texts }) => [list(texts)],
  EmbedSparse: ({ texts }) => [list(texts)],
  FillMask: ({ texts }) => [list(texts)],
  ZeroShot: ({ texts, labels }) => [list(texts), list(labels)],
  Classify: ({ inputs }) => [list(inputs, textOrPair)],
  Regress: ({ inputs }) => [list(inputs, textOrPair)],
  Tag: ({ inputs }) => [list(inputs, ({ text }) => string(text))],
  Answer: ({ inputs }) => [list(inputs, ({ question, contexts }) => tuple(string(question), list(contexts)))],
  Rerank: ({ inputs }) => [list(inputs, ({ query, documents }) => tuple(string(query), list(documents)))],
  Choose: ({ inputs }) => [
    list(inputs, ({ context, question, choices }) => tuple(string(context), string(question), list(choices))),
  ],
};
const IN_POSITION = ["texts", "inputs", "labels"];

const string = (value) => JSON.stringify(value);
const list = (values, write = string) => `[${values.map(write).join(", ")}]`;
const tuple = (...parts) => `(${parts.join(", ")})`;
const textOrPair = ({ text, text_pair: pair }) => (pair ? tuple(string(text), string(pair)) : string(text));

function python(calls, target, tls, withToken) {
  const options = [
    string(target),
    ...(tls ? ["credentials=grpc.ssl_channel_credentials()"] : []),
    ...(withToken ? [`token=os.environ["TOKEN"]`] : []),
  ];
  const imports = [...(withToken ? ["import os", ""] : []), ...(tls ? ["import grpc"] : [])];
  const lines = calls.map(({ rpc, body }) => {
    const given = [...POSITIONAL[rpc](body), ...named(body)].join(", ");
    return `    print(client.${methodOf(rpc)}(${given}))`;
  });
  const opening = ["from bertline import Client", "", `with Client(${options.join(", ")}) as client:`];
  return [...imports, ...opening, ...lines].join("\n");
}

const methodOf = (rpc) => pathOf(rpc).slice("v1/".length).replaceAll("-", "_");

function named({ model, ...fields }) {
  const others = Object.entries(fields).filter(([name]) => !IN_POSITION.includes(name));
  return Object.entries({ ...model, ...Object.fromEntries(others) }).map(
    ([name, value]) => `${name === "name" ? "model" : name}=${pythonValue(name, value)}`,
  );
}

function pythonValue(name, value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  return string(name === "input_type" ? value.replace("INPUT_TYPE_", "").toLowerCase() : value);
}
