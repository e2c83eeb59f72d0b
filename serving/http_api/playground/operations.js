// What can be done with a model: fields, requests, and what is shown of the replies.

import { answers, entities, heatMap, masks, nearest, ranking, vectorsOf, weights } from "./results.js";
import { bars, element, likely, percent, score } from "./views.js";

const TOP_K = 5;
const TRUNCATE = { kind: "check", name: "truncate", label: "Truncate long texts", isFolded: true };
const isTask = (task) => (model) => model.task === task;
const line = (name, label, options) => ({ kind: "line", name, label, ...options });
const text = (name, label, options) => ({ kind: "text", name, label, ...options });
const lines = (name, label) => ({ kind: "lines", name, label });
const secondText = (options) => line("pair", "Second text, for models of pairs", { optional: true, ...options });
const pairOf = ({ text: first, pair }) => (pair ? { text: first, text_pair: pair } : { text: first });
const asInputs = (texts) => texts.map((item) => ({ text: item }));
const queryAndDocuments = [line("query", "Query"), lines("documents", "Texts to search, one per line")];
const rankCall = ({ query, documents }) => ({
  rpc: "Rerank",
  body: { inputs: [{ query, documents }] },
  cuts: "the query",
});

const REVIEW = "The new phone is fast, light and a joy to use.";
const SEARCH = {
  query: "How long does bread keep?",
  documents:
    "Bread dries out faster in the fridge than on the shelf.\nThe bakery opens at six in the morning.\n" +
    "A stone oven needs two hours to get hot.\nIn a linen cloth, a loaf of bread keeps for four days.",
};

/** True if a model ranks documents for any query, without being told which label means that one fits. */
export function ranks({ task, settings }) {
  return task === "regression" || (task === "token-embedding" && settings.normalize);
}

/** Return the selected labels as a sentence, and the labels as bars. */
function showLabels([{ results }]) {
  const { labels } = results[0];
  const selected = labels.filter((item) => item.selected);
  const said = selected.map((item) => `${item.label}, ${percent(item.score)}`).join("; ") || "No label";
  return [said, bars(labels.map((item) => likely(item.label, item.score, { isChosen: item.selected })))];
}

/** Show a number: as a bar if the model's own activation function keeps it between 0 and 1. */
function showNumber(value, { activation }) {
  if (activation === "sigmoid") return bars([{ text: "Score", value: score(value), fraction: value, isChosen: true }]);
  return element("p", { class: "number" }, score(value), element("small", {}, "on the scale of the training data"));
}

/**
 * Operations, in the order of the page. `fits` says which models can do it, `calls` makes requests of the values of the
 * fields (`body` without model; `cuts` is the only part that may be truncated, if there is one), `texts` are the inputs
 * whose tokens are shown, by default the text, `show` returns a sentence and elements.
 */
