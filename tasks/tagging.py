"""Tagging of words, as named entity recognition does (section 5.3 of the paper): a word's first token carries its tag.

A sentence longer than max_seq_length is read in windows of whole words, so that every word gets a tag. They may
overlap (doc_stride); a word then gets the tag of the window that shows it with the most context, as spans do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, overload

import numpy as np

from tasks._encode import EMPTY, NOT_UTF8, check_length, is_utf8, raise_if_invalid
from tasks.base import InvalidExample, Outputs, Task, TaskSettings, check_label_names
from tasks.bounds import MAX_SEQ_LENGTH, MAX_STRICT_LABELS, check_bounds
from tasks.classification import softmax
from tasks.features import Features
from tasks.joined_words import rules_of
from tasks.metrics import tagging_scores
from tasks.tags import best_tags, chunks
from tasks.tokenizer import Tokenizer
from tasks.windows import max_context_owner


class Offsets(Sequence[tuple[int, int]]):
    """Sequence of places (start, end) in a text, in a tenth of the memory of a tuple."""

    def __init__(self, bounds: np.ndarray) -> None:
        """Make it.

        Args:
            bounds: [places, 2] integers.
        """
        self._bounds = bounds.astype(np.int32)

    def __len__(self) -> int:
        return len(self._bounds)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Offsets: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | Offsets:
        if isinstance(index, slice):
            return Offsets(self._bounds[index])
        start, end = self._bounds[index].tolist()
        return start, end

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for first in range(0, len(self), 1024):  # no lists of pairs: many of these make the garbage collector run
            starts, ends = self._bounds[first : first + 1024].T.tolist()
            yield from zip(starts, ends, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True)
class TaggingExample:
    """The words of a sentence, and their tags where known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    source: str | None = None
    """The text in which the words were found, at `offsets`; without one the words have a space between them."""
    offsets: Sequence[tuple[int, int]] = ()
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
    """[words] int32, where the first token of each word stands."""
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
    """Whether `I-` and `E-` only go on with an entity of their type, as in IOB2 and IOBES (`M-` and `L-` likewise). A
    sentence then gets the likeliest such tags; otherwise each word gets its likeliest."""
    strict_ends: bool = False
    """Whether entities end with `E-` or `S-`, as in IOE2 and IOBES (`L-`, `U-` and `W-` likewise), for which a sentence
    gets the likeliest tags as well."""
    joined_marks: tuple[str, ...] = ()
    """Marks that are part of a word of running text, as in the training data: see `JoinedWords`, as for `joined_words`.
    Without any, each mark is a word of its own."""
    joined_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names("tagging", self.labels)
        if self.doc_stride < 0:
            raise ValueError(f"doc_stride must not be negative: `{self.doc_stride}`")
        check_bounds(self, {"doc_stride": (0, MAX_SEQ_LENGTH)})
        rules_of(self.joined_marks, self.joined_words)
        if (self.strict or self.strict_ends) and len(self.labels) > MAX_STRICT_LABELS:
            raise ValueError(f"labels of strict tagging must be at most {MAX_STRICT_LABELS}: `{len(self.labels)}`")


