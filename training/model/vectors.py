"""Sentence embeddings: the last hidden states, pooled, and the layers of sentence-transformers after pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.embedding import EmbeddingSettings, Pooling, activation_of

DENSE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
}
"""Activation functions of Dense layers, by their names in `EmbeddingSettings.layers`."""


def pool(hidden_BLD: Tensor, attention_mask_BL: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector for each sequence, [B, D]. Padding does not change it.

    Source: `Pooling` of sentence-transformers.
    """
    if pooling == "cls":
        return hidden_BLD[:, 0]
    hidden_BLD = hidden_BLD.float()
    if pooling == "lasttoken":
        positions_L = torch.arange(hidden_BLD.shape[1], device=hidden_BLD.device)
        last_B = (attention_mask_BL * positions_L).argmax(1)
        return hidden_BLD[torch.arange(len(hidden_BLD), device=hidden_BLD.device), last_B]
    if pooling == "max":
        return hidden_BLD.masked_fill(attention_mask_BL[..., None] == 0, -torch.inf).amax(1)
    weights_BL1 = attention_mask_BL[..., None].float()
    if pooling == "weightedmean":
        weights_BL1 = weights_BL1 * torch.arange(1, hidden_BLD.shape[1] + 1, device=hidden_BLD.device)[:, None]
    count_B1 = weights_BL1.sum(1)
    return (hidden_BLD * weights_BL1).sum(1) / (count_B1.sqrt() if pooling == "mean_sqrt_len_tokens" else count_B1)


def embed(hidden_BLD: Tensor, attention_mask_BL: Tensor, settings: EmbeddingSettings, dense: nn.ModuleDict) -> Tensor:
    """Return the vector of each sequence before `settings.normalize`, [B, D].

    Args:
        dense: linear layers by their place in `settings.layers`.
    """
    x_BD = torch.cat([pool(hidden_BLD, attention_mask_BL, item) for item in settings.poolings], dim=-1)
    for index, layer in enumerate(settings.layers):
        if activation := activation_of(layer):
            x_BD = DENSE_ACTIVATIONS[activation](dense[str(index)](x_BD))
        else:
            x_BD = F.normalize(x_BD, dim=-1)
    return x_BD


class SentenceEmbedder(nn.Module):
    """An encoder with the output `sentence_embedding` [B, D]."""

    def __init__(self, model: nn.Module, settings: EmbeddingSettings) -> None:
        """Wrap a network.

        Args:
            model: a `BertModel`, or another network with its attributes `bert` and `dense`.
            settings: pooling and layers after it.
        """
        super().__init__()
        self.model: Any = model
        self.settings = settings

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.model.bert(input_ids, attention_mask, token_type_ids)
        x_BD = embed(hidden_BLD, attention_mask, self.settings, self.model.dense)
        return {"sentence_embedding": F.normalize(x_BD, dim=-1) if self.settings.normalize else x_BD}