const OPERATIONS = [
  {
    id: "labels",
    title: "Labels",
    fits: isTask("classification"),
    fields: [text("text", "Text"), secondText({ isFolded: true })],
    examples: { text: REVIEW },
    calls: (values) => [{ rpc: "Classify", body: { inputs: [pairOf(values)] } }],
    show: showLabels,
  },
  {
    id: "own-labels",
    title: "Your labels",
    fits: ({ task, labels }) =>
      task === "classification" && labels.some((label) => label.toLowerCase().startsWith("entail")),
    fields: [
      text("text", "Text"),
      lines("labels", "Labels, one per line"),
      line("template", "Sentence that the label stands in"),
      { kind: "check", name: "several", label: "A text may have several labels" },
    ],
    examples: { text: REVIEW, labels: "technology\nsport\ncooking", template: "This example is about {}." },
    calls: ({ text: input, labels, template, several }) => [
      { rpc: "ZeroShot", body: { texts: [input], labels, template, multi_label: several } },
    ],
    texts: ({ text: input, labels, template }) =>
      labels.map((label) => ({ text: input, text_pair: template.replaceAll("{}", () => label) })),
    show: showLabels,
  },
  {
    id: "entities",
    title: "Entities",
    fits: isTask("tagging"),
    fields: [text("text", "Text")],
    examples: {
      text: "Angela Merkel met Emmanuel Macron in Paris. Both then flew to Munich, where Siemens has its headquarters.",
    },
    calls: (values) => [{ rpc: "Tag", body: { inputs: [{ text: values.text }] } }],
    show: ([{ results }], values, model) => entities(results[0], values.text, model.labels),
  },
  {
    id: "answer",
    title: "Answer",
    fits: isTask("spans"),
    fields: [line("question", "Question"), text("context", "Context, of any length", { rows: 12 })],
    examples: {
      question: "What does the owl hunt?",
      context:
        "The old oak stands at the edge of the forest. In its trunk lives an owl. The owl sleeps all day in the old " +
        "oak. At night it hunts mice and voles in the fields around the village. In winter, when snow covers the " +
        "fields, it waits near the barns.\n\nThe children of the village have counted its feathers on the ground " +
        "every spring since 1987.",
    },
    calls: ({ question, context }) => [
      { rpc: "Answer", body: { inputs: [{ question, contexts: [context] }], top_k: TOP_K }, cuts: "the question" },
    ],
    texts: ({ question, context }) => [{ text: question, text_pair: context }],
    show: ([{ results }], { context }) => answers(results[0], context),
  },
  {
    id: "number",
    title: "Regression",
    fits: isTask("regression"),
    fields: [text("text", "Text"), secondText()],
    examples: { text: "A man plays the guitar.", pair: "Someone is making music." },
    calls: (values) => [{ rpc: "Regress", body: { inputs: [pairOf(values)] } }],
    show: ([{ values: [found] }], values, { settings }) => [score(found), showNumber(found, settings)],
  },
  {
    id: "rank",
    title: "Rank",
    fits: ranks,
    fields: queryAndDocuments,
    examples: SEARCH,
    calls: (values) => [rankCall(values)],
    texts: ({ query, documents }, { task }) =>
      task === "token-embedding"
        ? asInputs([query, ...documents])
        : documents.map((item) => ({ text: query, text_pair: item })),
    show: ([{ results }], { documents }) => ranking(documents, results[0].documents),
  },
  {
    id: "choose",
    title: "Multiple choice",
    fits: isTask("multiple-choice"),
    fields: [
      text("context", "Context", { optional: true }),
      line("question", "Question, or the start of a sentence", { optional: true }),
      lines("choices", "Choices, one per line"),
    ],
    examples: {
      context: "She dropped the glass on the stone floor.",
      question: "What happened next?",
      choices: "It broke.\nIt flew away.\nIt began to sing.",
    },
    calls: (values) => [{ rpc: "Choose", body: { inputs: [values] } }],
    texts: ({ context, question, choices }) =>
      choices.map((item) => {
        const ending = context && question ? `${question} ${item}` : item;
        return context || question ? { text: context || question, text_pair: ending } : { text: item };
      }),
    show: ([{ results }], { choices }) => {
      const [{ choice, scores }] = results;
      const rows = choices.map((item, index) => likely(item, scores[index], { isChosen: index === choice }));
      return [`${choices[choice]}, ${percent(scores[choice])}`, bars(rows)];
    },
  },
  {
    id: "words",
    title: "Masked words",
    fits: isTask("masked-lm"),
    fields: [text("text", "Text")],
    examples: { text: "The capital of France is [MASK]." },
    calls: (values) => [{ rpc: "FillMask", body: { texts: [values.text], top_k: TOP_K } }],
    show: ([{ results }], values, model) => masks(results[0], values.text, model),
  },
  {
    id: "weights",
    title: "Weights of tokens",
    fits: isTask("sparse-embedding"),
    fields: [text("text", "Text")],
    examples: { text: "Wrap the loaf in a linen cloth and keep it in a wooden box." },
    calls: (values) => [{ rpc: "EmbedSparse", body: { texts: [values.text], return_tokens: true } }],
    show: ([{ results }]) => weights(results[0]),
  },
  {
    id: "similarity",
    title: "Similarity",
    fits: isTask("embedding"),
    fields: [lines("texts", "Sentences, one per line")],
    examples: {
      texts:
        "A man plays the guitar.\nSomeone is making music.\nA woman slices an onion.\nShe is cooking dinner.\n" +
        "The train to Berlin is late.",
    },
    calls: ({ texts }) => [{ rpc: "Embed", body: { texts } }],
    texts: ({ texts }) => asInputs(texts),
    show: ([reply], { texts }) => heatMap(texts, vectorsOf(reply)),
  },
  {
    id: "search",
    title: "Search",
    fits: isTask("embedding"),
    fields: [...queryAndDocuments, { kind: "ranker", name: "ranker", label: "Then rank with" }],
    examples: SEARCH,
    calls: ({ ranker, ...values }) => [
      { rpc: "Embed", body: { texts: [values.query], input_type: "INPUT_TYPE_QUERY" }, cuts: "the query" },
      { rpc: "Embed", body: { texts: values.documents, input_type: "INPUT_TYPE_DOCUMENT" } },
      ...(ranker ? [{ model: ranker, ...rankCall(values) }] : []),
    ],
    texts: ({ query, documents }) => asInputs([query, ...documents]),
    show: ([query, texts, ranked], { documents }) => {
      const near = nearest(vectorsOf(query)[0], vectorsOf(texts));
      return ranking(documents, ranked?.results[0].documents ?? near, ranked && near);
    },
  },
];

/** Return what can be done with a model. */
export const operationsOf = (model) =>
  OPERATIONS.filter((item) => item.fits(model)).map((item) => ({
    texts: (values) => [pairOf(values)],
    ...item,
    fields: model.truncates ? item.fields : [...item.fields, TRUNCATE],
  }));

/** Return the first value of a field. `[MASK]` stands for the mask token of the model. */
export const exampleOf = ({ examples }, { name }, { mask }) =>
  (examples[name] ?? "").replaceAll("[MASK]", mask ?? "[MASK]");
