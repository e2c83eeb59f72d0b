"""Encoder of Nomic BERT: rotary positions, gated feed-forward networks, LayerNorm after each block.

Nussbaum et al. 2024 (arXiv 2402.01613): BERT with the positions and feed-forward networks of `training.model.rotary`,
and no biases in its layers. Texts that are longer than those of training may rotate by smaller angles ("dynamic NTK"
scaling). In Nomic's code the angles depend on the length of the padded batch; here they depend on that of the text, so
that its output is the same in every batch.

Shape suffixes as in `training.model.encoder`, and F for half a head's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from tasks.schema import Bounds
from training.model.config import SIZE
from training.model.encoder import Encoder, Layer, create_encoder, padding_mask, row_length
from training.model.packing import Packing
from training.model.rotary import THETA, RotaryConfig, rotary_frequencies, rotary_table


@dataclass(frozen=True, kw_only=True)
class NomicBertConfig(RotaryConfig):
    """Config of Nomic BERT."""

    model_type: str = "nomic_bert"
    hidden_act: str = "silu"
    """Activation function of the gate."""
    rope_theta: Annotated[float, THETA] = 1000.0
    """Base of the wavelengths of rotary positions."""
    rotary_scaling_factor: Annotated[float, Bounds(least=0, most=1e6)] = 0.0
    """Growth of `rope_theta` in texts that are longer than `max_trained_positions`; 0 for none."""
    max_trained_positions: Annotated[int, SIZE] = 2048
    """Length of the longest training texts, in tokens."""

    @property
    def scales_positions(self) -> bool:
        """True if long texts rotate by smaller angles than short ones."""
        return self.rotary_scaling_factor > 0 and self.num_positions > self.max_trained_positions

    def frequencies(self, lengths_B: Tensor) -> Tensor:
        """Return the `rotary_frequencies` [B, F] of texts with these numbers of tokens.

        Source: `NomicBertDynamicNTKRotaryEmbedding` in the code of nomic-ai/nomic-embed-text-v1.
        """
        factor, size = self.rotary_scaling_factor, self.head_size
        growth_B = factor * lengths_B.double() / self.max_trained_positions - (factor - 1)
        thetas_B = self.rope_theta * growth_B.clamp(min=1) ** (size / (size - 2))
        return rotary_frequencies(size, thetas_B.float()[:, None], lengths_B.device)


class NomicLayer(Layer):
    """BERT's layer with a gated feed-forward network, and mostly without biases."""

    def __init__(self, config: NomicBertConfig) -> None:
        super().__init__(config)
        hidden, inner = config.hidden_size, config.intermediate_size
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=config.attention_bias)
        self.attention_output = nn.Linear(hidden, hidden, bias=config.attention_bias)
        self.intermediate = nn.Linear(hidden, 2 * inner, bias=config.mlp_bias)
        self.output = nn.Linear(inner, hidden, bias=config.mlp_bias)

    def feed_forward(self, x_BLD: Tensor) -> Tensor:
        gate, value = self.intermediate(x_BLD).chunk(2, dim=-1)
        return self.output(self.activation(gate) * value)


class NomicEncoder(Encoder):
    """Encoder of Nomic BERT."""

    config: NomicBertConfig

    def __init__(self, config: NomicBertConfig, *, with_pooler: bool) -> None:
        layers = [NomicLayer(config) for _ in range(config.num_hidden_layers)]
        super().__init__(config, with_pooler=with_pooler, layers=layers)
        if config.scales_positions:
            self.unpackable = "the positions of this network depend on the length of a text"

    def encode(self, x_BLD: Tensor, attention_mask: Tensor | None, packing: Packing | None = None) -> Tensor:
        rotation = self.rotation(attention_mask, row_length(x_BLD, packing), x_BLD.device)
        mask = padding_mask(attention_mask)
        for layer in self.layers:
            x_BLD = layer(x_BLD, mask, packing, rotation)
        return x_BLD

    def rotation(self, attention_mask_BL: Tensor | None, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosine and sine for a batch, [L, F]; [B, 1, L, F] if they depend on the lengths of the texts."""
        config = self.config
        if not config.scales_positions:
            return rotary_table(length, rotary_frequencies(config.head_size, config.rope_theta, device))
        lengths_B = torch.tensor([length], device=device) if attention_mask_BL is None else attention_mask_BL.sum(1)
        return rotary_table(length, config.frequencies(lengths_B)[:, None, None])


@create_encoder.register
def _(config: NomicBertConfig, *, with_pooler: bool) -> Encoder:
    return NomicEncoder(config, with_pooler=with_pooler)
