// Masked words: tokens to choose from for each mask, and the text with those that are chosen.

import { element } from "./dom.js";
import { onlyFirst, percent } from "./numbers.js";
import { choices, passage } from "./views.js";
import { continues, wordOf } from "./vocabulary.js";

const MAX_MASKS = 60;

/** Show the likeliest tokens at each mask. */
export function masks(result, text, model) {
  const parts = text.split(model.mask);
  const first = result.masks.slice(0, MAX_MASKS);
  const chosen = first.map((item) => item.tokens[0].token);
  const filled = passage("Text with the chosen words", []);
  const show = () => filled.replaceChildren(...fill(parts, chosen, model));
  const lists = first.map(({ tokens }, number) => {
    const items = tokens.map(({ token, score }) => ({
      text: wordOf(token, model) || token,
      value: percent(score),
      fraction: score,
    }));
    return choices(`Mask ${number + 1}`, items, (index) => {
      chosen[number] = tokens[index].token;
      show();
    });
  });
  const rest = onlyFirst(first.length, result.masks.length).map((said) => element("p", { class: "hint" }, said));
  return [filled, ...lists.flatMap((list, number) => [element("h3", {}, `Mask ${number + 1}`), list]), ...rest];
}

/** Return the parts of a text with a token between each two; masks in a part that was cut off stay. */
function fill(parts, chosen, model) {
  return parts.flatMap((part, number) => {
    if (number === parts.length - 1) return [part];
    if (number >= chosen.length) return [part, model.mask];
    const before = continues(chosen[number], model) ? part.trimEnd() : part;
    return [before, element("mark", { class: "answer" }, wordOf(chosen[number], model))];
  });
}
