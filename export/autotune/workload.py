"""Sequences to time graphs on, batched like the server does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from tasks.batching import token_batches
from tasks.features import Features, collate

Arrays = dict[str, np.ndarray]

NUM_SAMPLES = 8
"""Number of samples of a workload."""


@dataclass(frozen=True)
class Workload:
    """Random sequences of given lengths."""

    lengths: tuple[int, ...]
    """Lengths of the sequences, in tokens."""
    vocab_size: int

    @property
    def num_tokens(self) -> int:
        """Number of tokens, without padding."""
        return sum(self.lengths)

    @property
    def mean_length(self) -> float:
        """Mean length of the sequences, in tokens."""
        return fmean(self.lengths)

    def scaled(self, factor: float) -> Workload:
        """Return a workload with `factor` times as many sequences and the same distribution of lengths."""
        size = max(1, round(factor * len(self.lengths)))
        lengths = sorted(self.lengths)
        indices = ((2 * index + 1) * len(lengths) // (2 * size) for index in range(size))
        return replace(self, lengths=tuple(lengths[index] for index in indices))

    def samples(self, max_batch_tokens: int) -> list[tuple[float, list[Arrays]]]:
        """Return the batches of several workloads with lengths drawn from this one's, for one pass after the other.

        Their batches have other shapes, as a server's: it rarely sees a shape again soon, and some engines take longer
        for a shape that they do not remember.

        Returns:
            The tokens of this workload divided by those of the sample, and the sample's batches.
        """
        workloads = [self]
        for seed in range(1, NUM_SAMPLES):
            drawn = np.random.default_rng(seed).choice(self.lengths, len(self.lengths))
            workloads.append(replace(self, lengths=tuple(drawn.tolist())))
        return [(self.num_tokens / item.num_tokens, item.batches(max_batch_tokens)) for item in workloads]

    def batches(self, max_batch_tokens: int) -> list[Arrays]:
        """Return batches sorted by length and capped, as evaluation and the server form them."""
        rng = np.random.default_rng(0)
        features = [
            Features(input_ids=rng.integers(0, self.vocab_size, length), token_type_ids=np.zeros(length, np.int64))
            for length in self.lengths
        ]
        batches = token_batches(self.lengths, max_batch_tokens)
        return [collate([features[index] for index in batch]) for batch in batches]


def typical_lengths(num_sequences: int, max_length: int) -> tuple[int, ...]:
    """Return lengths typical of sentences, in tokens: log-normal around 25, few above 80."""
    drawn = np.random.default_rng(0).lognormal(np.log(25), 0.6, num_sequences)
    return tuple(int(length) for length in np.clip(np.rint(drawn), min(3, max_length), max_length))
