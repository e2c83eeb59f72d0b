"""Starting weights for small budgets: the network looks at neighbours and knows frequencies before its first step.

BERT drawn from a truncated normal first learns how frequent tokens are, then stays on a plateau at that loss until some
heads have found the neighbouring tokens: tens of millions of tokens. Here training starts where it would leave the
plateau. What makes a head local is structure in the products query x key and value x output, as Trockman and Kolter
("Mimetic initialization of self-attention layers", 2023) take it over from trained networks; docs/experiments says
what each part contributes. The network is the same, and any of it may be unlearned.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from training.model.encoder import BertForPreTraining, Layer

AMPLITUDE = 0.1
"""Of the sinusoids; words are drawn with a deviation of 0.02, so that positions weigh most after LayerNorm."""
GAIN = 2.0
"""Of queries and keys: with heads of 64, most of the attention falls within four tokens."""
OFFSETS = (1, -1)
"""Where heads look, in turn."""


@torch.no_grad()
def initialize_local(model: BertForPreTraining, token_counts: np.ndarray) -> None:
    """Change freshly drawn weights; layers above the first, and feed-forward networks, stay as drawn.

    - Positions are sinusoids (Vaswani et al. 2017, section 3.5).
    - In the first layer, query x key turns a position's sinusoids on by the offset of the head: the heads look
      around the next and the previous token in turn. Values and outputs are orthogonal: they pass on what stands there.
    - The bias of the masked LM is the logarithm of each token's frequency.

    Args:
        token_counts: [vocabulary] how often each token occurs in the corpus.

    Raises:
        ValueError: when the size of a head is odd.
    """
    config = model.config
    head_size = config.hidden_size // config.num_attention_heads
    if head_size % 2:
        raise ValueError(f"local initialization needs heads of an even size, not {head_size}")
    frequencies = torch.exp(torch.arange(0, config.hidden_size, 2) * (-math.log(10_000.0) / config.hidden_size))
    positions = model.bert.embeddings.position.weight
    angles = torch.arange(len(positions))[:, None] * frequencies
    positions.copy_(AMPLITUDE * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))
    for stack in model.bert.stacks():
        layer = stack[0]
        assert isinstance(layer, Layer)
        queries, keys, values = layer.qkv.weight.view(3, config.num_attention_heads, head_size, -1)
        for head, query in enumerate(queries):
            query.copy_(GAIN * rotation(frequencies, OFFSETS[head % len(OFFSETS)])[:head_size])
        keys.copy_(GAIN * torch.eye(config.hidden_size)[:head_size])
        nn.init.orthogonal_(values.flatten(0, 1))
        nn.init.orthogonal_(layer.attention_output.weight)
    smoothed = torch.from_numpy(np.asarray(token_counts, dtype=np.float64) + 1)
    model.mlm.bias.copy_((smoothed / smoothed.sum()).log())


def rotation(frequencies: Tensor, offset: float) -> Tensor:
    """[2F, 2F] the matrix that takes the sinusoids (sin, cos in turn) of any position to those `offset` further on."""
    cos, sin = (frequencies * offset).cos(), (frequencies * offset).sin()
    blocks = torch.stack([torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=-2)
    return torch.block_diag(*blocks)
