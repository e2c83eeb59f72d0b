"""BERT encoder: embeddings, post-LN transformer layers and the pooler, with the options of other families.

Devlin et al. 2018 (arXiv 1810.04805), section 3 and appendix A.2. Details follow modeling.py of google-research/bert,
except that GELU is computed exactly, as in Hugging Face checkpoints. Query, key and value are one matrix product here;
`training.model.architectures` translates configs and weight names of each family to and from Hugging Face's. Heads are
in `training.model.heads`.

Shape suffixes: B batch, L length, D hidden size, H attention heads, K head size, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model import cpu
from training.model.config import ACTIVATIONS, POOLER_ACTIVATIONS, EncoderConfig
from training.model.packing import Packing, find_packing
from training.model.rotary import rotate_heads


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
    """Normalised sum of word, position and token type embeddings, those that the config has.

    Embeddings of another size are projected to the hidden size.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.padding_id = config.pad_token_id if config.skips_padding_positions else None
        size = config.width_of_embeddings
        self.word = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_position_embeddings, size) if config.has_position_embeddings else None
        self.token_type = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.projects_first = config.projects_embeddings_first
        norm_size = config.hidden_size if self.projects_first else size
        self.norm = nn.LayerNorm(norm_size, eps=config.layer_norm_eps, bias=config.norm_bias)
        has_projection, bias = size != config.hidden_size, not self.projects_first
        self.projection = nn.Linear(size, config.hidden_size, bias=bias) if has_projection else None
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor, position_ids_BL: Tensor | None = None) -> Tensor:
        """Return the embeddings [B, L, D].

        Args:
            position_ids_BL: rows of the table of positions; None for those of `position_ids`.
        """
        x_BLD = self.word(input_ids_BL)
        if self.token_type is not None:
            has_types = self.token_type.num_embeddings > 1
            x_BLD = x_BLD + (self.token_type(token_type_ids_BL) if has_types else self.token_type.weight[0])
        if self.position is not None:
            x_BLD = x_BLD + self.positions(self.position, input_ids_BL, position_ids_BL)
        if self.projects_first:
            return self.dropout(self.norm(x_BLD if self.projection is None else self.projection(x_BLD)))
        x_BLD = self.dropout(self.norm(x_BLD))
        return x_BLD if self.projection is None else self.projection(x_BLD)

    def positions(self, table: nn.Embedding, input_ids_BL: Tensor, position_ids_BL: Tensor | None) -> Tensor:
        """Return the position embeddings, [L, D] or [B, L, D]."""
        if self.padding_id is None and position_ids_BL is None:  # a slice is cheaper than a look-up for each token
            return table.weight[: input_ids_BL.shape[1]]
        return table(self.position_ids(input_ids_BL) if position_ids_BL is None else position_ids_BL)

    def position_ids(self, input_ids_BL: Tensor) -> Tensor:
        """Return the row of each token in the table of positions, [B, L]."""
        if self.padding_id is None:
            return torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device).expand_as(input_ids_BL)
        is_token_BL = (input_ids_BL != self.padding_id).long()
        return self.padding_id + is_token_BL.cumsum(1) * is_token_BL


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

    def forward(
        self,
        x_BLD: Tensor,
        mask: Tensor | None,
        packing: Packing | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Compute the layer.

        Args:
            mask: bool, true where a token may attend, or floats to add to the scores; broadcast to [B, H, L, L]. None
                for everywhere.
            packing: rows of attention, if `x_BLD` is a packed sequence; `mask` is of these rows.
            rotation: cosine and sine of `rotary_table`, broadcast to [B, H, L, F], for rotary positions.
        """
        qkv_3BHLK = split_heads(self.qkv(x_BLD), self.num_heads, packing)
        if rotation is not None:
            qkv_3BHLK = rotate_heads(qkv_3BHLK, rotation)
        context_BLD = attend(qkv_3BHLK, mask, self.attention_dropout, packing, training=self.training)
        return self.after_attention(context_BLD, x_BLD)

    def after_attention(self, context_BLD: Tensor, x_BLD: Tensor) -> Tensor:
        """Return the output of the layer.

        Args:
            context_BLD: attended values.
            x_BLD: input of the layer.
        """
        # LayerNorm follows the residual (post-LN), as in 2018: deep networks then need warm-up
        x_BLD = self.attention_norm(self.dropout.add(self.attention_output(context_BLD), x_BLD))
        return self.output_norm(self.dropout.add(self.feed_forward(x_BLD), x_BLD))

    def feed_forward(self, x_BLD: Tensor) -> Tensor:
        """Return the output of the feed-forward network."""
        return self.output(self.activation(self.intermediate(x_BLD)))


def split_heads(qkv_BLT: Tensor, num_heads: int, packing: Packing | None) -> Tensor:
    """Return queries, keys and values of all heads in the rows of attention, [3, B, H, L, K].

    Args:
        qkv_BLT: query, key and value side by side, T = 3 D.
        packing: as in `Layer.forward`.
    """
    qkv_BLT = qkv_BLT if packing is None else packing.to_rows(qkv_BLT)
    return qkv_BLT.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)


def attend(
    qkv_3BHLK: Tensor, mask: Tensor | None, dropout: float, packing: Packing | None = None, *, training: bool
) -> Tensor:
    """Compute scaled dot-product attention of all heads, side by side: [B, L, D].

    Args:
        mask, packing: as in `Layer.forward`.
        dropout: dropout rate of the probabilities in training.
    """
    if training and qkv_3BHLK.device.type == "cpu":  # its backward pass is faster
        context_BHLK = cpu.attention(qkv_3BHLK, mask, dropout)
    else:
        q, k, v = qkv_3BHLK.unbind(0)
        rate = dropout if training else 0.0
        context_BHLK = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)
    context_BLD = context_BHLK.transpose(1, 2).flatten(2)
    return context_BLD if packing is None else packing.from_rows(context_BLD)


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Return the mask [B, 1, 1, L] that keeps tokens from attending to padding; None without padding.

    Args:
        attention_mask: [B, L]; or [B, L, L], queries by keys, which becomes [B, 1, L, L].
    """
    if attention_mask is None:
        return None
    mask = attention_mask.bool()[:, None]
    return mask if mask.dim() == 4 else mask[:, :, None]


def row_length(x_BLD: Tensor, packing: Packing | None) -> int:
    """Return the length of the rows of attention, which differs from that of a packed sequence."""
    return x_BLD.shape[1] if packing is None else packing.row_shape[1]


def distance_buckets(length: int, num_buckets: int, max_distance: int = 128) -> Tensor:
    """Return the bucket of the distance between each two tokens, [L, L] int64: queries by keys.

    The upper half of the buckets is for keys after the query. In each half, the first buckets hold one distance each;
    those of the others grow logarithmically up to `max_distance`.

    Source: `relative_position_bucket` of MPNet in transformers, as in T5 (Raffel et al. 2019, arXiv 1910.10683).
    """
    positions = torch.arange(length)
    distance = positions[None, :] - positions[:, None]
    half = num_buckets // 2
    exact = half // 2
    far = distance.abs().clamp(min=1).float() / exact
    logarithmic = exact + (far.log() / math.log(max_distance / exact) * (half - exact)).long()
    bucket = torch.where(distance.abs() < exact, distance.abs(), logarithmic.clamp(max=half - 1))
    return bucket + half * (distance > 0)


class Encoder(nn.Module):
    """Embeddings, layers and pooler, below every head."""

    packs = False
    """True to pack the batches of training (see `training.model.packing`); the training loop sets it."""
    unpackable = ""
    """Reason why batches cannot be packed; empty if they can."""
    new_parts: tuple[str, ...] = ()
    """Starts of the names of weights that fine-tuning may add to those of a checkpoint."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        with_pooler: bool,
        embeddings: Embeddings | None = None,
        layers: Sequence[nn.Module] | None = None,
    ) -> None:
        """Create an encoder; other families pass their own embeddings or layers."""
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        self.layers = nn.ModuleList(layers or [Layer(config) for _ in range(config.num_layer_weights)])
        self.frozen = False
        self.pooler_activation = POOLER_ACTIVATIONS[config.pooler_act]
        num_buckets = config.relative_attention_num_buckets
        self.relative_bias = nn.Embedding(num_buckets, config.num_attention_heads) if num_buckets else None
        if with_pooler:
            self.pooler = nn.Linear(config.output_size, config.hidden_size)

    def forward(self, input_ids_BL: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor) -> Tensor:
        """Return the last hidden state [B, L, D].

        Args:
            attention_mask_BL: 1 for tokens and 0 for padding; None for no padding.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):  # frozen layers keep no activations
            packing = None
            if attention_mask_BL is not None and self.packs and self.training:
                packing = find_packing(attention_mask_BL, self.config)
            if packing is None:
                return self.encode(self.embeddings(input_ids_BL, token_type_ids_BL), attention_mask_BL)
            inputs = input_ids_BL, token_type_ids_BL, self.embeddings.position_ids(input_ids_BL)
            x_1TD = self.embeddings(*(packing.pack(values_BL) for values_BL in inputs))
            return packing.unpack(self.encode(x_1TD, packing.mask_PRR, packing))

    def encode(self, x_BLD: Tensor, attention_mask: Tensor | None, packing: Packing | None = None) -> Tensor:
        """Compute the layers; other families have custom layers.

        Args:
            x_BLD: embeddings.
            attention_mask: as for `padding_mask`.
            packing: as in `Layer.forward`.
        """
        mask = self.attention_bias(attention_mask, row_length(x_BLD, packing))
        num_passes = self.config.num_hidden_layers // self.config.num_layer_weights  # of shared layers (ALBERT)
        for layer in [*self.layers] * num_passes:
            x_BLD = layer(x_BLD, mask, packing)
        return x_BLD

    def attention_bias(self, attention_mask: Tensor | None, length: int) -> Tensor | None:
        """Return the padding mask or, with relative positions, floats [B, H, L, L] to add to the scores."""
        mask = padding_mask(attention_mask)
        if self.relative_bias is None:
            return mask
        buckets_LL = distance_buckets(length, self.relative_bias.num_embeddings).to(self.relative_bias.weight.device)
        bias = self.relative_bias(buckets_LL).permute(2, 0, 1)[None]
        return bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)

    def pool(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return the pooled output [B, D]: a layer over [CLS] with an activation, tanh in BERT."""
        return self.pooler_activation(self.pooler(hidden_BLD[:, 0]))

    def token_states(self, hidden_BLD: Tensor) -> Tensor:
        """Return what heads over each token read, [B, L, D]."""
        return hidden_BLD

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


@functools.singledispatch
def create_encoder(config: EncoderConfig, *, with_pooler: bool) -> Encoder:
    """Return a new encoder of this shape. Families with a custom encoder register it next to its class."""
    return Encoder(config, with_pooler=with_pooler)
