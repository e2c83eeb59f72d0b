"""Pairs of an epoch of pretraining, drawn from the lengths of sentences, and what they show of a text.

The rules are those of create_pretraining_data.py in google-research/bert: sentences of a document are packed until they
fill an example and cut in two; half of the time the second part is exchanged for one of another document. A pair that
got a single sentence has nothing to cut, and its second part is always random.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

PLAN = np.dtype(
    [
        ("document", np.int32),
        ("first", np.int32),  # first part: sentences first to middle of the document
        ("middle", np.int32),
        ("last", np.int32),  # second part: sentences middle to last, when it is the next one
        ("random_document", np.int32),  # else sentences random_first to random_last of that document; -1 for next
        ("random_first", np.int32),
        ("random_last", np.int32),
    ]
)
LEAST_NEXT = 0.5
"""Fraction of pairs that can be next below which next sentences teach little. Half of those that can be next are: in
the paper half of all pairs, below this less than a quarter, and always answering "random" is right in more than 75%."""
LEAST_SHOWN = 0.8
"""Fraction of the text that an epoch shows below which much of it is cut away. Running text with sentences of 25 to 40
tokens shows 93 to 87% in examples of 128 tokens: the last sentence of an example is cut."""

PLAN_STREAM, ORDER_STREAM, EXAMPLE_STREAM, SUMMARY_STREAM = range(4)


def random_generator(seed: int, epoch: int, stream: int, index: int = 0) -> np.random.Generator:
    """A generator of its own for each (seed, epoch, stream, index), at no cost for the indices before."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, index, stream]))


class Documents(Protocol):
    """Documents of sentences, by the lengths of the sentences."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""

    def sentence_ends(self, document: int) -> np.ndarray:
        """[sentences + 1] where the first sentence of a document begins and where each ends."""

    def token_places(self, documents: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """[n] where sentences of documents begin, in tokens of the whole text."""


@dataclass(frozen=True, slots=True)
class EveryNth:
    """Every n-th document, as a text of its own."""

    whole: Documents
    step: int
    """n."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return -(-self.whole.num_documents // self.step)

    def sentence_ends(self, document: int) -> np.ndarray:
        """Sentence ends of a document of the sample, in tokens."""
        return self.whole.sentence_ends(document * self.step)

    def token_places(self, documents: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """Places of sentences of the sample, in tokens of the corpus."""
        return self.whole.token_places(documents * self.step, sentences)


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """How documents are cut into pairs; the fields are those of `PretrainingExamples`."""

    max_seq_length: int = 128
    short_seq_prob: float = 0.1
    next_sentences: bool = True
    seed: int = 0

    @property
    def max_tokens(self) -> int:
        """Tokens of both parts together."""
        return self.max_seq_length - 3


def draw_pairs(documents: Documents, rules: PairRules, epoch: int = 0) -> np.ndarray:
    """[pairs] of type `PLAN`, document after document."""
    numbers = range(documents.num_documents)
    return np.fromiter((row for number in numbers for row in _draw_document(documents, number, rules, epoch)), PLAN)


def _draw_document(documents: Documents, document: int, rules: PairRules, epoch: int) -> Iterator[tuple[int, ...]]:
    """Cut one document into pairs; sentences after a random next are put back and used again."""
    rng = random_generator(rules.seed, epoch, PLAN_STREAM, document)
    ends = documents.sentence_ends(document).tolist()
    target = rules.max_tokens
    if rng.random() < rules.short_seq_prob:
        target = int(rng.integers(2, rules.max_tokens + 1))
    first = 0
    while first < len(ends) - 1:
        last = _reach(ends, first, target)
        middle = first + (int(rng.integers(1, last - first)) if last - first >= 2 else 1)
        if rules.next_sentences and (last - first == 1 or rng.random() < 0.5):
            wanted = target - (ends[middle] - ends[first])
            yield document, first, middle, last, *_draw_random_next(documents, document, wanted, rng)
            first = middle
        else:
            yield document, first, middle, last, -1, 0, 0
            first = last


def _draw_random_next(
    documents: Documents, document: int, wanted: int, rng: np.random.Generator
) -> tuple[int, int, int]:
    for _ in range(10):
        other = int(rng.integers(documents.num_documents))
        if other != document:
            break
    ends = documents.sentence_ends(other)
    start = int(rng.integers(len(ends) - 1))
    return other, start, _reach(ends, start, wanted)


def _reach(ends: Sequence[int] | np.ndarray, first: int, num_tokens: int) -> int:
    """The end of the sentences, one at least, that from `first` on have `num_tokens`, or of all that are left."""
    return min(bisect_left(ends, ends[first] + num_tokens, first + 1), len(ends) - 1)


@dataclass(frozen=True, slots=True)
class PairSummary:
    """Fractions of an epoch."""

    can_be_next: float
    """Pairs of two sentences or more, whose second part may be the next."""
    are_next: float
    """Pairs whose second part is the next."""
    shown: float
    """Tokens of the text that stand in an example at least."""


def summarise_pairs(documents: Documents, pairs: np.ndarray, rules: PairRules) -> PairSummary:
    """Summarise pairs, as `draw_pairs` gives them.

    Which end of a part is cut is drawn here anew, as often as not the front; all else is what the examples have.
    """
    is_random = pairs["random_document"] >= 0
    document = np.where(is_random, pairs["random_document"], pairs["document"])
    first = np.where(is_random, pairs["random_first"], pairs["middle"])
    last = np.where(is_random, pairs["random_last"], pairs["last"])
    starts = [documents.token_places(pairs["document"], pairs["first"]), documents.token_places(document, first)]
    ends = [documents.token_places(pairs["document"], pairs["middle"]), documents.token_places(document, last)]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    num_tokens = lengths[0].sum() + lengths[1][~is_random].sum()  # a sentence is in one pair, but for random parts
    kept = np.concatenate(truncated_lengths(lengths[0], lengths[1], rules.max_tokens))
    rng = random_generator(rules.seed, 0, SUMMARY_STREAM)
    shown_from = np.concatenate(starts) + rng.binomial(np.concatenate(lengths) - kept, 0.5)
    return PairSummary(
        can_be_next=float(np.mean(pairs["last"] - pairs["first"] >= 2)),
        are_next=float(np.mean(~is_random)),
        shown=float(_length_of_union(shown_from, shown_from + kept) / num_tokens),
    )


def truncated_lengths(first: np.ndarray, second: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the parts of pairs when tokens of the longer one, of equal ones the second, are dropped until they
    fit together."""
    half = max_tokens // 2
    return (
        np.minimum(first, np.maximum(max_tokens - half, max_tokens - second)),
        np.minimum(second, np.maximum(half, max_tokens - first)),
    )


def _length_of_union(starts: np.ndarray, ends: np.ndarray) -> int:
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    reached = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    return int(np.maximum(ends - np.maximum(starts, reached), 0).sum())


def estimate_pairs(documents: Documents, rules: PairRules, *, step: int) -> PairSummary:
    """Summarise an epoch of every n-th document, as if they were the whole text."""
    sample = EveryNth(documents, step)
    return summarise_pairs(sample, draw_pairs(sample, rules), rules)
