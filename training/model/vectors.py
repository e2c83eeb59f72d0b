"""Vectors of texts: hidden states, pooled, with the layers of sentence-transformers; and sparse ones of a masked LM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.base import TaskSettings
from tasks.embedding import EmbeddingSettings, Pooling, activation_of
from tasks.sparse_embedding import SPARSE_VECTOR, SparseEmbeddingSettings
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbeddingSettings
from training.model.config import POOLER_ACTIVATIONS

DENSE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **POOLER_ACTIVATIONS,
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
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
    return _apply_layers(x_BD, settings.layers, dense)


def _apply_layers(x: Tensor, layers: Sequence[str], dense: nn.ModuleDict) -> Tensor:
    """Return vectors, the last axis of `x`, after layers."""
    for index, layer in enumerate(layers):
        if activation := activation_of(layer):
            x = DENSE_ACTIVATIONS[activation](dense[str(index)](x))
        else:
            x = F.normalize(x, dim=-1)
    return x


class Embedder(nn.Module):
    """A network, and what turns its outputs into vectors as the settings of its task say.

    The network is a `BertModel`, or another one with its attributes `bert` and `dense`; below sparse vectors, one with
    the output `logits` [B, L, V].
    """

    def __init__(self, model: nn.Module, settings: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.settings = settings


class SentenceEmbedder(Embedder):
    """An encoder with the output `sentence_embedding` [B, D]."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.model.bert(input_ids, attention_mask, token_type_ids)
        x_BD = embed(hidden_BLD, attention_mask, self.settings, self.model.dense)
        return {"sentence_embedding": F.normalize(x_BD, dim=-1) if self.settings.normalize else x_BD}


class SparseEmbedder(Embedder):
    """A masked LM with the output `sparse_embedding` [B, V].

    Source: `SpladePooling` of sentence-transformers.
    """

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        logits_BLV = self.model(input_ids, attention_mask, token_type_ids)["logits"].float()
        weights_BLV = torch.log1p(F.relu(logits_BLV)) * attention_mask[..., None]
        if self.settings.activation == "log1p_relu":
            weights_BLV = torch.log1p(weights_BLV)
        return {SPARSE_VECTOR: weights_BLV.amax(1) if self.settings.pooling == "max" else weights_BLV.sum(1)}


class TokenEmbedder(Embedder):
    """An encoder with the output `token_embeddings` [B, L, D].

    Source: `ColBERT` of PyLate.
    """

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        x_BLD = self.model.bert(input_ids, attention_mask, token_type_ids).float()
        x_BLD = _apply_layers(x_BLD, self.settings.layers, self.model.dense)
        return {TOKEN_VECTORS: F.normalize(x_BLD, dim=-1) if self.settings.normalize else x_BLD}


EMBEDDERS: dict[type[TaskSettings], Callable[..., nn.Module]] = {
    EmbeddingSettings: SentenceEmbedder,
    SparseEmbeddingSettings: SparseEmbedder,
    TokenEmbeddingSettings: TokenEmbedder,
}
"""Modules that turn outputs of a network into those of a task, by the type of its settings."""


def with_task_outputs(model: nn.Module, settings: TaskSettings) -> nn.Module:
    """Return a network that gives the outputs of a task: itself, or with what turns them into vectors.

    Args:
        model: network of the task, or of its `network`.
        settings: settings of the task.
    """
    embedder = EMBEDDERS.get(type(settings))
    return embedder(model, settings) if embedder else model
