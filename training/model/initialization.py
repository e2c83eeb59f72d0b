"""Local initialization, for small budgets: attention to neighbours and token frequencies from the first step on.

From a truncated normal, BERT first learns token frequencies. It then stays on a plateau at that loss, for tens of
millions of tokens, until some heads attend to neighbouring tokens. Local initialization starts behind the plateau. It
gives query x key and value x output the structure of trained networks (Trockman and Kolter 2023, "Mimetic
initialization of self-attention layers"); docs/experiments measures each part. The network is the same, and training
can change all of it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from training.model.encoder import Layer
from training.model.heads import BertForPreTraining
from training.model.modernbert_encoder import ModernBertConfig, ModernBertLayer
from training.model.rotary import rotary_table, rotate

AMPLITUDE = 0.1
"""Amplitude of the sinusoids. Word embeddings have a deviation of 0.02, so positions dominate after LayerNorm."""
GAIN = 2.0
"""Scale of queries and keys: with heads of size 64, most attention falls within four tokens."""
NUM_FAST = 6
"""Number of rotary frequencies that heads use to attend to neighbours: from 1 down to about 0.15 a token."""
CONTRAST = 1.5
"""Weight of each of these frequencies in an attention score: a neighbour is ahead of the token itself by 1.3."""
OFFSETS = (1, -1)
"""Offsets of the tokens that the heads attend to, alternately."""


@torch.no_grad()
def initialize_local(model: BertForPreTraining, token_counts: np.ndarray) -> None:
    """Change random weights; layers above the first, and feed-forward networks, keep theirs.

    - In the first layer, query x key has its peak at the offset of the head, so that the heads attend to the next and
      the previous token alternately. Values and outputs become orthogonal, so that they pass tokens on.
    - The bias of the masked LM becomes the logarithm of each token's frequency.

    Args:
        token_counts: [vocabulary] count of each token in the corpus.

    Raises:
        ValueError: if the size of a head is odd.
    """
    config = model.config
    if config.head_size % 2:
        raise ValueError(f"local initialization needs heads of an even size: `{config.head_size}`")
    assert model.mlm.bias is not None
    if isinstance(config, ModernBertConfig):
        _attend_by_rotation(model)
    else:
        _attend_by_sinusoids(model)
    for layer in model.bert.layers[:: config.num_hidden_layers]:  # the first layer of each stack
        assert isinstance(layer, Layer | ModernBertLayer)
        nn.init.orthogonal_(layer.qkv.weight[2 * config.hidden_size :])
        nn.init.orthogonal_(layer.attention_output.weight)
    smoothed = torch.from_numpy(np.asarray(token_counts, dtype=np.float64) + 1)
    model.mlm.bias.copy_((smoothed / smoothed.sum()).log())


def _attend_by_sinusoids(model: BertForPreTraining) -> None:
    """Make position embeddings sinusoids (Vaswani et al. 2017, section 3.5), which query x key shifts by the offset."""
    config = model.config
    assert model.bert.embeddings.position is not None
    frequencies = torch.exp(torch.arange(0, config.hidden_size, 2) * (-math.log(10_000.0) / config.hidden_size))
    positions = model.bert.embeddings.position.weight
    angles = torch.arange(len(positions))[:, None] * frequencies
    positions.copy_(AMPLITUDE * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))
    for layer in model.bert.layers[:: config.num_hidden_layers]:
        assert isinstance(layer, Layer)
        queries, keys, _ = layer.qkv.weight.view(3, config.num_attention_heads, config.head_size, -1)
        for head, query in enumerate(queries):
            query.copy_(GAIN * rotation(frequencies, OFFSETS[head % len(OFFSETS)])[: config.head_size])
        keys.copy_(GAIN * torch.eye(config.hidden_size)[: config.head_size])


def _attend_by_rotation(model: BertForPreTraining) -> None:
    """Give all words a common part, from which queries and keys make a constant vector, rotated by the offset.

    Rotary positions turn queries and keys by their position, so the product of constant vectors depends on the distance
    alone. Only the fastest frequencies are used, as the others hardly tell neighbours apart.
    """
    config = model.config
    assert isinstance(config, ModernBertConfig)
    words = model.bert.embeddings.word.weight
    common = torch.randn(config.hidden_size)
    common /= common.norm()
    words += words.std() * math.sqrt(config.hidden_size) * common
    half = config.head_size // 2
    constant = (torch.arange(config.head_size) % half < NUM_FAST).float()
    cos, sin = rotary_table(2, config.frequencies(local=config.is_local(0)))
    gain = math.sqrt(CONTRAST * math.sqrt(config.head_size) / config.hidden_size)
    layer = model.bert.layers[0]
    assert isinstance(layer, ModernBertLayer)
    queries, keys, _ = layer.qkv.weight.view(3, config.num_attention_heads, config.head_size, -1)
    for head in range(config.num_attention_heads):
        offset = OFFSETS[head % len(OFFSETS)]
        queries[head] += gain * torch.outer(rotate(constant, cos[1], offset * sin[1]), common)
        keys[head] += gain * torch.outer(constant, common)


def rotation(frequencies: Tensor, offset: float) -> Tensor:
    """Return the matrix [2F, 2F] that maps a position's sinusoids (alternately sin, cos) to those `offset` later."""
    cos, sin = (frequencies * offset).cos(), (frequencies * offset).sin()
    blocks = torch.stack([torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=-2)
    return torch.block_diag(*blocks)
