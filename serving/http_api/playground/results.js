// Results of the operations, each as a sentence and elements: vectors, ranked texts, marks in a text.

import { call } from "./api.js";
import { bars, choices, counted, element, likely, MAX_ROWS, onlyFirst, passage, percent, score } from "./views.js";

const MAX_TEXTS = 24;
const NUM_HUES = 6;
const ENTITY_LABEL = /^[BIES]-/;
const MAX_MASKS = 60;
const MASKS = ["[MASK]", "<mask>"];
const PROBE = "ß";
const PROBE_BYTE = "Ã"; // how byte-level vocabularies write the first byte of the probe

/** Return the vectors of a reply, base64 of little-endian float32, as arrays. */
export function vectorsOf({ vectors, dim }) {
  const bytes = Uint8Array.from(atob(vectors), (character) => character.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer);
  return Array.from({ length: numbers.length / dim }, (_, row) => numbers.subarray(row * dim, (row + 1) * dim));
}

/** Return the cosine of the angle between two vectors. */
function cosine(first, second) {
  const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
  return dot(first, second) / (Math.sqrt(dot(first, first) * dot(second, second)) || 1);
}

/** Show the similarity of each pair of texts; say which one is the largest. */
export function heatMap(texts, vectors) {
  const shown = texts.slice(0, MAX_TEXTS);
  let best = { value: -2 };
  const rows = shown.map((text, row) => {
    const cells = shown.map((_, column) => {
      const value = cosine(vectors[row], vectors[column]);
      if (column < row && value > best.value) best = { value, row, column };
      const cell = element("td", {}, value.toFixed(2));
      cell.style.setProperty("--heat", `${Math.round(100 * Math.max(0, value))}%`);
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, `${row + 1} `, element("bdi", {}, text)), ...cells);
  });
  const pair = `${best.column + 1} and ${best.row + 1}, ${score(best.value)}`;
  const caption = element("p", { class: "hint", id: "caption" }, "Cosine of each pair: 1 is the same, 0 is unrelated.");
  const head = shown.map((_, index) => element("th", { scope: "col" }, `${index + 1}`));
  const table = element(
    "table",
    { class: "heat", "aria-labelledby": "caption" },
    element("thead", {}, element("tr", {}, element("td"), ...head)),
    element("tbody", {}, ...rows),
  );
  const name = { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Similarity of the texts" };
  const said = rows.length > 1 ? `Most similar: ${pair}` : "One text";
  return [said, caption, element("div", name, table), ...onlyFirst(MAX_TEXTS, texts.length)];
}

/** Return the documents of a search, best first: `{document, score}`. */
export const nearest = (query, vectors) =>
  vectors.map((vector, document) => ({ document, score: cosine(query, vector) })).sort((a, b) => b.score - a.score);

/** Show ranked documents. With `before`, the order of a search, each says where it was in it. */
export function ranking(documents, found, before) {
  const places = before && new Map(before.map(({ document }, index) => [document, index + 1]));
  const isFraction = found.every((item) => Math.abs(item.score) <= 1);
  const rows = found.map((item) => ({
    text: documents[item.document],
    note: `text ${item.document + 1}${places ? `, place ${places.get(item.document)} by vectors` : ""}`,
    value: score(item.score),
    fraction: isFraction ? item.score : undefined,
  }));
  return [`Best: ${rows[0].text}, ${rows[0].value}`, bars(rows)];
}

/** Show the tokens of a sparse vector, the largest weights first. */
export function weights({ tokens, values }) {
  const value = (index) => ({ value: score(values[index]), fraction: values[index] / values[0] });
  const rows = tokens.map((token, index) => ({ text: token, ...value(index) }));
  return [counted(rows.length, "token"), rows.length ? bars(rows) : element("p", {}, "No token has a weight.")];
}

/** Return a function that cuts a text at offsets in code points, as `text.slice` does at UTF-16 units. */
function slicer(text) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return (start, end) => text.slice(units[start], units[end]);
}

