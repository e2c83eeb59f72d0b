// Labels, choices and numbers, as bars.

import { element } from "./dom.js";
import { percent, score } from "./numbers.js";
import { bars } from "./views.js";

/** Make rows of labels with probabilities. */
export const labelBars = (labels) =>
  bars(
    labels.map(({ label, score: value, selected }) => ({
      text: label,
      value: percent(value),
      fraction: value,
      isChosen: selected,
    })),
  );

/** Return the selected labels with their probabilities, as a sentence. */
export function saidLabels({ labels }) {
  const selected = labels.filter((item) => item.selected);
  return selected.map(({ label, score: value }) => `${label}, ${percent(value)}`).join("; ") || "No label";
}

/** Make rows of choices with probabilities. */
export const choiceBars = ({ choice, scores }, choices) =>
  bars(
    choices.map((item, index) => ({
      text: item,
      value: percent(scores[index]),
      fraction: scores[index],
      isChosen: index === choice,
    })),
  );

/** Show a number: as a bar if the model's own activation function keeps it between 0 and 1. */
export function numberView(value, { activation }) {
  if (activation === "sigmoid") return bars([{ text: "Score", value: score(value), fraction: value, isChosen: true }]);
  return element("p", { class: "number" }, score(value), element("small", {}, "on the scale of the training data"));
}
