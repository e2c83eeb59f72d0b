"""Calibration for static quantisation: measure the ranges of activations on sample texts.

The chosen range of a layer's input minimises the mean squared error of quantised values. The full range would spend
most of the 256 steps on a few outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from export.network import Range, reads_only_cls
from tasks import AnyTask
from tasks.batching import run_features
from tasks.features import Features
from training.checkpoint.evaluation import torch_run
from training.model.heads import BertModel

NUM_BINS = 8192
FRACTIONS = tuple(1 - step / 100 for step in range(0, 60, 2))
"""Fractions of the full range to try."""
_MAX_ACTIVATION = 1e18
"""Largest activation whose square is finite in float32."""


class Histogram:
    """Histogram of one activation, symmetric about zero; the bins double in width when larger values arrive."""

    def __init__(self) -> None:
        self.low, self.high, self.limit = 0.0, 0.0, 0.0
        self.counts = torch.zeros(NUM_BINS)

    def add(self, x: Tensor) -> None:
        """Add all values of a tensor, of any shape.

        Raises:
            ValueError: if values are NaN, infinite or close to overflow.
        """
        x = x.float()
        low, high = float(x.min()), float(x.max())
        if not max(-low, high) < _MAX_ACTIVATION:
            raise ValueError(f"activations overflow int8 quantisation: {low:.0e} to {high:.0e}; train the model again")
        self.low, self.high = min(self.low, low), max(self.high, high)
        size = max(-self.low, self.high)
        self.limit = self.limit or size
        while self.limit < size:
            self.limit *= 2
            quarter = torch.zeros(NUM_BINS // 4)
            self.counts = torch.cat([quarter, self.counts.view(-1, 2).sum(1), quarter])
        if self.limit:  # 0 while all values are zeros
            self.counts += torch.histc(x, NUM_BINS, -self.limit, self.limit)

    def best_range(self) -> Range:
        """Return the range with the least squared error, with both ends shrunk by the same fraction."""
        centres = self.limit * ((2 * torch.arange(NUM_BINS) + 1) / NUM_BINS - 1)
        ranges = [Range.between(fraction * self.low, fraction * self.high) for fraction in FRACTIONS]
        return min(ranges, key=lambda item: float((self.counts * (_quantised(centres, item) - centres) ** 2).sum()))


def _quantised(x: Tensor, item: Range) -> Tensor:
    """Quantise and dequantise."""
    integers = torch.clamp(torch.round(x / item.scale) + item.zero_point, 0, 255)
    return (integers - item.zero_point) * item.scale


Observer = Callable[[Tensor], None]


def calibrate(
    model: BertModel,
    task: AnyTask,
    features: Sequence[Features],
    layers: Sequence[str],
    *,
    smoothing_factors: Mapping[str, np.ndarray] | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Range]:
    """Return the range of each layer's input, by the layer's name.

    Args:
        features: a few hundred typical sequences; empty for no ranges.
        layers: names as in `Network.layers`.
        smoothing_factors: as in `Network.smoothing_factors`.
        progress: called with the number of sequences just finished.
    """
    histograms = {name: Histogram() for name in layers if features}
    factors = {name: torch.from_numpy(values) for name, values in (smoothing_factors or {}).items()}

    def observe(name: str, x: Tensor) -> None:
        histograms[name].add(x * factors[name] if name in factors else x)

    _run_observed(model, task, features, {name: partial(observe, name) for name in histograms}, progress)
    return {name: histogram.best_range() for name, histogram in histograms.items()}


def largest_by_channel(
    model: BertModel, task: AnyTask, features: Sequence[Features], layers: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the largest absolute value of each input channel of each layer, [in]."""
    largest = {name: torch.zeros(()) for name in layers}

    def observe(name: str, x: Tensor) -> None:
        largest[name] = torch.maximum(largest[name], x.abs().amax(dim=(0, 1)))

    _run_observed(model, task, features, {name: partial(observe, name) for name in layers})
    return {name: values.numpy() for name, values in largest.items()}


def _run_observed(
    model: BertModel,
    task: AnyTask,
    features: Sequence[Features],
    observers: Mapping[str, Observer],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Run the network and pass each layer's input, as the graph will see it, to the layer's observer."""
    if reads_only_cls(task, model.config) and not model.config.shares_layers:
        last = f"bert.layers.{model.config.num_hidden_layers - 1}."
        cls_layers = {f"{last}{kind}" for kind in ("attention_output", "intermediate", "output")}
        observers = {
            name: partial(_observe_cls, observer) if name in cls_layers else observer
            for name, observer in observers.items()
        }
    handles = [_register(model, name, observer) for name, observer in observers.items()]
    try:
        # One sequence a batch, so that there is no padding to observe.
        run_features(task, features, torch_run(model, task), max_batch_tokens=1, progress=progress)
    finally:
        for handle in handles:
            handle.remove()


def _observe_cls(observer: Observer, x: Tensor) -> None:
    observer(x[:, :1])


def _register(model: nn.Module, layer: str, observer: Observer) -> RemovableHandle:
    if layer == "mlm.decoder":  # not a module: the product with the word embeddings follows the norm
        return model.get_submodule("mlm.norm").register_forward_hook(lambda module, inputs, output: observer(output))
    return model.get_submodule(layer).register_forward_pre_hook(lambda module, inputs: observer(inputs[0]))
