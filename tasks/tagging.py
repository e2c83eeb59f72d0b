"""Tagging of words, as in named entity recognition (section 5.3 of the BERT paper): tags are predicted at first tokens.

A sentence longer than max_seq_length is split into windows of whole words, so that every word gets a tag. If windows
overlap (doc_stride), a word gets the tag of the window in which it has the most context, as with spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from tasks._encode import EMPTY, NOT_UTF8, check_length, is_utf8, max_context_owner, raise_if_invalid
from tasks.base import MAX_SEQ_LENGTH, InvalidExample, Outputs, SeqLength, Task, TaskSettings, check_label_names
from tasks.classification import softmax
from tasks.features import Features
from tasks.metrics import scores_by_type, tagging_scores
from tasks.schema import Bounds
from tasks.tags import best_tags, chunks
from tasks.text.joined_words import JoinedWords
from tasks.text.tokenizer import Tokenizer

MAX_STRICT_LABELS = 2048
"""Most labels of strict tagging, which needs a table of all pairs of labels."""


def pairs(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the rows of [words, 2] offsets. They are read in parts: a list of all would hold up other threads."""
    for first in range(0, len(offsets), 1024):
        starts, ends = offsets[first : first + 1024].T.tolist()
        yield from zip(starts, ends, strict=True)


@dataclass(frozen=True, slots=True)
class TaggingExample:
    """Words of a sentence, and their tags if known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    source: str | None = None
    """Text that contains the words, at `offsets`; None if the words are joined by spaces."""
    offsets: np.ndarray | None = field(default=None, compare=False)
    """[words, 2] int32 (start, end) of each word in `source`, in code points."""

    @property
    def text(self) -> str:
        """Source, or the words joined by spaces."""
        return " ".join(self.words) if self.source is None else self.source

    @property
    def word_offsets(self) -> np.ndarray:
        """[words, 2] (start, end) of each word in `text`, in code points."""
        if self.offsets is not None:
            return self.offsets
        lengths = np.array([len(word) for word in self.words], np.int32)
        ends = np.cumsum(lengths + 1) - 1
        return np.stack([ends - lengths, ends], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWindow(Features):
    """One window of consecutive words of a sentence."""

    first_word: int
    """Number of the first word in the sentence."""
    positions: np.ndarray
    """[words] int32 position of the first token of each word."""
    has_max_context: np.ndarray
    """[words] bool: no other window has more context around this word."""

    @property
    def tagged_words(self) -> tuple[np.ndarray, np.ndarray]:
        """Words that are tagged in this window: numbers in the sentence, and positions of their first tokens."""
        return self.first_word + np.flatnonzero(self.has_max_context), self.positions[self.has_max_context]


@dataclass(frozen=True, slots=True)
class Entity:
    """Consecutive words of one type: text[start:end] in code points of the example's text."""

    type: str
    start: int
    end: int
    text: str
    score: float
    """Mean probability of the tags of its words."""


