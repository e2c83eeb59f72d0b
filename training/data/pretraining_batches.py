"""Global batches of pretraining examples; all have the same shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.features import Features, collate
from training.data.pretraining import PretrainingExample, PretrainingExamples
from training.loop.types import Batch

IGNORED = -100
"""Label of positions without a prediction."""
TargetsOf = Callable[[Sequence[PretrainingExample]], tuple[dict[str, Tensor], dict[str, float]]]
"""Function from examples to target tensors by name, and the number of targets of each loss."""


class PretrainingData:
    """Global batches of pretraining examples, without the last examples of an epoch that do not fill a batch.

    Args:
        targets: targets of the objective.
    """

    def __init__(self, examples: PretrainingExamples, global_batch_size: int, targets: TargetsOf) -> None:
        self.examples = examples
        self.targets = targets
        self.global_batch_size = global_batch_size
        self._epoch_ahead = 0
        if examples.num_examples(0) < global_batch_size:
            raise ValueError(
                f"the corpus has {examples.num_examples(0)} examples, less than one batch of {global_batch_size}; "
                "lower --global-batch-size or add text"
            )

    def num_batches(self, epoch: int) -> int:
        """Return the number of whole batches in an epoch."""
        return self.examples.num_examples(epoch) // self.global_batch_size

    def batch(self, epoch: int, index: int, part: slice) -> Batch:
        """Return the examples `part` of a global batch."""
        if index >= self.num_batches(epoch) // 2 and self._epoch_ahead <= epoch:  # prepare the next epoch in time
            self._epoch_ahead = epoch + 1
            Thread(target=self.examples.num_examples, args=(epoch + 1,), daemon=True).start()
        first = index * self.global_batch_size
        return self.examples_batch(epoch, range(first + part.start, first + part.stop))

    def examples_batch(self, epoch: int, numbers: Sequence[int]) -> Batch:
        """Return some examples of an epoch as one batch. Masked positions are flat: row * length + column.

        All batches of a size have the same shape; labels that fill it up are ignored. oneDNN and torch.compile keep a
        kernel for each shape, so a new shape in each step would make memory grow for hours.
        """
        source, examples = self.examples, [self.examples.example(epoch, number) for number in numbers]
        features = [Features(input_ids=x.input_ids, token_type_ids=x.token_type_ids) for x in examples]
        arrays = collate(features, length=source.max_seq_length)
        assert arrays["input_ids"].shape[1] == source.max_seq_length
        positions = np.concatenate([row * source.states_per_row + x.masked_positions for row, x in enumerate(examples)])
        targets, counts = self.targets(examples)
        excess = len(examples) * source.max_predictions - len(positions)
        inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        inputs["masked_positions_N"] = torch.from_numpy(np.pad(positions, (0, excess)))
        targets = targets | {"mlm": F.pad(targets["mlm"], (0, excess), value=IGNORED)}
        return Batch(inputs, targets, counts, int(arrays["attention_mask"].sum()))
