"""Features of one sequence, and the padded arrays of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Inputs of the model for one sequence, without padding."""

    input_ids: np.ndarray
    """[length] int64"""
    token_type_ids: np.ndarray
    """[length] int64; 0 for the first text, 1 for the second."""
    num_truncated: int = 0
    """Tokens of the texts that were cut away."""
    num_unattended: int = 0
    """Tokens at the end to which no token attends; they attend to the others."""

    def __len__(self) -> int:
        return len(self.input_ids)


def collate(features: Sequence[Features], *, pad_id: int = 0, length: int = 0) -> dict[str, np.ndarray]:
    """Pad sequences to the longest of them, or to `length` if that is more.

    Returns:
        `input_ids`, `attention_mask` and `token_type_ids`, each [batch, length] int32.
    """
    lengths = [len(item) for item in features]
    shape = (len(features), max(length, *lengths))
    arrays = {name: np.zeros(shape, dtype=np.int32) for name in INPUT_NAMES}
    if pad_id:
        arrays["input_ids"].fill(pad_id)
    for row, (item, size) in enumerate(zip(features, lengths, strict=True)):
        arrays["input_ids"][row, :size] = item.input_ids
        arrays["attention_mask"][row, : size - item.num_unattended] = 1
        arrays["token_type_ids"][row, :size] = item.token_type_ids
    return arrays


def split_outputs(
    outputs: dict[str, np.ndarray], lengths: Sequence[int], *, token_outputs: bool
) -> list[dict[str, np.ndarray]]:
    """Split the outputs of a batch into one entry per sequence, and remove the padding of per-token outputs."""
    return [
        {name: array[row, :length] if token_outputs else array[row] for name, array in outputs.items()}
        for row, length in enumerate(lengths)
    ]
