"""Tagging of words, as named entity recognition does (section 5.3 of the paper): a word's first token carries its tag.

A sentence longer than max_seq_length is read in windows of whole words, so that every word gets a tag. They may
overlap (doc_stride); a word then gets the tag of the window that shows it with the most context, as spans do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from tasks._fit import check_length, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample, Outputs, Task, TaskSettings, check_label_names
from tasks.bounds import MAX_SEQ_LENGTH, MAX_STRICT_LABELS, check_bounds
from tasks.classification import softmax
from tasks.features import Features
from tasks.metrics import tagging_scores
from tasks.tags import best_tags, chunks
from tasks.windows import max_context_owner


@dataclass(frozen=True, slots=True)
class TaggingExample:
    """The words of a sentence, and their tags where known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    source: str | None = None
    """The text in which the words were found, at `offsets`; without one the words have a space between them."""
    offsets: tuple[tuple[int, int], ...] = ()
    """For each word, source[start:end] in code points."""

    @property
    def text(self) -> str:
        """The source, or the words with a space between them."""
        return " ".join(self.words) if self.source is None else self.source

    @property
    def places(self) -> Sequence[tuple[int, int]]:
        """For each word, text[start:end] in code points."""
        if self.source is not None:
            return self.offsets
        ends = list(accumulate(len(word) + 1 for word in self.words))
        return [(end - 1 - len(word), end - 1) for word, end in zip(self.words, ends, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWindow(Features):
    """Consecutive words of a sentence."""

    first_word: int
    """Number of the first word in the sentence."""
    positions: np.ndarray
    """[words] int64, where the first token of each word stands."""
    has_max_context: np.ndarray
    """[words] bool: no other window shows this word with more context around it."""

    @property
    def tagged(self) -> tuple[np.ndarray, np.ndarray]:
        """The words that get their tags here: numbers in the sentence, and where their first tokens stand."""
        return self.first_word + np.flatnonzero(self.has_max_context), self.positions[self.has_max_context]


@dataclass(frozen=True, slots=True)
class Entity:
    """A run of words with its type: text[start:end] in code points of the example's text."""

    type: str
    start: int
    end: int
    text: str
    score: float
    """Mean probability of the tags of its words."""


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
    doc_stride: int = 0
    """Tokens from the start of one window to the start of the next; 0 for windows that do not overlap."""
    strict: bool = False
    """Whether `I-` and `E-` only go on with an entity of their type, as in IOB2 and IOBES. A sentence then gets the
    likeliest such tags; otherwise each word gets its likeliest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names("tagging", self.labels)
        if self.doc_stride < 0:
            raise ValueError(f"doc_stride must not be negative: `{self.doc_stride}`")
        check_bounds(self, {"doc_stride": (0, MAX_SEQ_LENGTH)})
        if self.strict and len(self.labels) > MAX_STRICT_LABELS:
            raise ValueError(f"labels of strict tagging must be at most {MAX_STRICT_LABELS}: `{len(self.labels)}`")


@dataclass(frozen=True)
class Tagging(Task[TaggingExample, WordWindow, TaggingPrediction, TaggingSettings]):
    """Examples are words, predictions are tags and entities."""

    name: ClassVar[str] = "tagging"
    settings_type: ClassVar[type[TaskSettings]] = TaggingSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = True

    def complete(self, example: TaggingExample) -> TaggingExample:
        """Words of a source are those that the tokenizer sees: between white space, punctuation marks and Chinese
        characters each their own. What it drops (control characters) is in no word."""
        text = example.source
        if example.words or text is None:
            return example
        offsets = tuple(self.tokenizer.words(text))
        return replace(example, words=tuple(text[start:end] for start, end in offsets), offsets=offsets)

    def encode(self, examples: Sequence[TaggingExample], *, truncate: bool = True) -> list[list[WordWindow]]:
        """As the base class; words that the tokenizer drops are read as [UNK], and only a word is ever cut."""
        invalid: list[InvalidExample] = []
        # Sentences are looked at first, so that one without any token is named as in every other task.
        tokenize_texts(self.tokenizer, [example.text for example in examples], "text", invalid)
        raise_if_invalid(invalid)
        distinct = list(dict.fromkeys(word for example in examples for word in example.words))
        ids_of = {word: tokens.ids for word, tokens in zip(distinct, self.tokenizer.tokenize(distinct), strict=True)}
        words = [[ids_of[word] for word in example.words] for example in examples]
        if not truncate:
            for index, longest in enumerate([max(map(len, ids), default=0) for ids in words]):
                check_length(index, "word", longest + 2, self.settings.max_seq_length, invalid)
        raise_if_invalid(invalid)
        return [self._windows(ids) for ids in words]

    def _windows(self, words: Sequence[np.ndarray]) -> list[WordWindow]:
        capacity = self.settings.max_seq_length - 2
        whole = [ids[:capacity] if len(ids) else np.array([self.tokenizer.unk_id]) for ids in words]
        starts = np.cumsum([0, *map(len, whole)])
        bounds = list(word_bounds(starts, capacity, self.settings.doc_stride or capacity))
        owner = max_context_owner([(starts[first], starts[last]) for first, last in bounds], starts[-1])
        windows = []
        for number, (first, last) in enumerate(bounds):
            window = WordWindow(
                **self.tokenizer.assemble(np.concatenate(whole[first:last])),
                num_truncated=sum(max(0, len(ids) - capacity) for ids in words[first:last]),
                first_word=first,
                positions=1 + starts[first:last] - starts[first],
                has_max_context=owner[starts[first:last]] == number,
            )
            windows.append(window)
        return windows

    def decode(
        self, example: TaggingExample, features: Sequence[WordWindow], outputs: Sequence[Outputs]
    ) -> TaggingPrediction:
        logits = np.zeros((len(example.words), len(self.settings.labels)), dtype=np.float32)
        for window, output in zip(features, outputs, strict=True):
            words, positions = window.tagged
            logits[words] = output["logits"][positions]
        labels = self.settings.labels
        numbers = best_tags(logits, labels) if self.settings.strict else logits.argmax(axis=-1)
        scores = np.take_along_axis(softmax(logits), numbers[:, None], axis=-1)[:, 0]
        tags = tuple(labels[number] for number in numbers)
        return TaggingPrediction(tags=tags, scores=scores, entities=entities(example, tags, scores))

    def score(self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> dict[str, float]:
        return tagging_scores([example.tags for example in examples], [item.tags for item in predictions])

    def to_dict(self, example: TaggingExample, prediction: TaggingPrediction) -> dict[str, Any]:
        found = [asdict(entity) for entity in prediction.entities]
        return {"text": example.text, "tags": list(prediction.tags), "entities": found}


def word_bounds(starts: np.ndarray, capacity: int, doc_stride: int) -> Iterator[tuple[int, int]]:
    """Windows (first word, word after the last) that cover all words, each of at most `capacity` tokens.

    Args:
        starts: [words + 1] the number of tokens before each word, and of all.
    """
    first, last = 0, 0
    while last < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + capacity, side="right")) - 1
        yield first, last
        first = min(last, int(np.searchsorted(starts, starts[first] + doc_stride)))


def entities(example: TaggingExample, tags: Sequence[str], scores: np.ndarray) -> tuple[Entity, ...]:
    """The entities that tags spell, with their places in the text.

    Args:
        scores: [words] probability of each tag.
    """
    text, places = example.text, example.places
    found = []
    for kind, first, last in chunks(tags):
        start, end = places[first][0], places[last][1]
        score = float(scores[first : last + 1].mean())
        found.append(Entity(type=kind, start=start, end=end, text=text[start:end], score=score))
    return tuple(found)