@dataclass(frozen=True)
class Tagging(Task[TaggingExample, WordWindow, TaggingPrediction, TaggingSettings]):
    """Examples are words, predictions are tags and entities."""

    name: ClassVar[str] = "tagging"
    settings_type: ClassVar[type[TaskSettings]] = TaggingSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = True

    def complete(self, example: TaggingExample) -> TaggingExample:
        """Words of a source are those between white space, punctuation marks and Chinese characters each their own,
        but for marks that are part of a word (`joined_marks`). What the tokenizer drops (control characters) is in no
        word."""
        text = example.source
        if example.words or text is None:
            return example
        rules = rules_of(self.settings.joined_marks, self.settings.joined_words)
        longest = self.settings.max_seq_length - 2  # characters, so that no word that is put together has to be cut
        offsets = Offsets(rules.join(text, self.tokenizer.words(text), longest, self.tokenizer.check))
        known: dict[str, str] = {}  # one object for each word, however often it comes
        words = (text[start:end] for start, end in offsets)
        return replace(example, words=tuple(known.setdefault(word, word) for word in words), offsets=offsets)

    def encode(self, examples: Sequence[TaggingExample], *, truncate: bool = True) -> list[list[WordWindow]]:
        """As the base class; words that the tokenizer drops are read as [UNK], and only a word is ever cut."""
        invalid: list[InvalidExample] = []
        sentences = [example.words if is_utf8(example.text) else None for example in examples]
        vocabulary = _Words(self.tokenizer, [words or () for words in sentences], self.settings.max_seq_length - 2)
        numbers = [vocabulary.numbers(words or ()) for words in sentences]
        longest = [int(vocabulary.lengths[items].max(initial=0)) for items in numbers]
        for index, words in enumerate(sentences):
            if words is None:
                invalid.append(InvalidExample(index, "text", NOT_UTF8))
            elif not longest[index]:
                invalid.append(InvalidExample(index, "text", EMPTY))
        raise_if_invalid(invalid)
        if not truncate:
            for index, length in enumerate(longest):
                check_length(index, "word", length + 2, self.settings.max_seq_length, invalid)
        raise_if_invalid(invalid)
        return [self._windows(vocabulary, items) for items in numbers]

    def _windows(self, vocabulary: _Words, numbers: np.ndarray) -> list[WordWindow]:
        capacity = self.settings.max_seq_length - 2
        starts = np.concatenate([[0], np.cumsum(vocabulary.num_read[numbers])])
        bounds = self.tokenizer.planned(word_bounds(starts, capacity, self.settings.doc_stride or capacity))
        owner = max_context_owner([(int(starts[first]), int(starts[last])) for first, last in bounds], int(starts[-1]))
        windows = []
        for number, (first, last) in enumerate(bounds):
            window = WordWindow(
                **self.tokenizer.assemble(vocabulary.ids(numbers[first:last])),
                num_truncated=int(np.maximum(vocabulary.lengths[numbers[first:last]] - capacity, 0).sum()),
                first_word=first,
                positions=(1 + starts[first:last] - starts[first]).astype(np.int32),
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
        numbers = best_tags(logits, labels, strict=self.settings.strict, strict_ends=self.settings.strict_ends)
        scores = np.take_along_axis(softmax(logits), numbers[:, None], axis=-1)[:, 0]
        tags = tuple(labels[number] for number in numbers)
        return TaggingPrediction(tags=tags, scores=scores, entities=entities(example, tags, scores, labels))

    def score(self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> dict[str, float]:
        truth, found = [example.tags for example in examples], [item.tags for item in predictions]
        return tagging_scores(truth, found, self.settings.labels)

    def to_dict(self, example: TaggingExample, prediction: TaggingPrediction) -> dict[str, Any]:
        found = [asdict(entity) for entity in prediction.entities]
        return {"text": example.text, "tags": list(prediction.tags), "entities": found}


_WORDS_AT_A_TIME = 4096
"""Words that are tokenised at a time: each takes some 300 bytes until its ids are in an array with the others."""


class _Words:
    """The different words of some sentences, and their tokens."""

    def __init__(self, tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], capacity: int) -> None:
        """Make it.

        Args:
            capacity: tokens of a word that are read.
        """
        self._numbers: dict[str, int] = {}
        for words in sentences:
            for word in words:
                self._numbers.setdefault(word, len(self._numbers))
        distinct, unknown = list(self._numbers), np.array([tokenizer.unk_id])
        blocks, lengths = [np.zeros(0, np.int64)], list[int]()
        for first in range(0, len(distinct), _WORDS_AT_A_TIME):
            found = tokenizer.tokenize(distinct[first : first + _WORDS_AT_A_TIME], ids_only=True, keep=capacity)
            blocks.append(np.concatenate([tokens.ids if len(tokens) else unknown for tokens in found]))
            lengths += map(len, found)
        self._ids = np.concatenate(blocks)
        self.lengths = np.array(lengths, np.int32)
        """[words] tokens of each."""
        self.num_read = np.clip(self.lengths, 1, capacity)
        """[words] tokens of each that are read: a word without any is read as [UNK]."""
        self._starts = np.cumsum(self.num_read, dtype=np.int64) - self.num_read

    def numbers(self, words: Sequence[str]) -> np.ndarray:
        """[words] int32, the number of each."""
        return np.fromiter((self._numbers[word] for word in words), np.int32, len(words))

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        """[tokens] int64 of words, one after another."""
        counts = self.num_read[numbers]
        firsts = self._starts[numbers] - (np.cumsum(counts) - counts)
        return self._ids[np.repeat(firsts, counts) + np.arange(counts.sum())]


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


def entities(
    example: TaggingExample, tags: Sequence[str], scores: np.ndarray, labels: Sequence[str] = ()
) -> tuple[Entity, ...]:
    """Return the entities that tags spell, with their places in the text.

    Args:
        scores: [words] probability of each tag.
        labels: all tags there are, as `chunks` takes them.
    """
    text, places = example.text, example.places
    found = []
    for kind, first, last in chunks(tags, labels):
        start, end = places[first][0], places[last][1]
        score = float(scores[first : last + 1].mean())
        found.append(Entity(type=kind, start=start, end=end, text=text[start:end], score=score))
    return tuple(found)
