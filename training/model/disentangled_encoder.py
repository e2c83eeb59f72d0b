"""Encoder with disentangled attention: scores depend on contents, and on contents and relative positions.

DeBERTa v2 and v3 (He et al. 2020, arXiv 2006.03654, section 3; He et al. 2021, arXiv 2111.09543), as transformers
computes them. The score of query i and key j has up to three terms; the last two replace position embeddings:

    q_i k_j  +  q_i K[i - j]  (content to position, c2p)  +  k_j Q[i - j]  (position to content, p2c)

K and Q are projections of one table of relative embeddings, which all layers share. Large distances share rows of it.
The rest of a layer is BERT's, and weights are named as in `training.model.encoder` where the parts correspond.

Shape suffixes as there, and R for rows of the table of relative embeddings.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.schema import Bounds, check_choice
from training.command_line.bounds import BELOW_ONE
from training.model.config import POOLER_ACTIVATIONS, SIZE, EncoderConfig
from training.model.encoder import (
    Dropout,
    Embeddings,
    Encoder,
    Layer,
    attend,
    create_encoder,
    padding_mask,
    row_length,
    split_heads,
)
from training.model.packing import Packing

PositionTerms = Literal["", "c2p", "p2c", "c2p|p2c"]
"""Terms of attention scores that depend on positions."""
RelativeNorm = Literal["none", "layer_norm"]
"""Normalisation of the table of relative embeddings."""
_OPTIONAL = Bounds(least=-1, most=SIZE.most)
"""Bounds of numbers that are not used below 1."""


@dataclass(frozen=True, kw_only=True)
class DisentangledConfig(EncoderConfig):
    """Config of DeBERTa v2 and v3. Further fields are named as in Hugging Face's `config.json` of DeBERTa v2."""

    projects_embeddings_first = True
    model_type: str = "deberta-v2"
    type_vocab_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    relative_attention: bool = False
    """Scores depend on relative positions, as set by `pos_att_type`."""
    pos_att_type: PositionTerms = ""
    """Terms of the scores in addition to the product of contents."""
    position_buckets: Annotated[int, _OPTIONAL] = -1
    """Rows of the table of relative embeddings for each direction; below 1, one for each distance."""
    max_relative_positions: Annotated[int, _OPTIONAL] = -1
    """Largest distance plus one; below 1, `max_position_embeddings`."""
    norm_rel_ebd: RelativeNorm = "none"
    """LayerNorm over the relative embeddings."""
    share_att_key: bool = False
    """Relative embeddings are projected by the weights of query and key, not by separate weights."""
    position_biased_input: bool = True
    """Embeddings include those of positions."""
    conv_kernel_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    """Tokens that the convolution parallel to the first layer reads; 0 for no convolution."""
    conv_groups: Annotated[int, SIZE] = 1
    """Groups of channels of the convolution."""
    conv_act: str = "tanh"
    """Activation of the convolution."""
    pooler_dropout: Annotated[float, BELOW_ONE] = 0.0
    """Dropout of [CLS] below the pooler."""
    legacy: bool = True
    """The head of masked LM has BERT's names in files; if false, those of `lm_predictions`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "conv_act", POOLER_ACTIVATIONS)
        if not (self.has_c2p or self.has_p2c or self.position_biased_input):
            raise ValueError(
                "the network has no positions: relative_attention or pos_att_type is off, and "
                "position_biased_input is `false`"
            )
        middle = self.position_buckets // 2
        if self.position_buckets == 1:
            raise ValueError("position_buckets `1` leaves no row for a distance; it must be 2 or more, or -1")
        if self.position_buckets > 0 and self.max_distance - 1 <= middle < self.num_positions - 1:
            raise ValueError(
                f"position_buckets `{self.position_buckets}` has no rows for distances between {middle} and "
                f"max_relative_positions `{self.max_distance}`"
            )
        if self.conv_kernel_size and self.conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size must be odd: `{self.conv_kernel_size}`")
        if self.conv_kernel_size and self.hidden_size % self.conv_groups:
            raise ValueError(f"hidden_size `{self.hidden_size}` is not a multiple of conv_groups `{self.conv_groups}`")

    @property
    def has_c2p(self) -> bool:
        """True if scores have a term for the content of the query and the position of the key."""
        return self.relative_attention and "c2p" in self.pos_att_type

    @property
    def has_p2c(self) -> bool:
        """True if scores have a term for the position of the query and the content of the key."""
        return self.relative_attention and "p2c" in self.pos_att_type

    @property
    def score_scale(self) -> float:
        """Factor of all terms of the scores."""
        num_terms = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        return float((self.head_size * num_terms) ** -0.5)

    @property
    def max_distance(self) -> int:
        """Number of distances, 0 included, that the table of relative embeddings tells apart."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def num_relative_rows(self) -> int:
        """Rows of the table of relative embeddings."""
        return 2 * (self.position_buckets if self.position_buckets > 0 else self.max_distance)

    @property
    def has_position_embeddings(self) -> bool:
        return self.position_biased_input

    def position_flops(self, length: int) -> int:
        """Return the FLOPs of a token for positions and the convolution.

        Projections of the relative embeddings do not count: they are done once a batch.
        """
        rows = relative_rows(self, length)
        num_rows = int(rows[-1] - rows[0]) + 1
        products = self.num_hidden_layers * (self.has_c2p + self.has_p2c) * 2 * self.hidden_size * num_rows
        return products + 2 * self.conv_kernel_size * self.hidden_size**2 // self.conv_groups

    def with_dropout(self, dropout: float) -> EncoderConfig:
        """Return a copy with another dropout, also of the pooler if it has one."""
        pooler = dropout if self.pooler_dropout else 0.0
        return replace(self, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, pooler_dropout=pooler)


