// Texts that the fields begin with.

const REVIEW = "The new phone is fast, light and a joy to use.";
const SEARCH = {
  query: "How does bread stay fresh?",
  documents:
    "Wrap the loaf in a linen cloth and keep it in a wooden box.\nThe bakery opens at six in the morning.\n" +
    "A stone oven needs two hours to get hot.\nBread dries out faster in the fridge than on the shelf.",
};

export const EXAMPLES = {
  labels: { text: REVIEW },
  "own-labels": { text: REVIEW, labels: "technology\nsport\ncooking", template: "This example is about {}." },
  entities: {
    text: "Angela Merkel met Emmanuel Macron in Paris. Both then flew to Munich, where Siemens has its headquarters.",
  },
  answer: {
    question: "What does the owl eat?",
    context:
      "The old oak stands at the edge of the forest. In its trunk lives an owl. The owl sleeps all day in the old " +
      "oak. At night it hunts mice and voles in the fields around the village. In winter, when snow covers the " +
      "fields, it waits near the barns.\n\nThe children of the village have counted its feathers on the ground " +
      "every spring since 1987.",
  },
  number: { text: "A man plays the guitar.", pair: "Someone is making music." },
  rank: SEARCH,
  choose: {
    context: "She dropped the glass on the stone floor.",
    question: "What happened next?",
    choices: "It broke.\nIt flew away.\nIt began to sing.",
  },
  words: { text: "The capital of France is [MASK]." },
  weights: { text: "Wrap the loaf in a linen cloth and keep it in a wooden box." },
  similarity: {
    texts:
      "A man plays the guitar.\nSomeone is making music.\nA woman slices an onion.\nShe is cooking dinner.\n" +
      "The train to Berlin is late.",
  },
  search: SEARCH,
};
