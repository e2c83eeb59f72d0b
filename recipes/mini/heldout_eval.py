"""Further scores of served models: own everyday texts, search, ranking, and whether answers' scores can be believed.

sentiment.tsv   40 negations, contrasts and everyday sentences, with their sentiment
names.txt       60 sentences with 150 names, marked as in `[PER Marie Curie] worked in [LOC Paris].`
contrast.tsv    20 texts, each with a question that it answers and a similar one that it does not
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertline import Answer, Client
from recipes.mini.data import Titled, answerable, merge, read_table, squad_file
from recipes.retrieval import WordIndex
from tasks.metrics import squad_example_scores
from tasks.spans import SpanExample, answer_scores
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.squad import read_spans
from training.data.table_examples import read_classification

FOLDER = Path(__file__).parent
TOP = 10
"""Paragraphs that a search returns."""
NUM_RANKED = 500
"""Questions whose paragraphs are ranked."""
NUM_BINS = 10
"""Ranges of the score in a reliability plot."""
MOSTLY = 0.5
"""F1 from which an own answer counts as right."""

Found = Mapping[str, Any]
_MARK = re.compile(r"\[([A-Z]+) ([^\[\]]+)\]")
Name = tuple[int, int, str]
"""Start, end and type of a name; offsets are in code points."""


def heldout_scores(name: str, client: Client, squad: Sequence[Path]) -> dict[str, Found]:
    """Return the further scores of a served model by name; empty if there are none.

    Args:
        name: name of the model.
        client: client of a server that has it.
        squad: dev sets of SQuAD v1.1 and v2.0.
    """
    if name == "sentiment":
        return {"everyday": sentiment_scores(client, name)}
    if name == "tag":
        return {"everyday": name_scores(client, name)}
    if name == "rerank":
        return {"ranking": ranking_scores(client, name, answerable(merge([squad_file(squad[0])])))}
    if name == "answer":
        return answering_scores(client, name, *map(read_spans, squad))
    return {"search": search_scores(client, name, read_spans(squad[0]))} if name == "embed" else {}


def read_sentiment() -> Examples:
    """Read the sentences with their sentiment."""
    return read_classification(FOLDER / "sentiment.tsv", Columns())


def sentiment_scores(client: Client, model: str) -> dict[str, float]:
    """Return the number of sentences whose sentiment a served model finds, and the number of all."""
    examples = read_sentiment()
    results = client.classify([example.text for example in examples], model=model)
    correct = sum(result.label == example.label for result, example in zip(results, examples, strict=True))
    return {"correct": correct, "of": len(examples)}


def read_names() -> list[tuple[str, set[Name]]]:
    """Read the sentences with their names."""
    return [parse_marks(line) for line in (FOLDER / "names.txt").read_text(encoding="utf-8").splitlines()]


def parse_marks(line: str) -> tuple[str, set[Name]]:
    """Return the text of a line without marks, and the names that they mark."""
    text, names, last = "", set(), 0
    for mark in _MARK.finditer(line):
        text += line[last : mark.start()]
        names.add((len(text), len(text) + len(mark[2]), mark[1]))
        text, last = text + mark[2], mark.end()
    return text + line[last:], names


def name_scores(client: Client, model: str) -> dict[str, float]:
    """Return precision, recall and F1 of the names that a served model finds, with exact bounds and types."""
    texts, known = zip(*read_names(), strict=True)
    tagged = client.tag(list(texts), model=model)
    return exact_scores(known, [{(item.start, item.end, item.label) for item in result.entities} for result in tagged])


def exact_scores(known: Sequence[set[Name]], found: Sequence[set[Name]]) -> dict[str, float]:
    """Return F1, precision and recall of names that are wholly right, over all texts."""
    correct = sum(len(right & names) for right, names in zip(known, found, strict=True))
    num_known, num_found = sum(map(len, known)), sum(map(len, found))
    return {
        "f1": 2 * correct / max(1, num_known + num_found),
        "precision": correct / max(1, num_found),
        "recall": correct / max(1, num_known),
    }


def search_scores(client: Client, model: str, examples: Sequence[SpanExample]) -> dict[str, float]:
    """Return how often the paragraph of a question is among the `TOP` of all: by cosine, and by words (BM25)."""
    questions = [example.question for example in examples]
    paragraphs = list(dict.fromkeys(example.context for example in examples))
    right = np.array([paragraphs.index(example.context) for example in examples])
    words = WordIndex(paragraphs)
    vectors = [client.embed(texts, model=model, truncate=True) for texts in (questions, paragraphs)]
    return {
        "recall": recall(vectors[0] @ vectors[1].T, right),
        "bm25": recall(np.stack([words.scores(question) for question in questions]), right),
        "num_questions": len(questions),
        "num_paragraphs": len(paragraphs),
    }


def read_contrasts() -> list[SpanExample]:
    """Read the pairs of similar questions: an answerable one and then an unanswerable one of each text."""
    rows = read_table(FOLDER / "contrast.tsv", "text", "question", "answer")
    return [SpanExample(row["question"], row["text"], (row["answer"],) if row["answer"] else ()) for row in rows]


def answering_scores(
    client: Client, model: str, answered: Sequence[SpanExample], mixed: Sequence[SpanExample]
) -> dict[str, Found]:
    """Return what a served model answers, and how far its scores are probabilities.

    Args:
        answered: questions that all have an answer; the best span counts, whether the model believes in it or not.
        mixed: questions with and without an answer, for the reliability of `score`.
    """

    def ask(examples: Sequence[SpanExample]) -> list[Answer]:
        return client.answer([(item.question, item.context) for item in examples], model=model, truncate=True)

    contrasts = read_contrasts()
    _, f1 = squad_example_scores(
        [found.text for found in ask(contrasts)], [item.answers for item in contrasts], characters=False
    )
    results = ask(mixed)
    exact, _ = squad_example_scores(
        [found.text for found in results], [item.answers for item in mixed], characters=False
    )
    return {
        "best span": answer_scores(answered, [found.spans[0].text if found.spans else "" for found in ask(answered)]),
        "contrast": {"correct": int((f1 >= MOSTLY).sum()), "of": len(contrasts)},
        "reliability": reliability(np.array([found.score for found in results]), exact),
    }


def reliability(scores: np.ndarray, is_right: np.ndarray) -> Found:
    """Return the expected calibration error, and for each of `NUM_BINS` equal ranges of the score what was right.

    Source: Guo et al. 2017, "On calibration of modern neural networks".

    Args:
        scores: [replies], from 0 to 1.
        is_right: [replies], 1 for right and 0 for wrong.
    """
    number = np.minimum((scores * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = [
        {
            "score": float(scores[number == each].mean()),
            "right": float(is_right[number == each].mean()),
            "count": int((number == each).sum()),
        }
        for each in np.unique(number)
    ]
    error = sum(each["count"] * abs(each["score"] - each["right"]) for each in bins) / len(scores)
    return {"error": float(error), "bins": bins}


def ranking_scores(client: Client, model: str, paragraphs: Sequence[Titled]) -> dict[str, float]:
    """Return the mean reciprocal rank of a question's paragraph among `TOP` of its article: by a model, and by words.

    The others do not contain the answer.
    """
    questions = list(ranked_questions(paragraphs))
    found = client.rerank(questions, model=model, truncate=True)
    by_words = [WordIndex(texts).scores(question) for question, texts in questions]
    return {
        "mrr": float(np.mean([1 / (1 + list(ranking.order).index(0)) for ranking in found])),
        "bm25": float(np.mean([1 / (scores >= scores[0]).sum() for scores in by_words])),
        "num_questions": len(questions),
    }


def ranked_questions(paragraphs: Sequence[Titled]) -> Iterator[tuple[str, list[str]]]:
    """Yield `NUM_RANKED` questions with the paragraph that answers each, and then `TOP` - 1 others of its article."""
    texts: dict[str, list[str]] = {}
    for title, paragraph in paragraphs:
        texts.setdefault(title, []).append(paragraph["context"])
    asked = [(title, paragraph["context"], item) for title, paragraph in paragraphs for item in paragraph["qas"]]
    rng = random.Random(0)
    for title, context, item in rng.sample(asked, min(NUM_RANKED, len(asked))):
        answers = [answer["text"].lower() for answer in item["answers"]]
        others = [text for text in texts[title] if not any(answer in text.lower() for answer in answers)]
        if others:
            yield item["question"], [context, *rng.sample(others, min(TOP - 1, len(others)))]


def recall(scores: np.ndarray, right: np.ndarray) -> float:
    """Return the fraction of questions whose paragraph has one of the `TOP` highest scores; ties count against it.

    Args:
        scores: [questions, paragraphs].
        right: number of the right paragraph of each question.
    """
    own = scores[np.arange(len(right)), right]
    return float(((scores >= own[:, None]).sum(1) <= TOP).mean())
