"""Pretraining examples as a pure function of (seed, epoch, index).

The rules are those of the paper (appendix A.2) and of create_pretraining_data.py in google-research/bert: sentences are
packed into pairs, half of the second parts come from another document, and 15% of the tokens are predicted: 80% of them
become [MASK], 10% a random token, and 10% stay. The reference writes ten copies of the data; here each epoch draws new
pairs and masks. No example depends on others, so training resumes immediately at any step, and sees the same global
batches with any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.text.sequence_template import SequenceTemplate
from training.text.corpus import Corpus
from training.text.pairs import (
    EXAMPLE_STREAM,
    ORDER_STREAM,
    PairRules,
    PairStatistics,
    draw_pairs,
    pair_statistics,
    random_generator,
)


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Rules of masking: which tokens are predicted, and what replaces them."""

    rate: float = 0.15
    """Fraction of the tokens, special ones included, that are predicted."""
    mask_fraction: float = 0.8
    """Fraction of the predicted tokens that become [MASK]."""
    random_fraction: float = 0.1
    """Fraction of the predicted tokens that become a random token; the rest stay as they are."""
    whole_words: bool = False
    """Mask all tokens of a word together: its pieces, or its characters if the corpus has words."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"masking_rate must be above 0 and at most 1: `{self.rate}`")
        fractions = (self.mask_fraction, self.random_fraction)
        if min(fractions) < 0 or not sum(fractions) <= 1 + 1e-9:
            raise ValueError(
                f"mask_fraction `{self.mask_fraction}` and random_fraction `{self.random_fraction}` must be at least 0 "
                "and add up to at most 1"
            )


@dataclass(frozen=True, slots=True)
class PretrainingExample:
    """One pair with its targets."""

    input_ids: np.ndarray
    """Masked ids, int64 [length]."""
    token_type_ids: np.ndarray
    """Part of each token, int64 [length]."""
    masked_positions: np.ndarray
    """Positions of predictions, ascending, int64 [masks]."""
    masked_labels: np.ndarray
    """Original ids at these positions, int64 [masks]."""
    nsp_label: int
    """0 if the second part follows the first, 1 if it is random."""


class PretrainingExamples:
    """Examples of a corpus.

    Args:
        max_seq_length: longest example in tokens, special tokens included.
        masking: rules of masking; None for the paper's.
        short_seq_prob: fraction of documents, drawn again in each epoch, that are cut into shorter pairs.
        next_sentences: True if half of the second parts come from another document; else all follow the first.
        seed: 0 or more.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_seq_length: int = 128,
        masking: Masking | None = None,
        short_seq_prob: float = 0.1,
        next_sentences: bool = True,
        seed: int = 0,
    ) -> None:
        if next_sentences and corpus.num_documents < 2:
            raise ValueError("next sentence prediction needs two documents; put a blank line between documents")
        self.corpus = corpus
        self.seed = seed
        self.masking = masking or Masking()
        self.next_sentences = next_sentences
        self.max_seq_length = max_seq_length
        self._rules = PairRules(
            max_seq_length=max_seq_length,
            num_special=corpus.tokenizer.pair.num_special,
            short_seq_prob=short_seq_prob,
            next_sentences=next_sentences,
            seed=seed,
        )
        self._vocab_size = corpus.tokenizer.vocab_size
        if corpus.tokenizer.mask_id is None:
            raise ValueError("the tokenizer of the corpus has no mask token; pretraining needs one")
        self._mask_id = corpus.tokenizer.mask_id
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    @property
    def max_predictions(self) -> int:
        """Largest number of predictions of an example."""
        return max(1, round(self.max_seq_length * self.masking.rate))

    @property
    def states_per_row(self) -> int:
        """Number of states that positions of predictions count in a row of a batch."""
        return self.max_seq_length

    def num_examples(self, epoch: int) -> int:
        """Return the number of examples of an epoch; it varies a little, as pairs are drawn again."""
        return len(self._epoch(epoch)[0])

    def nsp_labels(self, epoch: int) -> np.ndarray:
        """Return the `nsp_label` of each example, int64 [examples], without making the examples."""
        plan, order = self._epoch(epoch)
        return (plan["random_document"][order] >= 0).astype(np.int64)

    def pair_statistics(self, epoch: int = 0) -> PairStatistics:
        """Compute statistics of the pairs of an epoch."""
        return pair_statistics(self.corpus, self._epoch(epoch)[0], self._rules)

    def example(self, epoch: int, index: int) -> PretrainingExample:
        """Return example `index` of an epoch."""
        plan, order = self._epoch(epoch)
        rng = random_generator(self.seed, epoch, EXAMPLE_STREAM, index)
        parts, is_random = _parts(plan[order[index]])
        first, second = (self.corpus.tokens(*part) for part in parts)
        kept = truncate_at_random_ends(np.arange(len(first)), np.arange(len(second)), self._rules.max_tokens, rng)
        tokenizer, texts = self.corpus.tokenizer, [part for part in (first[kept[0]], second[kept[1]]) if len(part)]
        template = tokenizer.pair if len(texts) == 2 else tokenizer.single
        arrays = template.assemble(*texts)
        continues_word = self._continues_word(parts, kept, arrays["input_ids"], template)
        input_ids, positions, labels = self.predictions(
            arrays["input_ids"], template.special_positions(*texts), continues_word, rng
        )
        return PretrainingExample(input_ids, arrays["token_type_ids"], positions, labels, int(is_random))

    def predictions(
        self,
        input_ids: np.ndarray,
        special_positions: np.ndarray,
        continues_word: np.ndarray | None,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what the network reads and predicts, as `mask_tokens` does."""
        return mask_tokens(
            input_ids,
            special_positions,
            masking=self.masking,
            mask_id=self._mask_id,
            vocab_size=self._vocab_size,
            continues_word=continues_word,
            rng=rng,
        )

    def _continues_word(
        self,
        parts: Sequence[tuple[int, int, int]],
        kept: Sequence[np.ndarray],
        input_ids: np.ndarray,
        template: SequenceTemplate,
    ) -> np.ndarray | None:
        """Return which tokens continue a word, bool [length]; None without whole-word masking."""
        if not self.masking.whole_words:
            return None
        continues = np.zeros(len(input_ids), bool)
        for number, (part, tokens) in enumerate(zip(parts, kept, strict=True)):
            part_continues, start = self.corpus.continues_word(*part)[tokens], template.start(*kept[:number])
            rest = part_continues[1:]  # the rest of a truncated word begins a word
            continues[start + 1 : start + 1 + len(rest)] = rest
        return continues

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        plan = draw_pairs(self.corpus, self._rules, epoch)
        return plan, random_generator(self.seed, epoch, ORDER_STREAM).permutation(len(plan))


def _parts(row: np.void) -> tuple[list[tuple[int, int, int]], bool]:
    """Return document, first and last sentence of both parts, and whether the second part is random."""
    is_random = bool(row["random_document"] >= 0)
    second = ("random_document", "random_first", "random_last") if is_random else ("document", "middle", "last")
    return [(row[a], row[b], row[c]) for a, b, c in (("document", "first", "middle"), second)], is_random


def truncate_at_random_ends(
    first: np.ndarray, second: np.ndarray, max_tokens: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Drop tokens of the longer part, at random from its front or its back, until both parts fit."""
    bounds = [[0, len(first)], [0, len(second)]]
    excess = len(first) + len(second) - max_tokens
    for from_front in rng.random(max(excess, 0)) < 0.5:
        longer = bounds[0] if bounds[0][1] - bounds[0][0] > bounds[1][1] - bounds[1][0] else bounds[1]
        longer[0 if from_front else 1] += 1 if from_front else -1
    return first[slice(*bounds[0])], second[slice(*bounds[1])]


def mask_tokens(
    input_ids: np.ndarray,
    special_positions: np.ndarray,
    *,
    masking: Masking,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
    continues_word: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose tokens to predict, and replace most of them: by default 80% with [MASK] and 10% with a random token.

    Args:
        special_positions: positions of special tokens such as [CLS], which are never chosen.
        continues_word: for whole-word masking, bool [length]: tokens that continue a word.

    Returns:
        The masked ids; the chosen positions, ascending; the original ids at these positions.
    """
    candidates = np.delete(np.arange(len(input_ids)), special_positions)
    count = min(len(candidates), max(1, round(len(input_ids) * masking.rate)))
    if continues_word is None:
        positions = np.sort(rng.permutation(candidates)[:count])
    else:
        positions = _choose_words(candidates, continues_word[candidates], count, rng)
    labels = input_ids[positions]
    fate, random_ids = rng.random(len(positions)), rng.integers(vocab_size, size=len(positions))
    is_random = fate < masking.mask_fraction + masking.random_fraction
    hidden = np.where(fate < masking.mask_fraction, mask_id, np.where(is_random, random_ids, labels))
    masked = input_ids.copy()
    masked[positions] = hidden
    return masked, positions, labels


def _choose_words(candidates: np.ndarray, continues: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose the positions of whole words in random order; words that would exceed the count are skipped.

    Source: create_masked_lm_predictions of google-research/bert, with `do_whole_word_mask`.
    """
    words = np.split(candidates, np.flatnonzero(~continues[1:]) + 1)
    chosen: list[np.ndarray] = []
    left = count
    for number in rng.permutation(len(words)):
        if len(words[number]) <= left:
            chosen.append(words[number])
            left -= len(words[number])
    return np.sort(np.concatenate(chosen)) if chosen else candidates[:0]