/** Show the entities of a text. */
export function entities({ entities: found }, text, labels) {
  const types = [...new Set(labels.map((label) => label.replace(ENTITY_LABEL, "")))];
  const slice = slicer(text);
  const shown = found.slice(0, MAX_ROWS);
  const parts = shown.flatMap(({ label, start, end }, index) => {
    const attributes = { class: `hue-${types.indexOf(label) % NUM_HUES}`, dir: "auto" };
    const mark = element("mark", attributes, slice(start, end), element("small", {}, label));
    return [slice(shown[index - 1]?.end ?? 0, start), mark];
  });
  const rows = found.map(({ text: entity, label, score: value, start, end }) =>
    likely(entity, value, { note: `${label}, characters ${start} to ${end}` }),
  );
  return [
    counted(found.length, "entity", "entities"),
    passage("Text with its entities", [...parts, slice(shown.at(-1)?.end ?? 0)]),
    rows.length ? bars(rows) : element("p", {}, "No entity was found."),
  ];
}

/** Show the answer in its context, and the others to choose from. "No answer" is among them, by its score. */
export function answers({ spans, has_answer: hasAnswer, no_answer_score: none }, context) {
  const candidates = [...spans];
  if (none > 0 || !hasAnswer) candidates.push({ text: "No answer", score: none, start: 0, end: 0 });
  candidates.sort((a, b) => b.score - a.score);
  const text = passage("Context with the answer", [context]);
  const items = candidates.map(({ text: found, score: value, start, end }) =>
    likely(found, value, { note: end ? `characters ${start} to ${end}` : "" }),
  );
  const slice = slicer(context);
  const show = (number) => {
    const { start, end } = candidates[number];
    if (!end) return text.replaceChildren(context);
    const mark = element("mark", { class: "answer" }, slice(start, end));
    text.replaceChildren(slice(0, start), mark, slice(end));
    text.scrollTop = mark.offsetTop - text.clientHeight / 3;
  };
  const answer = candidates.findIndex(({ end }) => end > 0 === hasAnswer); // a threshold decides, not the score
  const said = hasAnswer ? `Answer: ${spans[0].text}, ${percent(spans[0].score)}` : `No answer, ${percent(none)}`;
  return [said, choices("Answers, best first; choose one to see it in the context", items, show, answer), text];
}

/** Show the most likely tokens at each mask, and the text with those that are chosen. */
export function masks({ masks: found }, text, model) {
  const parts = text.split(model.mask);
  const shown = found.slice(0, MAX_MASKS);
  const chosen = shown.map(({ tokens }) => tokens[0].token);
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
    const items = tokens.map(({ token, score: value }) => likely(wordOf(token, model) || token, value));
    const choose = (index) => {
      chosen[number] = tokens[index].token;
      show();
    };
    return [element("h3", {}, name), choices(name, items, choose)];
  });
  const said = found.map(({ tokens }) => wordOf(tokens[0].token, model)).join(", ");
  return [said, filled, ...lists, ...onlyFirst(shown.length, found.length)];
}

/** Return the mask token of a model, the first that is a token of its own, and whether its tokens are bytes. */
export async function vocabularyOf({ reference }) {
  const inputs = [...MASKS, PROBE].map((text) => ({ text }));
  const { reply } = await call("Tokenize", { model: reference, inputs });
  const mask = MASKS.find((name, index) => reply.results[index].tokens.includes(name)) ?? MASKS[0];
  return { mask, isByteLevel: reply.results.at(-1).tokens.some((token) => token.includes(PROBE_BYTE)) };
}

/** Return the word that a token stands for, without the space before it. */
const wordOf = (token, { isByteLevel }) =>
  isByteLevel ? decodeBytes(token).trimStart() : token.replace(/^(##|▁)/, "");

/** Bytes that characters from 256 on stand for, in order; the others stand for themselves. */
const HIDDEN = [...Array(256).keys()].filter((byte) => byte < 33 || (byte > 126 && byte < 161) || byte === 173);

/** Return the text of a byte-level token. Special tokens, which are written as they are, may have other characters. */
function decodeBytes(token) {
  const codes = [...token].map((character) => character.codePointAt(0));
  const bytes = codes.map((code) => (code < 256 ? code : HIDDEN[code - 256]));
  return bytes.includes(undefined) ? token : new TextDecoder().decode(Uint8Array.from(bytes));
}
