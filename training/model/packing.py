"""Packing: short texts of a batch share rows, so that training computes less padding.

Attention stays inside each text, and the positions of each text start anew. So outputs and gradients are those of the
padded batch (Krell et al. 2021, arXiv 2107.02027, section 3.2). Heads and losses find the outputs where the padded
batch has them.

Shape suffixes as in `training.model.encoder`, P rows of R places, and T tokens of the batch without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.model.config import EncoderConfig

ROW_LENGTHS = (64, 128)
"""Lengths of packed rows, beside the length of the padded batch. Few lengths make few shapes, and in longer rows
attention costs more than packing saves."""
MIN_SAVING = 0.03
"""Least fraction of the computation that packing must save."""


@dataclass(frozen=True)
class Packing:
    """Places of a batch's tokens in packed rows."""

    tokens_T: Tensor
    """Place of each token in the padded batch: row * length + column."""
    places_T: Tensor
    """Place of each token in the packed rows, counted likewise."""
    padded_shape: tuple[int, int]
    packed_shape: tuple[int, int]

    def pack(self, values_BL: Tensor, empty: int = 0) -> Tensor:
        """Return the values of the tokens in packed rows [P, R], and `empty` elsewhere."""
        values_T = values_BL.flatten()[self.tokens_T]
        packed = values_T.new_full(self.packed_shape, empty)
        packed.view(-1)[self.places_T] = values_T
        return packed

    def mask(self) -> Tensor:
        """Return where each place may attend to, bool [P, R, R]: to its text, or to other empty places."""
        batch, length = self.padded_shape
        texts_PR = self.pack(torch.arange(batch)[:, None].expand(batch, length), empty=-1)
        return texts_PR[:, :, None] == texts_PR[:, None, :]

    def unpack(self, hidden_PRD: Tensor) -> Tensor:
        """Return the states of the tokens in the padded batch [B, L, D], and 0 at padding."""
        batch, length = self.padded_shape
        hidden_TD = hidden_PRD.flatten(0, 1).index_select(0, self.places_T)
        padded = hidden_TD.new_zeros(batch * length, hidden_TD.shape[1]).index_copy(0, self.tokens_T, hidden_TD)
        return padded.view(batch, length, -1)


def find_packing(attention_mask_BL: Tensor, config: EncoderConfig) -> Packing | None:
    """Return the cheapest packing of a batch; None if it saves little, or if padding stands before tokens."""
    batch, length = attention_mask_BL.shape
    lengths_B = attention_mask_BL.sum(1)
    is_token_BL = torch.arange(length) < lengths_B[:, None]
    if not torch.equal(is_token_BL, attention_mask_BL.bool()):
        return None
    lengths = lengths_B.tolist()
    found = [(size, *first_fit(lengths, size)) for size in {length, *ROW_LENGTHS} if size >= max(lengths)]
    size, starts, num_rows = min(found, key=lambda item: _cost(item[2], item[0], config))
    if _cost(num_rows, size, config) > (1 - MIN_SAVING) * _cost(batch, length, config):
        return None
    places_BL = torch.tensor(starts)[:, None] + torch.arange(length)
    tokens_T = is_token_BL.flatten().nonzero()[:, 0]
    return Packing(tokens_T, places_BL[is_token_BL], (batch, length), (num_rows, size))


def first_fit(lengths: Sequence[int], row_length: int) -> tuple[list[int], int]:
    """Put each text, the longest first, into the first row with enough space.

    Returns:
        The place where each text begins, row * row_length + column, and the number of rows.
    """
    free: list[int] = []
    starts = [0] * len(lengths)
    for text in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = next((row for row, space in enumerate(free) if space >= lengths[text]), len(free))
        if row == len(free):
            free.append(row_length)
        starts[text] = (row + 1) * row_length - free[row]
        free[row] -= lengths[text]
    return starts, len(free)


def _cost(num_rows: int, length: int, config: EncoderConfig) -> float:
    """Return the time of a layer on a CPU, in arbitrary units.

    It grows with the places, and in attention with their products. Both are equal at a length of 1/20 of the hidden
    size times the size of a head (docs/experiments, 2026-11-27).
    """
    return num_rows * length * (length + config.hidden_size * config.head_size / 20)
