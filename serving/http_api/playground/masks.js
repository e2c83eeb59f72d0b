// Masked words: tokens to choose from for each mask, and the text with those that are chosen.

import { element } from "./dom.js";
import { percent } from "./numbers.js";
import { choices, passage } from "./views.js";

const SPACE = /^[Ġ▁]/;
const PIECE = /^##/;

/** Show the likeliest tokens at each mask. */
export function masks(result, text, mask) {
  const parts = text.split(mask);
  const chosen = result.masks.map((item) => item.tokens[0].token);
  const filled = passage("Text with the chosen words", []);
  const show = () => filled.replaceChildren(...fill(parts, chosen, mask));
  const lists = result.masks.map(({ tokens }, number) => {
    const items = tokens.map(({ token, score }) => ({ text: plain(token), value: percent(score), fraction: score }));
    return choices(`Mask ${number + 1}`, items, (index) => {
      chosen[number] = tokens[index].token;
      show();
    });
  });
  return [filled, ...lists.flatMap((list, number) => [element("h3", {}, `Mask ${number + 1}`), list])];
}

/** Return a token without the marks that its vocabulary uses for spaces and continued words. */
const plain = (token) => token.replace(SPACE, "").replace(PIECE, "");

/** Return the parts of a text with a token between each two; masks in a part that was cut off stay. */
function fill(parts, chosen, mask) {
  return parts.flatMap((part, number) => {
    if (number === parts.length - 1) return [part];
    if (number >= chosen.length) return [part, mask];
    const before = PIECE.test(chosen[number]) ? part.trimEnd() : part;
    return [before, element("mark", { class: "answer" }, plain(chosen[number]))];
  });
}
