"""Known input of every model and what it gives, by which a server tells that a graph computes the right numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tasks.features import Features
from tasks.text.tokenizer import Tokenizer

NUM_TOKENS, NUM_VALUES = 64, 64
"""Maximum number of tokens of the known input, and of values that are compared of each output."""
_DRIFT, _MIN_DRIFT = 0.01, 1e-4
"""Largest difference of two runs on one machine, relative to the largest value, and at least. Most give equal values;
some kernels of GPUs add in changing order."""


@dataclass(frozen=True, kw_only=True)
class KnownOutputs:
    """Values of the outputs for a known input, and how far from them a graph may be."""

    values: Mapping[str, tuple[float, ...]]
    """Evenly spaced values of each output, of one sequence."""
    atol: Mapping[str, float]
    """Largest allowed difference of each output."""

    def __post_init__(self) -> None:
        if self.values.keys() != self.atol.keys():
            raise ValueError("known_outputs needs values and atol of the same outputs")

    @classmethod
    def of(cls, outputs: Mapping[str, np.ndarray]) -> KnownOutputs:
        """Return the outputs of a graph for the first sequence of a batch, as later runs on this machine give them."""
        values = {name: sample(array)[0] for name, array in outputs.items()}
        largest = {name: np.abs(found[np.isfinite(found)]).max(initial=0) for name, found in values.items()}
        return cls(
            values={name: tuple(found.tolist()) for name, found in values.items()},
            atol={name: max(_MIN_DRIFT, _DRIFT * float(size)) for name, size in largest.items()},
        )

    def problem(self, outputs: Mapping[str, np.ndarray]) -> str:
        """Return what is wrong with the outputs for a batch of the known input; empty if nothing is."""
        for name, values in self.values.items():
            expected, atol = np.array(values), self.atol[name]
            if name not in outputs or (found := sample(outputs[name])).shape[1:] != expected.shape:
                return f"output `{name}` has not the size of the known one"
            if not np.isclose(found, expected, rtol=0, atol=atol).all():
                with np.errstate(invalid="ignore"):
                    difference = np.abs(found - expected).max()
                return f"output `{name}` differs from the known one by `{difference:.2g}` (tolerance `{atol:.2g}`)"
        return ""


def known_input(tokenizer: Tokenizer, length: int) -> Features:
    """Return a sequence of `length` tokens, spread over the vocabulary between the special ones."""
    count = length - tokenizer.single.num_special
    return Features(**tokenizer.assemble(np.linspace(0, tokenizer.vocab_size - 1, count).astype(np.int64)))


def sample(array: np.ndarray) -> np.ndarray:
    """Return evenly spaced values of each sequence of a batch, [batch, at most NUM_VALUES]."""
    flat = array.reshape(len(array), -1)
    return flat[:, np.linspace(0, flat.shape[1] - 1, min(NUM_VALUES, flat.shape[1])).astype(np.int64)]
