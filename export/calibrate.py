"""Which ranges activations have, measured on texts; for static quantisation.

The range of a layer's input is that with the least mean squared error of quantised values: the widest would spend most
of the 256 steps on a few outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from export.network import Range, reads_only_cls
from tasks import AnyTask
from tasks.batching import run_features
from tasks.features import Features
from training.evaluate import torch_run
from training.model.heads import BertModel

NUM_BINS = 8192
SHARES = tuple(1 - step / 100 for step in range(0, 60, 2))
"""Shares of the whole range that are tried."""
_LARGEST = 1e18
"""Activations are smaller: their squares are still numbers in float32."""


class Histogram:
    """Values of one activation, in bins about zero that double in width when larger values come."""

    def __init__(self) -> None:
        self.low, self.high, self.limit = 0.0, 0.0, 0.0
        self.counts = torch.zeros(NUM_BINS)

    def count(self, x: Tensor) -> None:
        """Add values, of any shape.

        Raises:
            ValueError: when some are no numbers, or nearly none.
        """
        x = x.float()
        low, high = float(x.min()), float(x.max())
        if not max(-low, high) < _LARGEST:
            raise ValueError(
                f"activations reach from {low:.0e} to {high:.0e}, which leaves int8 no range; train it again"
            )
        self.low, self.high = min(self.low, low), max(self.high, high)
        size = max(-self.low, self.high)
        self.limit = self.limit or size
        while self.limit < size:
            self.limit *= 2
            quarter = torch.zeros(NUM_BINS // 4)
            self.counts = torch.cat([quarter, self.counts.view(-1, 2).sum(1), quarter])
        if self.limit:  # zeros alone say nothing
            self.counts += torch.histc(x, NUM_BINS, -self.limit, self.limit)

    def best_range(self) -> Range:
        """The one with the least squared error, of those with both ends shrunk by the same share."""
        centres = self.limit * ((2 * torch.arange(NUM_BINS) + 1) / NUM_BINS - 1)
        ranges = [Range.between(share * self.low, share * self.high) for share in SHARES]
        return min(ranges, key=lambda item: float((self.counts * (_rounded(centres, item) - centres) ** 2).sum()))


def _rounded(x: Tensor, known: Range) -> Tensor:
    integers = torch.clamp(torch.round(x / known.scale) + known.zero_point, 0, 255)
    return (integers - known.zero_point) * known.scale


See = Callable[[Tensor], None]


def calibrate(
    model: BertModel,
    task: AnyTask,
    features: Sequence[Features],
    layers: Sequence[str],
    *,
    factors: Mapping[str, np.ndarray] | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Range]:
    """The range of what each layer takes, by its name, over sequences.

    Args:
        features: a few hundred sequences of the kind to come; none for no ranges.
        layers: as `Network.layers` names them.
        factors: as `Network.factors`.
        progress: called with a number of finished sequences.
    """
    histograms = {name: Histogram() for name in layers if features}
    scaled = {name: torch.from_numpy(values) for name, values in (factors or {}).items()}

    def see(name: str, x: Tensor) -> None:
        histograms[name].count(x * scaled[name] if name in scaled else x)

    _show(model, task, features, {name: partial(see, name) for name in histograms}, progress)
    return {name: histogram.best_range() for name, histogram in histograms.items()}


def largest_by_channel(
    model: BertModel, task: AnyTask, features: Sequence[Features], layers: Sequence[str]
) -> dict[str, np.ndarray]:
    """The largest absolute value of each channel of what each layer takes, [in]."""
    found = {name: torch.zeros(()) for name in layers}

    def see(name: str, x: Tensor) -> None:
        found[name] = torch.maximum(found[name], x.abs().amax(dim=(0, 1)))

    _show(model, task, features, {name: partial(see, name) for name in layers})
    return {name: values.numpy() for name, values in found.items()}


def _show(
    model: BertModel,
    task: AnyTask,
    features: Sequence[Features],
    watchers: Mapping[str, See],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Run the network over sequences, and show each watcher what its layer takes in the graph."""
    if reads_only_cls(task):
        last = f"bert.layers.{model.config.num_hidden_layers - 1}."
        of_cls = {f"{last}{kind}" for kind in ("attention_output", "intermediate", "output")}
        watchers = {name: _shown_cls(see) if name in of_cls else see for name, see in watchers.items()}
    with _watching(model, watchers):
        # Each sequence alone: padding would be seen, too.
        run_features(task, features, torch_run(model, task), max_batch_tokens=1, progress=progress)


def _shown_cls(see: See) -> See:
    return lambda x: see(x[:, :1])


@contextmanager
def _watching(model: nn.Module, watchers: Mapping[str, See]) -> Iterator[None]:
    hooks = [_hook(model, name, see) for name, see in watchers.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(model: nn.Module, layer: str, see: See) -> RemovableHandle:
    if layer == "mlm.decoder":  # no module: the product with the word embeddings, after the norm
        return model.get_submodule("mlm.norm").register_forward_hook(lambda module, inputs, output: see(output))
    return model.get_submodule(layer).register_forward_pre_hook(lambda module, inputs: see(inputs[0]))
