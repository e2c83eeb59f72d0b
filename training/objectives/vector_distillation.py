"""Distillation of vectors: the student learns the vectors of teachers, and the similarities between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.embedding import EmbeddingSettings
from training.loop.distributed import World
from training.objectives.base import LabelledFeatures, Targets, VectorObjective

VECTOR_LOSS, SIMILARITY_LOSS = "vector_loss", "similarity_loss"


class VectorDistillation(VectorObjective):
    """Distance to the teacher's vector, 1 - cosine, and differences of the similarities of all texts of a batch.

    Args:
        settings: pooling of the student's vectors, and layers after it.
        dense: linear layers by their place in `settings.layers`; all are trained.
        teacher_vectors: function from numbers of texts to the vectors of the teacher [texts, size], of length 1.
        axes: [teacher's size, student's size]; projection of the teacher's vectors.
        sizes: the whole size, then those to which vectors are cut, each with the same losses (Matryoshka, Kusupati et
            al. 2022).
        similarity_weight: weight of the loss of similarities.
        world: all processes; their texts are compared, too.
    """

    def __init__(
        self,
        settings: EmbeddingSettings,
        dense: nn.ModuleDict,
        teacher_vectors: Callable[[np.ndarray], np.ndarray],
        *,
        axes: np.ndarray,
        sizes: Sequence[int],
        similarity_weight: float,
        world: World,
    ) -> None:
        super().__init__(settings, dense, world)
        self.teacher_vectors = teacher_vectors
        self.axes = axes
        self.sizes = tuple(sizes)
        self.weights = {SIMILARITY_LOSS: similarity_weight}

    def targets(self, examples: Sequence[LabelledFeatures]) -> Targets:
        """Return the vectors of the teacher, and the same projected."""
        vectors = self.teacher_vectors(np.array([item.example for item in examples]))
        arrays = {"vectors": vectors, "projected": vectors @ self.axes}
        targets = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return targets, dict.fromkeys((VECTOR_LOSS, SIMILARITY_LOSS), len(examples))

    def vector_losses(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return both losses, summed over the texts of this process, and averaged over the sizes."""
        found = []
        for size in self.sizes:
            distance = (1 - F.cosine_similarity(vectors[:, :size], targets["projected"][:, :size])).sum()
            found.append((distance, similarity_loss(vectors[:, :size], targets["vectors"], self.world)))
        distances, differences = (torch.stack(losses).mean() for losses in zip(*found, strict=True))
        return {VECTOR_LOSS: distances, SIMILARITY_LOSS: differences}


def similarity_loss(vectors: Tensor, targets: Tensor, world: World) -> Tensor:
    """Return the mean squared difference of a text's cosines to all others, summed over this process's texts.

    Args:
        vectors: [texts, size], of the student.
        targets: [texts, teacher's size], of length 1.
        world: all processes; their texts are compared, too.

    Source: Park et al. 2019 (relational knowledge distillation), with cosines.
    """
    vectors = F.normalize(vectors, dim=-1)
    all_vectors, all_targets = world.gather(vectors), world.gather(targets)
    differences = vectors @ all_vectors.T - targets @ all_targets.T
    return differences.square().sum() / max(1, len(all_vectors) - 1)  # a text's cosine to itself is 1 in both
