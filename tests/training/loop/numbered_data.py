"""Data whose batches contain their number."""

import torch

from training.loop.types import Batch


class NumberedData:
    """Data whose batches contain their number, with one target a sequence."""

    def __init__(self, num_batches=5, asked=None):
        self.count = num_batches
        self.asked = [] if asked is None else asked

    def num_batches(self, epoch):
        return self.count + epoch

    def batch(self, epoch, index, part):
        self.asked.append((epoch, index, part.start, part.stop))
        ids = torch.full((part.stop - part.start, 4), 5 + (epoch + index) % 40)
        return Batch({"input_ids": ids}, {}, {"loss": len(ids)}, ids.numel())
