"""Sentence embeddings: the last hidden state, pooled and normalised."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tasks.embedding import EmbeddingSettings, Pooling
from training.model.heads import BertModel


def pool(hidden_BLD: Tensor, attention_mask_BL: Tensor, pooling: Pooling) -> Tensor:
    """Return the hidden state of [CLS], or the mean over tokens, [B, D]."""
    if pooling == "cls":
        return hidden_BLD[:, 0]
    mask_BL1 = attention_mask_BL[..., None]
    return (hidden_BLD.float() * mask_BL1).sum(1) / mask_BL1.sum(1)


class SentenceEmbedder(nn.Module):
    """An encoder with the output `sentence_embedding` [B, D]."""

    def __init__(self, model: BertModel, settings: EmbeddingSettings) -> None:
        super().__init__()
        self.model = model
        self.settings = settings

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.model.bert(input_ids, attention_mask, token_type_ids)
        vectors_BD = pool(hidden_BLD, attention_mask, self.settings.pooling)
        return {"sentence_embedding": F.normalize(vectors_BD, dim=-1) if self.settings.normalize else vectors_BD}
