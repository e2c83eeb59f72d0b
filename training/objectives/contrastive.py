"""Contrastive objective (InfoNCE) with in-batch negatives, as in SimCSE (Gao et al. 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.embedding import EmbeddingSettings
from training.loop.distributed import World
from training.loop.types import Batch
from training.model.vectors import embed
from training.objectives.base import LabelledObjective


class ContrastiveObjective(LabelledObjective):
    """Cross entropy of a text's positive among the positives of the global batch and all negatives.

    Args:
        settings: pooling of the vectors, and layers after it.
        dense: linear layers by their place in `settings.layers`, trained with the network.
        with_head: True to train [CLS] through BERT's pooler.
        temperature: divides the cosines.
        world: all processes; their texts are negatives, too.
    """

    def __init__(
        self, settings: EmbeddingSettings, dense: nn.ModuleDict, *, with_head: bool, temperature: float, world: World
    ) -> None:
        self.settings = settings
        self.dense = dense
        self.with_head = with_head
        self.temperature = temperature
        self.world = world

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the loss, summed over the texts of this process."""
        numbers = batch.targets["labels"]
        outputs, mask = network(**batch.inputs), batch.inputs["attention_mask"]
        if self.with_head:
            vectors = outputs["pooler_output"]
        else:
            vectors = embed(outputs["last_hidden_state"], mask, self.settings, self.dense)
        with torch.autocast(vectors.device.type, enabled=False):  # in bf16, cosines over temperature are off by 0.1
            views = vectors.float().view(*numbers.shape, -1)
            return {"loss": info_nce(views, numbers, temperature=self.temperature, world=self.world)}


def info_nce(vectors: Tensor, numbers: Tensor, *, temperature: float, world: World) -> Tensor:
    """Return the cross entropy of each text's positive by cosine / temperature, summed over this process's texts.

    The candidates are the positives and negatives of all processes. A candidate that equals the text or its positive,
    and a positive of the same text, is left out, as it is no negative.

    Args:
        vectors: [texts, views, hidden]; views are the text, its positive, and perhaps its negative.
        numbers: [texts, views] int64; equal numbers for equal texts.
        temperature: divides the cosines.
        world: all processes.

    Source: Gao et al. 2021, equations 1, 4 and 5. Without negatives and repeated texts, it is the
    MultipleNegativesRankingLoss of sentence-transformers.
    """
    vectors = F.normalize(vectors, dim=-1)
    all_vectors, all_numbers = world.gather(vectors), world.gather(numbers)
    candidates = all_vectors[:, 1:].transpose(0, 1).flatten(0, 1)  # all positives, then all negatives
    own = torch.arange(len(vectors), device=vectors.device) + world.rank * len(vectors)
    same = (numbers[:, :2, None] == all_numbers[:, 1:].T.flatten()).any(1)
    same[:, : len(all_numbers)] |= numbers[:, :1] == all_numbers[:, 0]
    same[torch.arange(len(own), device=own.device), own] = False
    logits = vectors[:, 0] @ candidates.T / temperature
    return F.cross_entropy(logits.masked_fill(same, -torch.inf), own, reduction="sum")
