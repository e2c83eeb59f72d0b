"""Rotary positions, and what configs of encoders with them have in common.

Su et al. 2021 (arXiv 2104.09864): queries and keys are rotated by angles that grow with their positions, so that an
attention score depends on their distance. `training.model.modernbert_encoder` and `training.model.nomic_encoder` have
such positions, and gated feed-forward networks (Shazeer 2020, arXiv 2002.05202).

Shape suffixes as in `training.model.encoder`, and F for half a head's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.schema import Bounds, FieldError
from training.model.config import EncoderConfig

THETA = Bounds(least=1, most=1e12)
"""Bounds of a base of wavelengths."""


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(EncoderConfig):
    """Config of an encoder with rotary positions and gated feed-forward networks."""

    num_feed_forward_matrices = 3
    attention_bias: bool = False
    """Query, key, value and output layers have biases."""
    mlp_bias: bool = False
    """Feed-forward networks have biases."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_size % 2 or self.head_size < 4:
            raise FieldError(
                lambda named: (
                    f"{named('hidden_size')} `{self.hidden_size}` and {named('num_attention_heads')} "
                    f"`{self.num_attention_heads}` make heads of {self.head_size} channels; rotary positions need an "
                    "even number, at least 4"
                )
            )

    @property
    def has_position_embeddings(self) -> bool:
        return False


def rotary_frequencies(head_size: int, theta: float | Tensor, device: torch.device | None = None) -> Tensor:
    """Return the angle [F] from one position to the next, for each pair of channels; [..., F] for thetas [..., 1]."""
    exponents_F = torch.arange(0, head_size, 2, dtype=torch.float32, device=device) / head_size
    return 1.0 / theta**exponents_F


def rotary_table(length: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [L, F] of the angle that each position rotates each pair of channels by.

    Args:
        frequencies: [F], or [..., 1, F] for a table [..., L, F].
    """
    angles = torch.arange(length, dtype=torch.float32, device=frequencies.device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x_BHLK: Tensor, cos_LF: Tensor, sin_LF: Tensor) -> Tensor:
    """Rotate the pairs (i, i + F) of the channels of a head."""
    one, two = x_BHLK.chunk(2, dim=-1)
    return torch.cat([one * cos_LF - two * sin_LF, two * cos_LF + one * sin_LF], dim=-1)


def rotate_heads(qkv_3BHLK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries and keys by their positions; values stay.

    Args:
        rotation: cosine and sine of `rotary_table`, broadcast to [B, H, L, F].
    """
    cos, sin = (table.to(qkv_3BHLK.dtype) for table in rotation)
    return torch.cat([rotate(qkv_3BHLK[:2], cos, sin), qkv_3BHLK[2:]])
