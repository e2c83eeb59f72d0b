"""SmoothQuant: scale down the large channels of activations before quantising them.

A few channels of a trained BERT can be ten times larger than the others and use up most of the 256 steps. Dividing
them and multiplying the matching rows of the weights keeps the product: x W = (x / s) (s W) (Xiao et al. 2022, arXiv
2211.10438). Unlike the paper, only large channels are scaled, and the division is a separate multiplication in the
graph, because x is also read elsewhere or comes from Gelu. This took 0% to 2% more time in
docs/experiments/int8-graphs.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from export.calibrate import calibrate, largest_by_channel
from export.network import Network, Weights, to_int8
from tasks.features import Features
from training.model.heads import BertModel

_LAYERS = ("qkv", "intermediate", "output")
"""Layers whose inputs are smoothed; the input of `attention_output` has no large channels."""
_LARGE = 2
"""Channels above this multiple of the median are scaled down."""
_MAX_DIVISOR = 32
"""Largest divisor, as larger ones would make the rows of the weights hard to quantise."""


def smooth(network: Network, model: BertModel, features: Sequence[Features]) -> Network:
    """Return the network with smoothing factors, and the int8 weights and ranges that match them.

    Args:
        features: a few hundred typical sequences.
    """
    layers = [name for name in network.layers if name.split(".")[-1] in _LAYERS]
    largest = largest_by_channel(model, network.task, features, layers)
    divisors = {name: channel_divisors(values) for name, values in largest.items()}
    factors = {name: 1 / values for name, values in divisors.items()}
    int8 = {
        f"{name}.weight": to_int8(network.weights[f"{name}.weight"] * values[:, None])
        for name, values in divisors.items()
    }
    ranges = calibrate(model, network.task, features, network.layers, smoothing_factors=factors)
    return replace(network, weights=Weights(network.weights.floats, int8), ranges=ranges, smoothing_factors=factors)


def channel_divisors(largest: np.ndarray) -> np.ndarray:
    """Return the divisor of each channel, [in] float32; 1 for most channels.

    Args:
        largest: largest absolute value of each channel, [in].
    """
    sizes = largest.astype(np.float64)
    limit = max(_LARGE * np.median(sizes), sizes.max() / _MAX_DIVISOR)
    return np.maximum(sizes / (limit or 1), 1).astype(np.float32)
