"""Packing: the texts of a batch become one sequence without padding, so that training on CPUs computes less.

Attention stays inside each text, and the positions of each text start over. So outputs and gradients are those of the
padded batch (Krell et al. 2021, arXiv 2107.02027, section 3.2). Heads and losses find the outputs where the padded
batch has them. Only attention works on rows: several short texts share one, and a mask keeps them apart.

Shape suffixes as in `training.model.encoder`, T places of the sequence, P rows of R places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.model.config import EncoderConfig

SEQUENCE_STEP = 64
"""A sequence has a multiple of this number of places, so that shapes are few: each costs time and memory."""
ROW_LENGTHS = (64, 128)
"""Lengths of rows that are tried, in addition to the length of the padded batch."""
MIN_SAVING = 0.03
"""Least fraction of the computation that packing must save."""


@dataclass(frozen=True)
class Packing:
    """Places of a batch's tokens in the padded batch, in one sequence, and in rows.

    Places are counted as row * length + column. Places of the sequence after the last token repeat the first one;
    nothing reads them.
    """

    num_tokens: int
    padded_shape: tuple[int, int]
    row_shape: tuple[int, int]
    padded_places_T: Tensor
    """Place in the padded batch of each place of the sequence."""
    row_places_T: Tensor
    """Place in the rows of each place of the sequence."""
    sequence_places: Tensor
    """Place in the sequence of each place of the rows; the first where no token is."""
    mask_PRR: Tensor
    """Attention mask, bool: a place attends to its text; one without a token, to other such places."""

    def pack(self, values_BL: Tensor) -> Tensor:
        """Return the values of a padded batch as a sequence [1, T]."""
        return values_BL.flatten()[self.padded_places_T][None]

    def unpack(self, x_1TD: Tensor) -> Tensor:
        """Return the states of a sequence as a padded batch [B, L, D], with 0 at padding."""
        (batch, length), x_TD = self.padded_shape, x_1TD[0, : self.num_tokens]
        padded = x_TD.new_zeros(batch * length, x_TD.shape[1])
        return padded.index_copy(0, self.padded_places_T[: self.num_tokens], x_TD).view(batch, length, -1)

    def to_rows(self, x_1TD: Tensor) -> Tensor:
        """Return the states of a sequence in rows [P, R, D], and the first token's where no token is."""
        return x_1TD[0].index_select(0, self.sequence_places).view(*self.row_shape, -1)

    def from_rows(self, x_PRD: Tensor) -> Tensor:
        """Return the states of rows as a sequence [1, T, D]."""
        return x_PRD.flatten(0, 1).index_select(0, self.row_places_T)[None]


def find_packing(attention_mask_BL: Tensor, config: EncoderConfig) -> Packing | None:
    """Return the packing of a batch with the cheapest rows; None if it saves little.

    None also if padding stands before tokens, as positions in a row would then differ from those in the text.
    """
    batch, length = attention_mask_BL.shape
    lengths_B = attention_mask_BL.sum(1)
    is_token_BL = torch.arange(length) < lengths_B[:, None]
    if not torch.equal(is_token_BL, attention_mask_BL.bool()):
        return None
    lengths = lengths_B.tolist()
    sizes = [size for size in (length, *ROW_LENGTHS) if size >= max(lengths)]
    rows = [(*first_fit(lengths, size), size) for size in sizes]
    starts, *row_shape = min(rows, key=lambda found: _attention_cost(*found[1:]))
    num_places = -(-sum(lengths) // SEQUENCE_STEP) * SEQUENCE_STEP
    if _cost(num_places, row_shape, config) > (1 - MIN_SAVING) * _cost(batch * length, (batch, length), config):
        return None
    row_places_BL = torch.tensor(starts)[:, None] + torch.arange(length)
    padded_places, row_places = is_token_BL.flatten().nonzero()[:, 0], row_places_BL[is_token_BL]
    num_rows, row_length = row_shape
    sequence_places = torch.zeros(num_rows * row_length, dtype=torch.long)
    sequence_places[row_places] = torch.arange(len(row_places))
    texts = torch.full((num_rows * row_length,), -1)
    texts[row_places] = padded_places // length
    texts_PR = texts.view(num_rows, row_length)
    return Packing(
        num_tokens=len(row_places),
        padded_shape=(batch, length),
        row_shape=(num_rows, row_length),
        padded_places_T=_filled(padded_places, num_places),
        row_places_T=_filled(row_places, num_places),
        sequence_places=sequence_places,
        mask_PRR=texts_PR[:, :, None] == texts_PR[:, None, :],
    )


def _filled(places: Tensor, size: int) -> Tensor:
    return torch.cat([places, places[:1].expand(size - len(places))])


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


def _cost(num_places: int, row_shape: Sequence[int], config: EncoderConfig) -> float:
    """Return the time of a layer on a CPU, in the unit of `_attention_cost` (docs/experiments, 2026-11-27).

    Outside attention, a place takes as long as scores with as many others as 1/20 of the hidden size times that of a
    head.
    """
    return num_places * config.hidden_size * config.head_size / 20 + _attention_cost(*row_shape)


def _attention_cost(num_rows: int, row_length: int) -> float:
    """Return the time of attention: scores of each place with all of its row; to move it costs as much as 64 more."""
    return num_rows * row_length * (row_length + 64)
