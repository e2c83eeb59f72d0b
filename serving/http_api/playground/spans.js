// Entities marked in a text, and answers marked in a context.

import { marked, slicer } from "./code_points.js";
import { element } from "./dom.js";
import { percent } from "./numbers.js";
import { bars, choices, MAX_ROWS, passage } from "./views.js";

const NUM_HUES = 6;
const ENTITY_LABEL = /^[BIES]-/;

/** Show the entities of a text. */
export function entities(result, text, labels) {
  const types = [...new Set(labels.map((label) => label.replace(ENTITY_LABEL, "")))];
  const mark = (part, { label }) =>
    element(
      "mark",
      { class: `hue-${types.indexOf(label) % NUM_HUES}`, dir: "auto" },
      part,
      element("small", {}, label),
    );
  const rows = result.entities.map(({ text: found, label, score, start, end }) => ({
    text: found,
    note: `${label}, characters ${start} to ${end}`,
    value: percent(score),
    fraction: score,
  }));
  const none = element("p", {}, "No entity was found.");
  const parts = marked(text, result.entities.slice(0, MAX_ROWS), mark);
  return [passage("Text with its entities", parts), rows.length ? bars(rows) : none];
}

/** Return the answer with its probability, as a sentence. */
export const saidAnswer = ({ has_answer: hasAnswer, spans, no_answer_score: none }) =>
  hasAnswer ? `Answer: ${spans[0].text}, ${percent(spans[0].score)}` : `No answer, ${percent(none)}`;

/** Show the answer in its context, and the others to choose from. "No answer" is among them, by its score. */
export function answers(result, context) {
  const candidates = result.spans.map((span) => ({ ...span, shown: span.text }));
  if (result.no_answer_score > 0 || !result.has_answer)
    candidates.push({ score: result.no_answer_score, shown: "No answer", start: 0, end: 0 });
  candidates.sort((a, b) => b.score - a.score);
  const text = passage("Context with the answer", [context]);
  const items = candidates.map(({ shown, score, start, end }) => ({
    text: shown,
    note: end ? `characters ${start} to ${end}` : "",
    value: percent(score),
    fraction: score,
  }));
  const show = (number) => markIn(text, context, candidates[number]);
  const answer = candidates.findIndex(({ end }) => end > 0 === result.has_answer); // a threshold decides, not the score
  return [choices("Answers, best first; choose one to see it in the context", items, show, answer), text];
}

function markIn(target, text, { start, end }) {
  const slice = slicer(text);
  if (!end) return target.replaceChildren(text);
  const mark = element("mark", { class: "answer" }, slice(start, end));
  target.replaceChildren(slice(0, start), mark, slice(end));
  target.scrollTop = mark.offsetTop - target.clientHeight / 3;
}
