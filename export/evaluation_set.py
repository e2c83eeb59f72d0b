"""What graphs are judged on: examples with their sequences, and how predictions for them are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.features import Features
from tasks.metrics import is_loss
from tasks.regression import Regression
from training.data.cloze import MAX_PASSAGE_TOKENS
from training.data.columns import Columns
from training.data.examples import Examples, encode_examples, sample_indices
from training.data.input_warnings import is_cut
from training.data.labelled import read_examples, read_similarities
from training.data.sources import source_names
from training.evaluate import check_labels
from training.similarity import vector_scores

Score = Callable[[Sequence[Any]], dict[str, float]]
"""Predictions -> scores by name, official metrics first."""

_NUM_RANDOM = 64
_MAX_RANDOM_LENGTH = 64


@dataclass(frozen=True)
class Evidence:
    """Examples to run a network on."""

    name: str
    """What the examples are, in words."""
    task: AnyTask
    examples: Sequence[Any]
    places: Sequence[str]
    """Where each stands, as messages name it."""
    windows: Sequence[Sequence[Features]]
    """The sequences of each."""
    score: Score | None
    """None where nobody knows what is right."""

    @property
    def features(self) -> list[Features]:
        """All sequences."""
        return [features for windows in self.windows for features in windows]

    @property
    def num_cut(self) -> int:
        """Examples that lost tokens which did not fit."""
        return sum(map(is_cut, self.windows))

    def judged_by(self, metric: str) -> Evidence:
        """The same, with one of its scores before all others.

        Raises:
            ValueError: when predictions are scored, and it is none of the scores.
        """
        score = self.score
        assert score

        def metric_first(predictions: Sequence[Any]) -> dict[str, float]:
            found = score(predictions)
            if metric not in found or is_loss(metric):
                known = ", ".join(name for name in found if not is_loss(name))
                raise ValueError(f"unknown --metric `{metric}`; it is one of: {known}")
            return {metric: found[metric]} | found

        return replace(self, score=metric_first)

    def some(self, count: int) -> Evidence:
        """At most so many of the examples, drawn at random, without their labels."""
        numbers = sample_indices(len(self.examples), count)
        return Evidence(
            name=self.name,
            task=self.task,
            examples=[self.examples[number] for number in numbers],
            places=[self.places[number] for number in numbers],
            windows=[self.windows[number] for number in numbers],
            score=None,
        )


def labelled(
    task: AnyTask, paths: Sequence[Path], columns: Columns, *, max_examples: int, scored: bool = True
) -> Evidence:
    """Labelled data of the task; for embeddings, pairs of texts with numbers that say how alike they are.

    Args:
        max_examples: how many to take, drawn at random.
        scored: whether predictions are to be scored.

    Raises:
        ValueError: naming the file and the line of what cannot be used.
    """
    files = ", ".join(source_names(paths))
    if isinstance(task, Embedding):
        there = read_similarities(paths, columns=columns, tokenizer=task.tokenizer)
        pairs = there.sample(max_examples)
        _check_varied(pairs, files)
        return _pairs(f"{_counted(pairs, there)} pairs of {files}", task, pairs, paths)
    passage = min(MAX_PASSAGE_TOKENS, task.settings.max_seq_length - 2)
    there = read_examples(task.name, paths, columns=columns, tokenizer=task.tokenizer, max_passage_tokens=passage)
    examples = there.sample(max_examples)
    try:
        check_labels(task, examples)
    except ValueError as error:
        raise ValueError(f"{error} (--labels gives them, in this order, the names that the data have)") from error
    if scored and isinstance(task, Regression):
        _check_varied(examples, files)
    windows = encode_examples(task, examples)
    return Evidence(
        name=f"{_counted(examples, there)} examples of {files}",
        task=task,
        examples=examples,
        places=[_by_name(place, paths) for place in examples.locations],
        windows=windows,
        score=lambda found: task.score(examples, found),
    )


def _check_varied(examples: Examples, files: str) -> None:
    """Correlations are not defined otherwise."""
    if len(labels := {example.label for example in examples}) < 2:
        raise ValueError(
            f"{files}: the label is `{labels.pop()}` everywhere, and nothing correlates with that; give other data, "
            "or --texts, which are not scored"
        )


def _by_name(place: str, paths: Sequence[Path]) -> str:
    """Where an example stands, by its file's name in records: reports leave the machine."""
    for path, name in zip(paths, source_names(paths), strict=True):
        place = place.replace(f"`{path}`", f"`{name}`")
    return place


def _pairs(name: str, task: Embedding, pairs: Examples, paths: Sequence[Path]) -> Evidence:
    places = {text: place for place, pair in pairs.located() for text in (pair.text_pair, pair.text)}
    texts = list(places)

    def score(vectors: Sequence[np.ndarray]) -> dict[str, float]:
        of_text = dict(zip(texts, vectors, strict=True))
        return vector_scores(pairs, lambda wanted: [of_text[text] for text in wanted])

    return Evidence(name, task, texts, [_by_name(place, paths) for place in places.values()], task.encode(texts), score)


def plain_texts(task: AnyTask, there: Examples, paths: Sequence[Path], *, max_examples: int) -> Evidence:
    """Texts, each as one sequence, cut where it is too long, whatever the task.

    Args:
        max_examples: how many to take, drawn at random.
    """
    texts = there.sample(max_examples)
    places = [_by_name(place, paths) for place in texts.locations]
    whole = Embedding(task.tokenizer, EmbeddingSettings(max_seq_length=task.settings.max_seq_length))
    return Evidence(f"{_counted(texts, there)} texts", task, texts, places, encode_examples(whole, texts), None)


def random_ids(task: AnyTask) -> Evidence:
    """Sequences that mean nothing, where there is nothing better."""
    rng = np.random.default_rng(0)
    max_tokens = min(task.settings.max_seq_length, _MAX_RANDOM_LENGTH) - 2
    ids = [
        rng.integers(0, task.tokenizer.vocab_size, length)
        for length in rng.integers(1, max_tokens, _NUM_RANDOM, endpoint=True)
    ]
    windows = [[Features(**task.tokenizer.assemble(item))] for item in ids]
    places = [f"random sequence {number}" for number in range(len(ids))]
    return Evidence(f"{len(ids)} random sequences", task, ids, places, windows, None)


def divided(examples: Examples, count: int) -> tuple[Examples, Examples]:
    """So many, drawn at random, and the others."""
    first, placed = set(sample_indices(len(examples), count)), list(enumerate(examples.located()))
    return (
        Examples(item for number, item in placed if number in first),
        Examples(item for number, item in placed if number not in first),
    )


def _counted(some: Examples, there: Examples) -> str:
    return f"{len(some):,}" if len(some) == len(there) else f"{len(some):,} of the {len(there):,}"
