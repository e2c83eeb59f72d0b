"""Encoder of ModernBERT: rotary positions, local attention, gated feed-forward networks, LayerNorm before each block.

Warner et al. 2024 (arXiv 2412.13663), from these parts: rotary positions and gated feed-forward networks
(`training.model.rotary`), attention to a window of neighbours in most layers (Beltagy et al. 2020, arXiv 2004.05150),
and pre-norm (Xiong et al. 2020, arXiv 2002.04745). Weights are named as in `training.model.encoder` where the parts
correspond.

Shape suffixes as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tasks.schema import Bounds
from training.model.config import ACTIVATIONS, POOLER_ACTIVATIONS, SIZE
from training.model.encoder import Dropout, Encoder, attend, create_encoder, padding_mask, row_length, split_heads
from training.model.packing import Packing
from training.model.rotary import THETA, RotaryConfig, rotary_frequencies, rotary_table, rotate_heads


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(RotaryConfig):
    """Config of ModernBERT. Further fields are named as in Hugging Face's `config.json`."""

    has_prediction_head = True
    model_type: str = "modernbert"
    type_vocab_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    global_rope_theta: Annotated[float, THETA] = 160_000.0
    """Base of the wavelengths of rotary positions in layers that attend to all tokens."""
    local_rope_theta: Annotated[float, THETA] = 10_000.0
    """Base of the wavelengths of rotary positions in layers with local attention."""
    local_attention: Annotated[int, SIZE] = 128
    """Width of local attention: tokens see neighbours up to half of it away."""
    global_attn_every_n_layers: Annotated[int, SIZE] = 3
    """Every n-th layer, from the first, attends to all tokens; the others are local."""
    norm_bias: bool = False
    """LayerNorm has biases."""
    classifier_bias: bool = False
    """The dense layer of heads has a bias."""
    decoder_bias: bool = True
    """The output layer of masked LM has a bias."""
    classifier_pooling: Literal["cls", "mean"] = "cls"
    """Heads of classification read [CLS], or the mean over tokens."""

    @property
    def pools_mean(self) -> bool:
        return self.classifier_pooling == "mean"

    def is_local(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has local attention."""
        return layer % self.global_attn_every_n_layers != 0

    def frequencies(self, *, local: bool, device: torch.device | None = None) -> Tensor:
        """Return the `rotary_frequencies` of local or global layers."""
        return rotary_frequencies(self.head_size, self.local_rope_theta if local else self.global_rope_theta, device)


def window_mask(attention_mask: Tensor | None, length: int, distance: int, device: torch.device) -> Tensor | None:
    """Return where tokens may attend to: true for tokens up to `distance` away that are not padding.

    Args:
        attention_mask: as for `padding_mask`.

    Returns:
        A mask as for `training.model.encoder.Layer`.
    """
    tokens = padding_mask(attention_mask)
    if length <= distance + 1:
        return tokens
    places = torch.arange(length, device=device)
    distance_LL = (places[:, None] - places).abs()
    near_LL = distance_LL <= distance
    if tokens is None:
        return near_LL[None, None]
    return (near_LL & tokens) | (distance_LL == 0)  # padding sees itself: a softmax over nothing is NaN


class PredictionHead(nn.Linear):
    """Dense layer, activation and LayerNorm, below the output layer of each task but masked LM."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config.hidden_size, config.hidden_size, bias=config.classifier_bias)
        self.activation = POOLER_ACTIVATIONS[config.pooler_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(super().forward(x)))


class ModernBertLayer(nn.Module):
    """Self-attention and gated feed-forward network, each with LayerNorm before it and residual after it (pre-LN)."""

    def __init__(self, config: ModernBertConfig, number: int) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(hidden, eps=config.layer_norm_eps, bias=config.norm_bias)

        self.num_heads = config.num_attention_heads
        self.attention_norm = norm() if number else nn.Identity()  # the embeddings are normalised already
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=config.attention_bias)
        self.attention_output = nn.Linear(hidden, hidden, bias=config.attention_bias)
        self.attention_dropout = Dropout(config.attention_probs_dropout_prob)
        self.feed_forward_norm = norm()
        self.intermediate = nn.Linear(hidden, 2 * inner, bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.output = nn.Linear(inner, hidden, bias=config.mlp_bias)

    def forward(
        self, x_BLD: Tensor, mask: Tensor | None, packing: Packing | None, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Compute the layer.

        Args:
            mask: bool, as for `training.model.encoder.Layer`.
            packing, rotation: as there.
        """
        qkv_3BHLK = split_heads(self.qkv(self.attention_norm(x_BLD)), self.num_heads, packing)
        rate = self.attention_dropout.p
        context_BLD = attend(rotate_heads(qkv_3BHLK, rotation), mask, rate, packing, training=self.training)
        x_BLD = self.attention_dropout.add(self.attention_output(context_BLD), x_BLD)
        value, gate = self.intermediate(self.feed_forward_norm(x_BLD)).chunk(2, dim=-1)
        return x_BLD + self.output(self.dropout(self.activation(value) * gate))


class ModernBertEncoder(Encoder):
    """Encoder of ModernBERT."""

    config: ModernBertConfig

    def __init__(self, config: ModernBertConfig) -> None:
        layers = [ModernBertLayer(config, number) for number in range(config.num_hidden_layers)]
        super().__init__(config, with_pooler=False, layers=layers)
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)
        self.pooler = PredictionHead(config)

    def encode(self, x_BLD: Tensor, attention_mask: Tensor | None, packing: Packing | None = None) -> Tensor:
        length, device = row_length(x_BLD, packing), x_BLD.device
        frequencies = [self.config.frequencies(local=local, device=device) for local in (False, True)]
        rotations = [rotary_table(length, item) for item in frequencies]
        distances = (length, self.config.local_attention // 2)
        masks = [window_mask(attention_mask, length, distance, device) for distance in distances]
        for number, layer in enumerate(self.layers):
            local = self.config.is_local(number)
            x_BLD = layer(x_BLD, masks[local], packing, rotations[local])
        return self.final_norm(x_BLD)

    def pool(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return the pooled output [B, D]: the head over [CLS], or over the mean of the tokens."""
        if not self.config.pools_mean:
            return self.pooler(hidden_BLD[:, 0])
        if attention_mask_BL is None:
            return self.pooler(hidden_BLD.mean(1))
        mask_BL1 = attention_mask_BL[..., None]
        return self.pooler((hidden_BLD * mask_BL1).sum(1) / mask_BL1.sum(1))

    def token_states(self, hidden_BLD: Tensor) -> Tensor:
        return self.pooler(hidden_BLD)

    def freeze(self) -> None:
        super().freeze()
        self.final_norm.requires_grad_(False)


@create_encoder.register
def _(config: ModernBertConfig, *, with_pooler: bool) -> Encoder:
    return ModernBertEncoder(config)
