"""BERT encoder: embeddings, post-LN transformer layers and the pooler.

Devlin et al. 2018 (arXiv 1810.04805), section 3 and appendix A.2. Details follow modeling.py of google-research/bert,
except that GELU is computed exactly, as in Hugging Face checkpoints. Query, key and value are one matrix product here;
`training.checkpoint` translates weight names to and from Hugging Face's. Heads are in `training.model.heads`, variants
of the encoder that only ablations use in `training.ablations.model`.

Shape suffixes: B batch, L length, D hidden size, H attention heads, K head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.schema import Bounds, check_bounds, check_known_fields
from training.bounds import BELOW_ONE, NOT_NEGATIVE
from training.model import cpu

SIZE = Bounds(least=1, most=10_000_000)
"""Bounds of one dimension; the number of elements of any tensor then fits into 64 bits."""


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape of the network. Fields are named as in Hugging Face's `config.json`.

    Raises:
        ValueError: naming the field whose value is impossible.
    """

    vocab_size: Annotated[int, SIZE] = 30522
    hidden_size: Annotated[int, SIZE] = 768
    num_hidden_layers: Annotated[int, Bounds(least=1, most=1000)] = 12
    num_attention_heads: Annotated[int, SIZE] = 12
    intermediate_size: Annotated[int, SIZE] = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Annotated[float, BELOW_ONE] = 0.1
    attention_probs_dropout_prob: Annotated[float, BELOW_ONE] = 0.1
    max_position_embeddings: Annotated[int, SIZE] = 512
    type_vocab_size: Annotated[int, SIZE] = 2
    initializer_range: Annotated[float, NOT_NEGATIVE] = 0.02
    layer_norm_eps: Annotated[float, Bounds(least=1e-30, most=1)] = 1e-12
    """Added to a variance in float32."""
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        check_known_fields(type(self), vars(self))
        check_bounds(self)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size `{self.hidden_size}` is not a multiple of "
                f"num_attention_heads `{self.num_attention_heads}`"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"unknown hidden_act: `{self.hidden_act}` (one of: {', '.join(ACTIVATIONS)})")

    @property
    def depth(self) -> int:
        """Number of layers below the output."""
        return self.num_hidden_layers

    @property
    def output_size(self) -> int:
        """Size of the output for each token."""
        return self.hidden_size

    def create_encoder(self, *, with_pooler: bool) -> Encoder:
        """Return a new encoder of this shape."""
        return Encoder(self, with_pooler=with_pooler)


class Dropout(nn.Dropout):
    """Dropout that draws cheaper random numbers than PyTorch's on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not (self.training and self.p):
            return super().forward(x)
        return x * cpu.keep_mask(x.shape, self.p, x.dtype) * (1 / (1 - self.p))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return residual + dropout(x)."""
        if x.device.type != "cpu" or not (self.training and self.p):
            return residual + super().forward(x)
        return torch.addcmul(residual, x, cpu.keep_mask(x.shape, self.p, x.dtype), value=1 / (1 - self.p))


class Embeddings(nn.Module):
    """Normalised sum of word, position and token type embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        position_LD = self.position.weight[: input_ids_BL.shape[1]]
        return self.dropout(self.norm(self.word(input_ids_BL) + self.token_type(token_type_ids_BL) + position_LD))


class Layer(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, residual and LayerNorm (post-LN)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(hidden, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x_BLD: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the layer.

        Args:
            mask: bool, true where a token may attend; broadcast to [B, H, L, L]. None for everywhere.
        """
        y_BLD = self.attention_output(self._attend(x_BLD, mask))
        x_BLD = self.attention_norm(self.dropout.add(y_BLD, x_BLD))
        y_BLD = self.output(self.activation(self.intermediate(x_BLD)))
        return self.output_norm(self.dropout.add(y_BLD, x_BLD))

    def _attend(self, x_BLD: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, hidden = x_BLD.shape
        qkv_BL3HK = self.qkv(x_BLD).view(batch, length, 3, self.num_heads, hidden // self.num_heads)
        qkv_3BHLK = qkv_BL3HK.permute(2, 0, 3, 1, 4)
        dropout = self.attention_dropout if self.training else 0.0
        if self.training and x_BLD.device.type == "cpu":
            context_BHLK = cpu.attention(qkv_3BHLK, mask, dropout)
        else:
            q, k, v = qkv_3BHLK.unbind(0)
            context_BHLK = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return context_BHLK.transpose(1, 2).reshape(batch, length, hidden)


def padding_mask(attention_mask_BL: Tensor | None) -> Tensor | None:
    """Return the mask [B, 1, 1, L] that keeps tokens from attending to padding; None without padding."""
    return None if attention_mask_BL is None else attention_mask_BL.bool()[:, None, None, :]


class Encoder(nn.Module):
    """Encoder below every head."""

    def __init__(self, config: EncoderConfig, *, with_pooler: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.frozen = False
        if with_pooler:
            self.pooler = nn.Linear(config.output_size, config.hidden_size)

    def forward(self, input_ids_BL: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor) -> Tensor:
        """Return the last hidden state [B, L, D].

        Args:
            attention_mask_BL: 1 for tokens and 0 for padding; None for no padding.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            x_BLD = self.embeddings(input_ids_BL, token_type_ids_BL)
            mask = padding_mask(attention_mask_BL)
            for layer in self.layers:
                x_BLD = layer(x_BLD, mask)
        return x_BLD

    def pool(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return the pooled output [B, D]: a tanh layer over [CLS]."""
        return torch.tanh(self.pooler(hidden_BLD[:, 0]))

    def freeze(self) -> None:
        """Switch off gradients and dropout of embeddings and layers."""
        self.frozen = True
        self.embeddings.requires_grad_(False)
        self.layers.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode)
        if self.frozen:
            self.embeddings.eval()
            self.layers.eval()
        return self
