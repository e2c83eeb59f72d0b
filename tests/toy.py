"""Toy data that small networks learn in seconds: text, labelled texts, questions."""

import json

import numpy as np

WORDS = ["the", "a", "cat", "dog", "bird", "house", "tree", "river", "sees", "likes", "finds", "big", "small"]
WORDS += ["old", "red", "green", "runs", "sleeps", "near", "under"]


def make_text(num_documents, seed):
    """Return documents of short sentences of random words."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        sentences = [" ".join(rng.choice(WORDS, rng.integers(3, 12))).capitalize() + "." for _ in range(12)]
        documents.append("\n".join(sentences))
    return "\n\n".join(documents) + "\n"


def write_classification(path, num_rows, seed):
    """Write texts whose label is `yes` for a cat and `no` for a dog."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num_rows):
        label = int(rng.integers(2))
        words = [*rng.choice(["the", "big", "old", "red"], 4), ("dog", "cat")[label]]
        rows.append({"text": " ".join(rng.permutation(words)), "label": ("no", "yes")[label]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_multi_label(path, num_rows, seed):
    """Write texts with a label for each of three words, of which they may have any number."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num_rows):
        marks = [mark for mark in ("big", "cat", "river") if rng.random() < 0.4]
        words = rng.permutation([*rng.choice(["the", "old", "dog"], 2), *marks])
        rows.append({"text": " ".join(words), "label": [f"a {mark}" for mark in marks]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_spans(path, num_questions, seed, *, unanswerable=False):
    """Write questions whose answer is the colour in the context; contexts without a colour have no answer."""
    rng = np.random.default_rng(seed)
    paragraphs = []
    for number in range(num_questions):
        words = list(rng.choice(["the", "old", "big", "cat", "dog", "tree"], rng.integers(6, 40)))
        has_answer = not unanswerable or rng.random() < 0.5
        answers = []
        if has_answer:
            place = int(rng.integers(len(words)))
            words.insert(place, str(rng.choice(["red", "green"])))
            answers = [{"text": words[place], "answer_start": len(" ".join(words[:place])) + (place > 0)}]
        question = {"id": str(number), "question": "sees the house?", "answers": answers}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "max_seq_length": 32,
    "dropout": 0.1,
    "dtype": "fp32",
    "global_batch_size": 8,
    "micro_batch_size": 8,
    "log_every": 1,
    "learning_rate": 1e-3,
}
"""Pretraining recipe for networks that train in a second."""
