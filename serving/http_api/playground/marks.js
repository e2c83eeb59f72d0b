// Results marked in a text: entities, answers, masked words.

import { call } from "./api.js";
import { bars, choices, element, likely, MAX_ROWS, onlyFirst, passage, percent } from "./views.js";

const NUM_HUES = 6;
const ENTITY_LABEL = /^[BIES]-/;
const MAX_MASKS = 60;
const MASKS = ["[MASK]", "<mask>"];
const PROBE = "ß";
const PROBE_BYTE = "Ã"; // how byte-level vocabularies write the first byte of the probe

/** Return a function that cuts a text at offsets in code points, as `text.slice` does at UTF-16 units. */
function slicer(text) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return (start, end) => text.slice(units[start], units[end]);
}

/** Show the entities of a text. */
export function entities(result, text, labels) {
  const types = [...new Set(labels.map((label) => label.replace(ENTITY_LABEL, "")))];
  const slice = slicer(text);
  const parts = [];
  let done = 0;
  for (const { label, start, end } of result.entities.slice(0, MAX_ROWS)) {
    const attributes = { class: `hue-${types.indexOf(label) % NUM_HUES}`, dir: "auto" };
    parts.push(slice(done, start), element("mark", attributes, slice(start, end), element("small", {}, label)));
    done = end;
  }
  const rows = result.entities.map(({ text: found, label, score, start, end }) =>
    likely(found, score, { note: `${label}, characters ${start} to ${end}` }),
  );
  const none = element("p", {}, "No entity was found.");
  return [passage("Text with its entities", [...parts, slice(done)]), rows.length ? bars(rows) : none];
}

/** Return the answer with its probability, as a sentence. */
export const saidAnswer = ({ has_answer: hasAnswer, spans, no_answer_score: none }) =>
  hasAnswer ? `Answer: ${spans[0].text}, ${percent(spans[0].score)}` : `No answer, ${percent(none)}`;

/** Show the answer in its context, and the others to choose from. "No answer" is among them, by its score. */
export function answers(result, context) {
  const candidates = [...result.spans];
  if (result.no_answer_score > 0 || !result.has_answer)
    candidates.push({ text: "No answer", score: result.no_answer_score, start: 0, end: 0 });
  candidates.sort((a, b) => b.score - a.score);
  const text = passage("Context with the answer", [context]);
  const items = candidates.map(({ text: found, score, start, end }) =>
    likely(found, score, { note: end ? `characters ${start} to ${end}` : "" }),
  );
  const slice = slicer(context);
  const show = (number) => {
    const { start, end } = candidates[number];
    if (!end) return text.replaceChildren(context);
    const mark = element("mark", { class: "answer" }, slice(start, end));
    text.replaceChildren(slice(0, start), mark, slice(end));
    text.scrollTop = mark.offsetTop - text.clientHeight / 3;
  };
  const answer = candidates.findIndex(({ end }) => end > 0 === result.has_answer); // a threshold decides, not the score
  return [choices("Answers, best first; choose one to see it in the context", items, show, answer), text];
}

/** Show the most likely tokens at each mask, and the text with those that are chosen. */
export function masks(result, text, model) {
  const parts = text.split(model.mask);
  const shown = result.masks.slice(0, MAX_MASKS);
  const chosen = shown.map((item) => item.tokens[0].token);
  const filled = passage("Text with the chosen words", []);
  const show = () =>
    filled.replaceChildren(
      ...parts.flatMap((part, number) => {
        if (number === parts.length - 1) return [part];
        if (number >= chosen.length) return [part, model.mask]; // was cut off
        const continues = !model.isByteLevel && chosen[number].startsWith("##");
        const mark = element("mark", { class: "answer" }, wordOf(chosen[number], model));
        return [continues ? part.trimEnd() : part, mark];
      }),
    );
  const lists = shown.flatMap(({ tokens }, number) => {
    const name = `Mask ${number + 1}`;
    const items = tokens.map(({ token, score }) => likely(wordOf(token, model) || token, score));
    const choose = (index) => {
      chosen[number] = tokens[index].token;
      show();
    };
    return [element("h3", {}, name), choices(name, items, choose)];
  });
  return [filled, ...lists, ...onlyFirst(shown.length, result.masks.length)];
}

/** Return the mask token of a model, the first that is a token of its own, and whether its tokens are bytes. */
export async function vocabularyOf({ reference }) {
  const inputs = [...MASKS, PROBE].map((text) => ({ text }));
  const { reply } = await call("Tokenize", { model: reference, inputs });
  const mask = MASKS.find((name, index) => reply.results[index].tokens.includes(name)) ?? MASKS[0];
  return { mask, isByteLevel: reply.results.at(-1).tokens.some((token) => token.includes(PROBE_BYTE)) };
}

/** Return the word that a token stands for, without the space before it. */
export const wordOf = (token, { isByteLevel }) =>
  isByteLevel ? decodeBytes(token).trimStart() : token.replace(/^(##|▁)/, "");

/** Bytes by the characters that stand for them: printable ones for themselves, then others in order from 256 on. */
const BYTES = new Map();
let free = 256;
for (let byte = 0; byte < 256; byte += 1) {
  const isPrintable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  BYTES.set(String.fromCharCode(isPrintable ? byte : free), byte);
  if (!isPrintable) free += 1;
}

/** Return the text of a byte-level token. Special tokens, which are written as they are, may have other characters. */
function decodeBytes(token) {
  const bytes = [...token].map((character) => BYTES.get(character));
  return bytes.includes(undefined) ? token : new TextDecoder().decode(Uint8Array.from(bytes));
}
