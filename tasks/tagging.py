"""Tagging of words, as named entity recognition does (section 5.3 of the paper): a word's first token carries its tag.

A sentence longer than max_seq_length is read in consecutive windows of whole words, so that every word gets a tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from tasks._fit import check_length, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample, Outputs, Task, TaskSettings
from tasks.classification import softmax
from tasks.features import Features
from tasks.metrics import chunks, tagging_scores


@dataclass(frozen=True, slots=True)
class TaggingExample:
    """The words of a sentence, and their tags where known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The words with a space between them."""
        return " ".join(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWindow(Features):
    """Consecutive words of a sentence."""

    first_word: int
    """Number of the first word in the sentence."""
    positions: np.ndarray
    """[words] int64, where the first token of each word stands."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A run of words with its type: text[start:end] in code points of the example's text."""

    type: str
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class TaggingPrediction:
    """A tag for each word, and the entities that the tags spell."""

    tags: tuple[str, ...]
    scores: np.ndarray
    """[words] float32, the probability of each tag."""
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class TaggingSettings(TaskSettings):
    """Which tags there are."""

    max_seq_length: int = 128
    labels: tuple[str, ...] = ()
    """In the order of the logits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise ValueError(f"tagging needs at least two labels, each once: `{list(self.labels)}`")


@dataclass(frozen=True)
class Tagging(Task[TaggingExample, WordWindow, TaggingPrediction, TaggingSettings]):
    """Examples are words, predictions are tags and entities."""

    name: ClassVar[str] = "tagging"
    settings_type: ClassVar[type[TaskSettings]] = TaggingSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = True

    def encode(self, examples: Sequence[TaggingExample], *, truncate: bool = True) -> list[list[WordWindow]]:
        """As the base class; words that the tokenizer drops are read as [UNK], and only a word is ever cut."""
        invalid: list[InvalidExample] = []
        # Sentences are looked at first, so that one without any token is named as in every other task.
        tokenize_texts(self.tokenizer, [example.text for example in examples], "text", invalid)
        raise_if_invalid(invalid)
        tokens = iter(self.tokenizer.tokenize([word for example in examples for word in example.words]))
        words = [[next(tokens).ids for _ in example.words] for example in examples]
        if not truncate:
            for index, longest in enumerate([max(map(len, ids), default=0) for ids in words]):
                check_length(index, "word", longest + 2, self.settings.max_seq_length, invalid)
        raise_if_invalid(invalid)
        return [self._windows(ids) for ids in words]

    def _windows(self, words: Sequence[np.ndarray]) -> list[WordWindow]:
        capacity = self.settings.max_seq_length - 2
        whole = [ids[:capacity] if len(ids) else np.array([self.tokenizer.unk_id]) for ids in words]
        groups: list[list[np.ndarray]] = [[]]
        for ids in whole:
            if sum(map(len, groups[-1])) + len(ids) > capacity:
                groups.append([])
            groups[-1].append(ids)
        windows, first_word = [], 0
        for group in groups:
            positions = 1 + np.cumsum([0, *map(len, group[:-1])])
            arrays = self.tokenizer.assemble(np.concatenate(group))
            windows.append(WordWindow(**arrays, first_word=first_word, positions=positions))
            first_word += len(group)
        return windows

    def decode(
        self, example: TaggingExample, features: Sequence[WordWindow], outputs: Sequence[Outputs]
    ) -> TaggingPrediction:
        pairs = zip(features, outputs, strict=True)
        scores = softmax(np.concatenate([output["logits"][window.positions] for window, output in pairs]))
        tags = tuple(self.settings.labels[index] for index in scores.argmax(axis=-1))
        return TaggingPrediction(tags=tags, scores=scores.max(axis=-1), entities=entities(example, tags))

    def score(self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> dict[str, float]:
        return tagging_scores([example.tags for example in examples], [item.tags for item in predictions])

    def to_dict(self, example: TaggingExample, prediction: TaggingPrediction) -> dict[str, Any]:
        found = [asdict(entity) for entity in prediction.entities]
        return {"text": example.text, "tags": list(prediction.tags), "entities": found}


def entities(example: TaggingExample, tags: Sequence[str]) -> tuple[Entity, ...]:
    """The entities that tags spell, with their places in the text."""
    ends = np.cumsum([len(word) + 1 for word in example.words]) - 1
    found = []
    for kind, first, last in chunks(tags):
        start, end = int(ends[first]) - len(example.words[first]), int(ends[last])
        found.append(Entity(type=kind, start=start, end=end, text=example.text[start:end]))
    return tuple(found)
