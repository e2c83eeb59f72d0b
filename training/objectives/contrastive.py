"""Contrastive objectives: a text's positive among the texts of the batch (InfoNCE), or pairs with scores (CoSENT)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.embedding import EmbeddingSettings
from training.loop.distributed import World
from training.loop.types import Batch
from training.objectives.base import VectorObjective


class ContrastiveObjective(VectorObjective):
    """Cross entropy of positives among all candidates of the global batch or, for pairs with scores, their order.

    Args:
        settings: pooling of the vectors, and layers after it.
        dense: linear layers by their place in `settings.layers`, trained with the network.
        with_head: True to train [CLS] through BERT's pooler.
        temperature: divides the cosines.
        world: all processes; their texts are compared, too.
    """

    def __init__(
        self, settings: EmbeddingSettings, dense: nn.ModuleDict, *, with_head: bool, temperature: float, world: World
    ) -> None:
        super().__init__(settings, dense, world)
        self.with_head = with_head
        self.temperature = temperature

    def vectors(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the vectors of a batch, fp32 [texts, views, size]."""
        if self.with_head:
            vectors = network(**batch.inputs)["pooler_output"].float()
        else:
            vectors = super().vectors(network, batch)
        return vectors.view(len(batch.targets["labels"]), -1, vectors.shape[-1])

    def vector_losses(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss, summed over the texts of this process."""
        labels = targets["labels"]  # scores [pairs, 1], or whole numbers of texts [texts, views]
        loss = cosent if labels.is_floating_point() else info_nce
        return {"loss": loss(vectors, labels, temperature=self.temperature, world=self.world)}


# InfoNCE


def info_nce(vectors: Tensor, numbers: Tensor, *, temperature: float, world: World) -> Tensor:
    """Return the cross entropy of each text's positive by cosine / temperature, summed over this process's texts.

    The candidates are the positives and negatives of all processes. A candidate that equals the text or its positive,
    and a positive of the same text, is left out, as it is no negative.

    Args:
        vectors: [texts, views, hidden]; views are the text, its positive, and its negatives.
        numbers: [texts, views] int64; equal numbers for equal texts.
        temperature: divides the cosines.
        world: all processes.

    Source: Gao et al. 2021 (SimCSE), equations 1, 4 and 5. Without repeated texts, it is the
    MultipleNegativesRankingLoss of sentence-transformers.
    """
    vectors = F.normalize(vectors, dim=-1)
    all_vectors, all_numbers = world.gather(vectors), world.gather(numbers)
    candidates = all_vectors[:, 1:].transpose(0, 1).flatten(0, 1)  # all positives, then all first negatives, ...
    own = torch.arange(len(vectors), device=vectors.device) + world.rank * len(vectors)
    no_negative = _no_negatives(numbers, all_numbers)
    no_negative[torch.arange(len(own), device=own.device), own] = False
    logits = vectors[:, 0] @ candidates.T / temperature
    return F.cross_entropy(logits.masked_fill(no_negative, -torch.inf), own, reduction="sum")


def _no_negatives(numbers: Tensor, all_numbers: Tensor) -> Tensor:
    """Return which candidates [texts, candidates] are no negatives of a text; its positive is one of them."""
    same = (numbers[:, :2, None] == all_numbers[:, 1:].T.flatten()).any(1)
    same[:, : len(all_numbers)] |= numbers[:, :1] == all_numbers[:, 0]
    return same


def without_negatives(numbers: Tensor) -> Tensor:
    """Return which texts of a global batch have no negative in it, so that their loss is 0.

    Args:
        numbers: [texts, views], as for `info_nce`.
    """
    return _no_negatives(numbers, numbers).all(1)


# CoSENT


def cosent(vectors: Tensor, scores: Tensor, *, temperature: float, world: World) -> Tensor:
    """Return how far cosines are from the order of the scores, times the number of this process's pairs.

    It is log(1 + sum of exp((cosine of one pair - cosine of another) / temperature)) over all pairs of which the first
    has the lower score.

    Args:
        vectors: [pairs, 2, hidden].
        scores: [pairs, 1]; greater for more similar texts.
        temperature: divides the cosines.
        world: all processes; their pairs are compared, too.

    Source: Huang et al. 2024 (CoSENT), as CoSENTLoss of sentence-transformers, of whose mean over the global batch this
    is the part of one process.
    """
    cosines = world.gather(F.cosine_similarity(vectors[:, 0], vectors[:, 1])) / temperature
    scores = world.gather(scores)
    differences = (cosines[:, None] - cosines).masked_fill(scores >= scores.T, -torch.inf)
    return F.pad(differences.flatten(), (1, 0)).logsumexp(0) * len(vectors)
