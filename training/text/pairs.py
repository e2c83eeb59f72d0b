"""Sentence pairs of an epoch of pretraining, drawn from the lengths of sentences, and statistics of them.

The rules are those of create_pretraining_data.py in google-research/bert: sentences of a document are packed until they
fill an example, and cut into two parts. Half of the second parts are replaced with sentences of another document. A
single sentence cannot be cut, so its second part is always random.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from training.text.corpus import Corpus

PLAN = np.dtype(
    [
        ("document", np.int32),
        ("first", np.int32),  # first part: sentences [first, middle) of the document
        ("middle", np.int32),
        ("last", np.int32),  # second part, if it is the next one: sentences [middle, last)
        ("random_document", np.int32),  # else sentences [random_first, random_last) of this document; -1 if next
        ("random_first", np.int32),
        ("random_last", np.int32),
    ]
)
MIN_CAN_BE_NEXT = 0.5
"""Warn if a smaller fraction of pairs has two sentences or more. Half of these pairs are next: in the paper half of all
pairs, but below this threshold less than a quarter, so that always answering "random" is right in more than 75%."""
MIN_SHOWN = 0.8
"""Warn if an epoch shows a smaller fraction of the text. Sentences of 25 to 40 tokens show 93 to 87% in examples of 128
tokens, as the last sentence of an example is cut."""

PLAN_STREAM, ORDER_STREAM, EXAMPLE_STREAM, STATISTICS_STREAM = range(4)


def random_generator(seed: int, epoch: int, stream: int, index: int = 0) -> np.random.Generator:
    """Return an independent generator for each (seed, epoch, stream, index), without drawing for other indices."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, index, stream]))


@dataclass(frozen=True, slots=True)
class EveryNth:
    """A sample of documents: every n-th one."""

    corpus: Corpus
    step: int

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return -(-self.corpus.num_documents // self.step)

    def sentence_ends(self, document: int) -> np.ndarray:
        """Return the sentence ends of a document of the sample."""
        return self.corpus.sentence_ends(document * self.step)

    def token_offsets(self, documents: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """Return the begins of sentences of the sample, in tokens of the whole text."""
        return self.corpus.token_offsets(documents * self.step, sentences)


Documents: TypeAlias = Corpus | EveryNth
"""Documents of sentences, described by the lengths of the sentences."""


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """Rules for cutting documents into pairs; the fields are those of `PretrainingExamples`."""

    max_seq_length: int = 128
    num_special: int = 3
    """Special tokens of a pair."""
    short_seq_prob: float = 0.1
    next_sentences: bool = True
    seed: int = 0

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens of both parts together."""
        return self.max_seq_length - self.num_special


def draw_pairs(documents: Documents, rules: PairRules, epoch: int = 0) -> np.ndarray:
    """Draw the pairs of an epoch, [pairs] of dtype `PLAN`, document after document."""
    numbers = range(documents.num_documents)
    return np.fromiter((row for number in numbers for row in _draw_document(documents, number, rules, epoch)), PLAN)


def _draw_document(documents: Documents, document: int, rules: PairRules, epoch: int) -> Iterator[tuple[int, ...]]:
    """Cut a document into pairs; sentences that a random next part replaced are used again."""
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
    """Return another document and sentences of it; after ten draws, as in the reference, also the same document."""
    for _ in range(10):
        other = int(rng.integers(documents.num_documents))
        if other != document:
            break
    ends = documents.sentence_ends(other)
    start = int(rng.integers(len(ends) - 1))
    return other, start, _reach(ends, start, wanted)


def _reach(ends: Sequence[int] | np.ndarray, first: int, num_tokens: int) -> int:
    """Return the end of the sentences, at least one, that hold `num_tokens` from `first` on; or the last sentence."""
    return min(bisect_left(ends, ends[first] + num_tokens, first + 1), len(ends) - 1)


@dataclass(frozen=True, slots=True)
class PairStatistics:
    """Fractions of the pairs and of the text of an epoch."""

    can_be_next: float
    """Fraction of pairs with two sentences or more, whose second part can be the next one."""
    are_next: float
    """Fraction of pairs whose second part is the next one."""
    shown: float
    """Fraction of the text's tokens that are in at least one example."""


def pair_statistics(documents: Documents, pairs: np.ndarray, rules: PairRules) -> PairStatistics:
    """Compute statistics of pairs from `draw_pairs`.

    The end at which a part is cut is drawn at random; everything else is as in the examples.
    """
    is_random = pairs["random_document"] >= 0
    document = np.where(is_random, pairs["random_document"], pairs["document"])
    first = np.where(is_random, pairs["random_first"], pairs["middle"])
    last = np.where(is_random, pairs["random_last"], pairs["last"])
    starts = [documents.token_offsets(pairs["document"], pairs["first"]), documents.token_offsets(document, first)]
    ends = [documents.token_offsets(pairs["document"], pairs["middle"]), documents.token_offsets(document, last)]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    num_tokens = lengths[0].sum() + lengths[1][~is_random].sum()  # the text: random parts repeat it
    kept = np.concatenate(truncated_lengths(lengths[0], lengths[1], rules.max_tokens))
    rng = random_generator(rules.seed, 0, STATISTICS_STREAM)
    shown_from = np.concatenate(starts) + rng.binomial(np.concatenate(lengths) - kept, 0.5)
    order = np.argsort(shown_from)
    shown_from, shown_to = shown_from[order], (shown_from + kept)[order]
    shown_before = np.concatenate([[0], np.maximum.accumulate(shown_to)[:-1]])
    num_shown = np.maximum(shown_to - np.maximum(shown_from, shown_before), 0).sum()  # each token once
    return PairStatistics(
        can_be_next=float(np.mean(pairs["last"] - pairs["first"] >= 2)),
        are_next=float(np.mean(~is_random)),
        shown=float(num_shown / num_tokens),
    )


def truncated_lengths(first: np.ndarray, second: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of both parts after dropping tokens of the longer one until they fit.

    Of equal parts, the second loses the token.
    """
    half = max_tokens // 2
    return (
        np.minimum(first, np.maximum(max_tokens - half, max_tokens - second)),
        np.minimum(second, np.maximum(half, max_tokens - first)),
    )


def estimate_pair_statistics(corpus: Corpus, rules: PairRules, *, step: int) -> PairStatistics:
    """Estimate the statistics of an epoch from every n-th document."""
    sample = EveryNth(corpus, step)
    return pair_statistics(sample, draw_pairs(sample, rules), rules)
