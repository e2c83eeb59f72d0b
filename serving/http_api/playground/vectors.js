// Vectors of texts: a heat map of similarities, and search.

import { bars, element, onlyFirst, score } from "./views.js";

const MAX_TEXTS = 24;

/** Return the vectors of a reply, base64 of little-endian float32, as arrays. */
export function vectorsOf({ vectors, dim }) {
  const bytes = Uint8Array.from(atob(vectors), (character) => character.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer);
  const rows = [];
  for (let start = 0; start < numbers.length; start += dim) rows.push(numbers.subarray(start, start + dim));
  return rows;
}

/** Return the cosine of the angle between two vectors. */
export function cosine(first, second) {
  const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
  return dot(first, second) / (Math.sqrt(dot(first, first) * dot(second, second)) || 1);
}

/** Show the similarity of each pair of texts. */
export function heatMap(texts, vectors) {
  const shown = texts.slice(0, MAX_TEXTS);
  const head = shown.map((_, index) => element("th", { scope: "col" }, `${index + 1}`));
  const rows = shown.map((text, row) => {
    const cells = shown.map((_, column) => {
      const value = cosine(vectors[row], vectors[column]);
      const cell = element("td", {}, value.toFixed(2));
      cell.style.setProperty("--heat", `${Math.round(100 * Math.max(0, value))}%`);
      return cell;
    });
    const name = element("th", { scope: "row" }, `${row + 1} `, element("bdi", {}, text));
    return element("tr", {}, name, ...cells);
  });
  const caption = element("p", { class: "hint", id: "caption" }, "Cosine of each pair: 1 is the same, 0 is unrelated.");
  const table = element(
    "table",
    { class: "heat", "aria-labelledby": "caption" },
    element("thead", {}, element("tr", {}, element("td"), ...head)),
    element("tbody", {}, ...rows),
  );
  const more = onlyFirst(MAX_TEXTS, texts.length);
  const name = { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Similarity of the texts" };
  return [caption, element("div", name, table), ...more];
}

/** Return the most similar pair of the texts that the heat map shows, as a sentence. */
export function mostSimilar(vectors) {
  const shown = vectors.slice(0, MAX_TEXTS);
  const pairs = shown.flatMap((vector, row) =>
    shown.slice(0, row).map((other, column) => ({ value: cosine(vector, other), row, column })),
  );
  if (!pairs.length) return "One text";
  const best = pairs.reduce((one, other) => (other.value > one.value ? other : one));
  return `Most similar: ${best.column + 1} and ${best.row + 1}, ${score(best.value)}`;
}

/** Return the documents of a search, best first: `{document, score}`. */
export const nearest = (query, vectors) =>
  vectors.map((vector, document) => ({ document, score: cosine(query, vector) })).sort((a, b) => b.score - a.score);

/** Return the best document with its score, as a sentence. */
export const saidBest = (documents, found) => `Best: ${documents[found[0].document]}, ${score(found[0].score)}`;

/** Show ranked documents. With `before`, the order of a search, each says where it was in it. */
export function ranking(documents, found, before) {
  const places = before && new Map(before.map(({ document }, index) => [document, index + 1]));
  const scores = found.map((item) => item.score);
  const isFraction = scores.every((value) => value >= -1 && value <= 1);
  return bars(
    found.map((item) => ({
      text: documents[item.document],
      note: `text ${item.document + 1}${places ? `, place ${places.get(item.document)} by vectors` : ""}`,
      value: score(item.score),
      fraction: isFraction ? item.score : undefined,
    })),
  );
}

/** Show the tokens of a sparse vector, the largest weights first. */
export function weights({ tokens, values }) {
  const rows = tokens.map((token, index) => ({
    text: token,
    value: score(values[index]),
    fraction: values[index] / values[0],
  }));
  return rows.length ? bars(rows) : element("p", {}, "No token has a weight.");
}
