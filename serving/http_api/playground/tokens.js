// Tokens of the texts of a request.

import { call, reading } from "./api.js";
import { element } from "./dom.js";
import { counted } from "./numbers.js";

const MAX_INPUTS = 30;
const MAX_TOKENS = 500;

/** Fetch the tokens of texts. Return elements that show them. */
export async function tokensOf(model, inputs, signal) {
  const { reply } = await call("Tokenize", { model: model.reference, inputs: inputs.slice(0, MAX_INPUTS) }, signal);
  const shown = reading(() => shownTokens(reply, model));
  const more = inputs.length - MAX_INPUTS;
  return [...shown, ...(more > 0 ? [element("p", { class: "hint" }, `and ${counted(more, "more text")}`)] : [])];
}

const shownTokens = ({ results }, model) =>
  results.flatMap(({ tokens, ids, special }) => {
    const items = tokens.slice(0, MAX_TOKENS).map((token, index) => chip(token, ids[index], special[index]));
    const more = tokens.length - items.length;
    const rest = more > 0 ? [element("li", { class: "special" }, `and ${more.toLocaleString("en")} more`)] : [];
    const name = `${counted(tokens.length, "token")} of ${model.length.toLocaleString("en")}`;
    return [element("p", { class: "hint" }, name), element("ol", { class: "tokens" }, ...items, ...rest)];
  });

const chip = (token, id, isSpecial) =>
  element("li", { class: isSpecial ? "special" : undefined }, element("bdi", {}, token), element("small", {}, `${id}`));