@dataclass(frozen=True, slots=True)
class TaggingPrediction:
    """A tag for each word, and the entities that the tags encode."""

    tags: tuple[str, ...]
    scores: np.ndarray
    """[words] float32 probability of each tag."""
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class TaggingSettings(TaskSettings):
    """Length, tags and windows, and rules for dividing running text into words."""

    max_seq_length: SeqLength = 128
    labels: tuple[str, ...] = ()
    """Labels in the order of the logits."""
    doc_stride: Annotated[int, Bounds(least=0, most=MAX_SEQ_LENGTH)] = 0
    """Tokens from the start of one window to the start of the next; 0 for windows that do not overlap."""
    strict: bool = False
    """True if `I-`, `E-`, `M-` and `L-` only continue an entity of their type, as in IOB2 and IOBES. A sentence then
    gets the most probable sequence of such tags; otherwise each word gets its most probable tag."""
    strict_ends: bool = False
    """True if entities end with `E-`, `S-`, `L-`, `U-` or `W-`, as in IOE2 and IOBES. Decoded as with `strict`."""
    joined_marks: tuple[str, ...] = ()
    """Punctuation marks that are part of words, as in the training data (see `JoinedWords`). By default each mark is a
    word of its own."""
    joined_words: tuple[str, ...] = ()
    """Words that begin or end with a mark (see `JoinedWords`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names("tagging", self.labels)
        _ = self.joining_rules  # raises for malformed ones
        if (self.strict or self.strict_ends) and len(self.labels) > MAX_STRICT_LABELS:
            raise ValueError(f"strict tagging can have at most {MAX_STRICT_LABELS} labels, not `{len(self.labels)}`")

    @cached_property
    def joining_rules(self) -> JoinedWords:
        """Rules of `joined_marks` and `joined_words`."""
        return JoinedWords(self.joined_marks, self.joined_words)


@dataclass(frozen=True)
class Tagging(Task[TaggingExample, WordWindow, TaggingPrediction, TaggingSettings]):
    """Predicts tags and entities for words."""

    name: ClassVar[str] = "tagging"
    settings_type: ClassVar[type[TaskSettings]] = TaggingSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = True

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (len(self.settings.labels),)

    @property
    def _capacity(self) -> int:
        """Number of tokens of words in a sequence."""
        return self.tokenizer.single.capacity(self.settings.max_seq_length)

    def complete(self, example: TaggingExample) -> TaggingExample:
        """Divide the source into words.

        White space divides words; each punctuation mark and each Chinese character is a separate word, except for
        marks that are part of a word (`joined_marks`). Characters that the tokenizer drops are in no word.
        """
        text = example.source
        if example.words or text is None:
            return example
        max_chars = self._capacity  # so that no joined word is ever cut
        bounds = self.tokenizer.word_offsets(text)
        offsets = self.settings.joining_rules.join(text, bounds, max_chars, self.tokenizer.check_cancelled).astype(
            np.int32
        )
        interned: dict[str, str] = {}  # one object per distinct word
        words = (text[start:end] for start, end in pairs(offsets))
        return replace(example, words=tuple(interned.setdefault(word, word) for word in words), offsets=offsets)

    def encode(self, examples: Sequence[TaggingExample], *, truncate: bool = True) -> list[list[WordWindow]]:
        """See `Task.encode`. Words that the tokenizer drops become [UNK]; only single words are ever truncated."""
        invalid: list[InvalidExample] = []
        sentences = [example.words if is_utf8(example.text) else None for example in examples]
        vocabulary = _WordVocabulary(self.tokenizer, [words or () for words in sentences], self._capacity)
        numbers = [vocabulary.numbers(words or ()) for words in sentences]
        longest = [int(vocabulary.lengths[items].max(initial=0)) for items in numbers]
        for index, words in enumerate(sentences):
            if words is None:
                invalid.append(InvalidExample(index, "text", NOT_UTF8))
            elif not longest[index]:
                invalid.append(InvalidExample(index, "text", EMPTY))
        raise_if_invalid(invalid)
        if not truncate:
            num_special = self.tokenizer.single.num_special
            for index, length in enumerate(longest):
                check_length(index, "word", length + num_special, self.settings.max_seq_length, invalid)
        raise_if_invalid(invalid)
        return [self._windows(vocabulary, items) for items in numbers]

    def _windows(self, vocabulary: _WordVocabulary, numbers: np.ndarray) -> list[WordWindow]:
        capacity, first_position = self._capacity, self.tokenizer.single.start()
        starts = np.concatenate([[0], np.cumsum(vocabulary.num_read[numbers])])
        bounds = self.tokenizer.report_sequences(word_bounds(starts, capacity, self.settings.doc_stride or capacity))
        owner = max_context_owner([(int(starts[first]), int(starts[last])) for first, last in bounds], int(starts[-1]))
        windows = []
        for number, (first, last) in enumerate(bounds):
            window = WordWindow(
                **self.tokenizer.assemble(vocabulary.ids(numbers[first:last])),
                num_truncated=int(np.maximum(vocabulary.lengths[numbers[first:last]] - capacity, 0).sum()),
                first_word=first,
                positions=(first_position + starts[first:last] - starts[first]).astype(np.int32),
                has_max_context=owner[starts[first:last]] == number,
            )
            windows.append(window)
        return windows

    def decode(
        self, example: TaggingExample, features: Sequence[WordWindow], outputs: Sequence[Outputs]
    ) -> TaggingPrediction:
        logits = np.zeros((len(example.words), len(self.settings.labels)), dtype=np.float32)
        for window, output in zip(features, outputs, strict=True):
            words, positions = window.tagged_words
            logits[words] = output["logits"][positions]
        labels = self.settings.labels
        numbers = best_tags(logits, labels, strict=self.settings.strict, strict_ends=self.settings.strict_ends)
        scores = np.take_along_axis(softmax(logits), numbers[:, None], axis=-1)[:, 0]
        tags = tuple(labels[number] for number in numbers)
        return TaggingPrediction(tags=tags, scores=scores, entities=entities(example, tags, scores, labels))

    def decisions(self, prediction: TaggingPrediction) -> tuple[str, ...]:
        return prediction.tags

    def score(self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> dict[str, float]:
        truth, found = [example.tags for example in examples], [item.tags for item in predictions]
        return tagging_scores(truth, found, self.settings.labels)

    def class_scores(
        self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]
    ) -> dict[str, dict[str, float]]:
        truth, found = [example.tags for example in examples], [item.tags for item in predictions]
        return scores_by_type(truth, found, self.settings.labels)

    def to_dict(self, example: TaggingExample, prediction: TaggingPrediction) -> dict[str, Any]:
        found = [asdict(entity) for entity in prediction.entities]
        return {"text": example.text, "tags": list(prediction.tags), "entities": found}


_WORDS_AT_A_TIME = 4096
"""Words tokenized at a time: each takes about 300 bytes until its ids are in the common array."""


class _WordVocabulary:
    """Distinct words of sentences, and their tokens."""

    def __init__(self, tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], capacity: int) -> None:
        """Tokenize the words.

        Args:
            capacity: most tokens of a word; the rest is truncated.
        """
        self._numbers: dict[str, int] = {}
        for words in sentences:
            for word in words:
                self._numbers.setdefault(word, len(self._numbers))
        distinct, unknown = list(self._numbers), np.array([tokenizer.filler_id])
        blocks, lengths = [np.zeros(0, np.int64)], list[int]()
        for first in range(0, len(distinct), _WORDS_AT_A_TIME):
            found = tokenizer.tokenize_words(distinct[first : first + _WORDS_AT_A_TIME], max_ids=capacity)
            blocks.append(np.concatenate([tokens.ids if len(tokens) else unknown for tokens in found]))
            lengths += map(len, found)
        self._ids = np.concatenate(blocks)
        self.lengths = np.array(lengths, np.int32)
        """[words] number of tokens."""
        self.num_read = np.clip(self.lengths, 1, capacity)
        """[words] number of tokens after truncation; 1, the unknown token, for a word without tokens."""
        self._starts = np.cumsum(self.num_read, dtype=np.int64) - self.num_read

    def numbers(self, words: Sequence[str]) -> np.ndarray:
        """Return the number of each word, [words] int32."""
        return np.fromiter((self._numbers[word] for word in words), np.int32, len(words))

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        """Return the concatenated tokens of words, [tokens] int64."""
        counts = self.num_read[numbers]
        firsts = self._starts[numbers] - (np.cumsum(counts) - counts)
        return self._ids[np.repeat(firsts, counts) + np.arange(counts.sum())]


def word_bounds(starts: np.ndarray, capacity: int, doc_stride: int) -> Iterator[tuple[int, int]]:
    """Yield windows (first word, word after the last) of at most `capacity` tokens that cover all words.

    Args:
        starts: [words + 1] number of tokens before each word, and the total.
    """
    first, last = 0, 0
    while last < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + capacity, side="right")) - 1
        yield first, last
        first = min(last, int(np.searchsorted(starts, starts[first] + doc_stride)))


def entities(
    example: TaggingExample, tags: Sequence[str], scores: np.ndarray, labels: Sequence[str] = ()
) -> tuple[Entity, ...]:
    """Return the entities that tags encode, with their positions in the text.

    Args:
        scores: [words] probability of each tag.
        labels: all labels of the model, as for `chunks`.
    """
    text, offsets = example.text, example.word_offsets
    found = []
    for kind, first, last in chunks(tags, labels):
        start, end = int(offsets[first, 0]), int(offsets[last, 1])
        score = float(scores[first : last + 1].mean())
        found.append(Entity(type=kind, start=start, end=end, text=text[start:end], score=score))
    return tuple(found)