def log_buckets(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance, int64: the distance up to half of the buckets, then logarithmic.

    Buckets of `max_distance` - 1 are the last: `num_buckets` - 1, and the same below zero.

    Source: `make_log_bucket_position` of DeBERTa v2 in transformers.
    """
    middle = num_buckets // 2
    far = distances.abs().clamp(min=middle) / middle
    whole = torch.log(torch.tensor((max_distance - 1) / middle))
    logarithmic = (torch.ceil(torch.log(far) / whole * (middle - 1)) + middle).long()
    return torch.where(distances.abs() <= middle, distances, logarithmic * distances.sign())


def relative_rows(config: DisentangledConfig, length: int) -> Tensor:
    """Return the row of the relative embeddings for each distance i - j, from 1 - length to length - 1; int64."""
    distances, size = torch.arange(1 - length, length), config.num_relative_rows
    has_buckets = config.position_buckets > 0
    buckets = log_buckets(distances, config.position_buckets, config.max_distance) if has_buckets else distances
    return (buckets + size // 2).clamp(0, size - 1)


class Relative(NamedTuple):
    """Relative embeddings of a batch."""

    embeddings_RD: Tensor
    """Rows that occur in sequences of this length."""
    rows_LL: Tensor
    """Row of `embeddings_RD` for each query and key, int64."""


class DisentangledEmbeddings(Embeddings):
    """Embeddings of tokens, and the table of relative embeddings."""

    def __init__(self, config: DisentangledConfig) -> None:
        super().__init__(config)
        self.config = config
        size = config.hidden_size
        self.relative = nn.Embedding(config.num_relative_rows, size) if config.relative_attention else None
        has_norm = config.relative_attention and config.norm_rel_ebd == "layer_norm"
        self.relative_norm = nn.LayerNorm(size, eps=config.layer_norm_eps) if has_norm else None

    def relative_table(self) -> Tensor:
        """Return the table of relative embeddings [R, D], normalised as set by `norm_rel_ebd`."""
        assert self.relative is not None
        return self.relative.weight if self.relative_norm is None else self.relative_norm(self.relative.weight)

    def relative_to(self, length: int) -> Relative | None:
        """Return the relative embeddings for sequences of a length; None if attention reads none."""
        if not (self.config.has_c2p or self.config.has_p2c):
            return None
        rows = relative_rows(self.config, length)
        first, last = int(rows[0]), int(rows[-1])
        places = torch.arange(length)
        rows_LL = (rows - first)[places[:, None] - places + length - 1]
        table_RD = self.relative_table()
        return Relative(table_RD[first : last + 1], rows_LL.to(table_RD.device))


class Convolution(nn.Conv1d):
    """Convolution over the embeddings of neighbours, added to the output of the first layer."""

    def __init__(self, config: DisentangledConfig) -> None:
        hidden, size = config.hidden_size, config.conv_kernel_size
        super().__init__(hidden, hidden, size, padding=(size - 1) // 2, groups=config.conv_groups)
        self.activation = POOLER_ACTIVATIONS[config.conv_act]
        self.norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def add(self, embeddings_BLD: Tensor, x_BLD: Tensor) -> Tensor:
        """Return the normalised sum of the convolution and x."""
        y_BLD = self(embeddings_BLD.transpose(1, 2)).transpose(1, 2)
        return self.norm(x_BLD + self.activation(self.dropout(y_BLD)))


class DisentangledLayer(Layer):
    """BERT's layer with disentangled attention; the first layer also has the convolution, if there is one."""

    def __init__(self, config: DisentangledConfig, number: int) -> None:
        super().__init__(config)
        self.config, hidden = config, config.hidden_size
        has_own = config.relative_attention and not config.share_att_key
        self.position_key = nn.Linear(hidden, hidden) if has_own and "c2p" in config.pos_att_type else None
        self.position_query = nn.Linear(hidden, hidden) if has_own and "p2c" in config.pos_att_type else None
        self.convolution = Convolution(config) if config.conv_kernel_size and number == 0 else None

    def forward(  # type: ignore[override]
        self, x_BLD: Tensor, mask: Tensor | None, packing: Packing | None = None, relative: Relative | None = None
    ) -> Tensor:
        """Compute the layer.

        Args:
            mask: bool, as for `training.model.encoder.Layer`.
            packing: as there.
            relative: relative embeddings; None if attention reads none.
        """
        q_BHLK, k_BHLK, v_BHLK = split_heads(self.qkv(x_BLD), self.num_heads, packing).unbind(0)
        bias = mask
        if relative is not None:
            bias = self.position_scores(q_BHLK, k_BHLK, relative)
            bias = bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
        scale = self.config.score_scale * self.config.head_size**0.5  # attention divides by the root of the size
        qkv_3BHLK = torch.stack([q_BHLK * scale, k_BHLK, v_BHLK])
        context_BLD = attend(qkv_3BHLK, bias, self.attention_dropout, packing, training=self.training)
        y_BLD = self.after_attention(context_BLD, x_BLD)
        return y_BLD if self.convolution is None else self.convolution.add(x_BLD, y_BLD)

    def position_scores(self, q_BHLK: Tensor, k_BHLK: Tensor, relative: Relative) -> Tensor:
        """Return the terms of the scores that depend on positions, [B, H, L, L]."""
        keys_HRK, queries_HRK = self.project(self.dropout(relative.embeddings_RD))
        shape = (*q_BHLK.shape[:3], q_BHLK.shape[2])
        terms = []
        if keys_HRK is not None:
            scores_BHLR = q_BHLK @ keys_HRK.transpose(-1, -2)
            terms.append(scores_BHLR.gather(-1, relative.rows_LL.expand(shape)))
        if queries_HRK is not None:
            scores_BHLR = k_BHLK @ queries_HRK.transpose(-1, -2)
            terms.append(scores_BHLR.gather(-1, relative.rows_LL.T.expand(shape)).transpose(-1, -2))
        return functools.reduce(torch.add, terms)

    def project(self, table_RD: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return relative embeddings as keys and as queries of each head, [H, R, K]; None for terms that are off.

        Both are multiplied by the scale of the scores.
        """
        return (
            self._project(table_RD, self.position_key, 1) if self.config.has_c2p else None,
            self._project(table_RD, self.position_query, 0) if self.config.has_p2c else None,
        )

    def _project(self, table_RD: Tensor, separate: nn.Linear | None, part: int) -> Tensor:
        """Project by separate weights, or by those of query (part 0) or key (part 1)."""
        if separate is None:
            found_RD = F.linear(table_RD, self.qkv.weight.chunk(3)[part], self.qkv.bias.chunk(3)[part])
        else:
            found_RD = separate(table_RD)
        return (found_RD * self.config.score_scale).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)


class DisentangledEncoder(Encoder):
    """Encoder of DeBERTa v2 and v3."""

    config: DisentangledConfig
    embeddings: DisentangledEmbeddings

    def __init__(self, config: DisentangledConfig, *, with_pooler: bool) -> None:
        layers = [DisentangledLayer(config, number) for number in range(config.num_hidden_layers)]
        super().__init__(config, with_pooler=with_pooler, embeddings=DisentangledEmbeddings(config), layers=layers)
        self.pooler_dropout = Dropout(config.pooler_dropout)
        if config.conv_kernel_size:
            self.unpackable = "the convolution of this network reads neighbouring tokens"

    def encode(self, x_BLD: Tensor, attention_mask: Tensor | None, packing: Packing | None = None) -> Tensor:
        if attention_mask is not None and self.config.conv_kernel_size:  # the convolution sees no padding
            x_BLD = x_BLD * attention_mask[..., None].to(x_BLD.dtype)
        relative = self.embeddings.relative_to(row_length(x_BLD, packing))
        for layer in self.layers:
            x_BLD = layer(x_BLD, padding_mask(attention_mask), packing, relative)
        return x_BLD

    def pool(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return the pooled output [B, D]: a layer over [CLS], after dropout, with an activation."""
        return self.pooler_activation(self.pooler(self.pooler_dropout(hidden_BLD[:, 0])))


@create_encoder.register
def _(config: DisentangledConfig, *, with_pooler: bool) -> Encoder:
    return DisentangledEncoder(config, with_pooler=with_pooler)
