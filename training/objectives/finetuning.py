"""Labelled features of a task, and their batches in fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch

from tasks import AnyTask
from tasks.features import collate
from training.data.examples import Examples, encode_examples
from training.data.pretraining import random_generator
from training.loop.types import Batch
from training.objectives.base import LabelledFeatures, LabelledObjective
from training.objectives.registry import OBJECTIVES

LENGTH_STEP = 16
"""Sequences are padded to a multiple of this number of tokens, or to the longest of the data, so that shapes are few
(see `training.data.pretraining_batches`)."""


def label_examples(task: AnyTask, examples: Examples) -> tuple[list[LabelledFeatures], Examples]:
    """Return the labelled features of usable examples, and the other examples (see `TaskObjective.is_usable`).

    Raises:
        ValueError: as `encode_examples`.
    """
    objective = OBJECTIVES[task.name]
    left_out = examples.select(n for n, example in enumerate(examples) if not objective.is_usable(example))
    items = [
        replace(item, example=number)
        for number, (example, features) in enumerate(zip(examples, encode_examples(task, examples), strict=True))
        if objective.is_usable(example)
        for item in objective.label(task, example, features)
    ]
    return items, left_out


@dataclass
class FinetuningData:
    """Global batches of labelled features, shuffled anew each epoch; features of similar length share a batch."""

    items: Sequence[LabelledFeatures]
    objective: LabelledObjective
    _: KW_ONLY
    global_batch_size: int
    seed: int
    pad_id: int

    def __post_init__(self) -> None:
        self._longest = max(item.length for item in self.items)
        self._cached: tuple[int, np.ndarray] = (-1, np.zeros(0))

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch; the last is filled up from the start."""
        return -(-len(self.items) // self.global_batch_size)

    def batch(self, epoch: int, index: int, part: slice) -> Batch:
        """Return the items `part` of a global batch."""
        if self._cached[0] != epoch:
            self._cached = (epoch, batch_order(self.items, self.global_batch_size, self.seed, epoch))
        chosen = [self.items[number] for number in self._cached[1][index][part]]
        features = [sequence for item in chosen for sequence in item.features]
        longest = max(item.length for item in chosen)
        padded = min(longest + -longest % LENGTH_STEP, self._longest)
        arrays = collate(features, pad_id=self.pad_id, length=padded)
        targets, counts = self.objective.targets(chosen)
        inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Batch(inputs, targets, counts, int(arrays["attention_mask"].sum()))


def batch_order(items: Sequence[LabelledFeatures], global_batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Return item numbers of an epoch [batches, global_batch_size]: shuffled, then sorted by length in 32 batches."""
    rng, lengths = random_generator(seed, epoch, stream=0), np.array([item.length for item in items])
    num_batches = -(-len(items) // global_batch_size)
    order = np.resize(rng.permutation(len(items)), num_batches * global_batch_size)
    pool = 32 * global_batch_size
    pools = [order[first : first + pool] for first in range(0, len(order), pool)]
    batches = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
    return rng.permutation(np.concatenate(batches).reshape(-1, global_batch_size))
