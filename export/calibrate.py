"""Which ranges activations have, measured on texts; for static quantisation.

The range of a layer's input is that with the least mean squared error of quantised values: the widest would spend most
of the 256 steps on a few outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from export.network import Range
from tasks import Task
from tasks.batching import run_features
from tasks.features import Features
from training.evaluate import torch_run
from training.model.bert import BertModel

NUM_BINS = 2048
SHARES = tuple(1 - step / 100 for step in range(0, 60, 2))
"""Shares of the whole range that are tried."""


class _Histogram:
    """Values of one activation, seen twice: first for the ends, then for what lies between them."""

    def __init__(self) -> None:
        self.low, self.high = 0.0, 0.0
        self.counts = torch.zeros(NUM_BINS)

    def widen(self, x: Tensor) -> None:
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))

    def count(self, x: Tensor) -> None:
        self.counts += torch.histc(x.float(), NUM_BINS, self.low, self.high)

    def best_range(self) -> Range:
        """Both ends shrunk by the same share."""
        centres = self.low + (self.high - self.low) * (torch.arange(NUM_BINS) + 0.5) / NUM_BINS
        ranges = [Range.between(share * self.low, share * self.high) for share in SHARES]
        return min(ranges, key=lambda item: float((self.counts * (_rounded(centres, item) - centres) ** 2).sum()))


def _rounded(x: Tensor, known: Range) -> Tensor:
    integers = torch.clamp(torch.round(x / known.scale) + known.zero_point, 0, 255)
    return (integers - known.zero_point) * known.scale


def calibrate(
    model: BertModel,
    task: Task[Any, Any, Any, Any],
    features: Sequence[Features],
    layers: Sequence[str],
    *,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[str, Range]:
    """The range of what each layer takes, by its name, over sequences.

    Args:
        features: a few hundred sequences of the kind to come; none for no ranges.
        layers: as `Network.layers` names them.
        progress: called with a number of finished sequences, each of which is run twice.
    """
    run = torch_run(model, task)
    histograms = {name: _Histogram() for name in layers if features}
    for see in (_Histogram.widen, _Histogram.count):
        with _watching(model, histograms, see):
            # One at a time: padding would be counted, too.
            run_features(task, features, run, max_batch_tokens=1, progress=progress)
    return {name: histogram.best_range() for name, histogram in histograms.items()}


@contextmanager
def _watching(
    model: nn.Module, histograms: Mapping[str, _Histogram], see: Callable[[_Histogram, Tensor], None]
) -> Iterator[None]:
    """Show each layer's input to its histogram."""
    hooks = [_hook(model, name, partial(see, histogram)) for name, histogram in histograms.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(model: nn.Module, layer: str, see: Callable[[Tensor], None]) -> RemovableHandle:
    if layer == "mlm.decoder":  # no module: the product with the word embeddings, after the norm
        return model.get_submodule("mlm.norm").register_forward_hook(lambda module, inputs, output: see(output))
    return model.get_submodule(layer).register_forward_pre_hook(lambda module, inputs: see(inputs[0]))
