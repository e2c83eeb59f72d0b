"""Even out the channels of activations before they become integers.

A few channels of a trained BERT can be ten times as large as the others and take most of the 256 steps; so these are
divided, and the rows of the matrix that they meet multiplied: x W = (x / s) (s W), as in SmoothQuant (Xiao et al. 2022,
arXiv 2211.10438), but for large channels alone. As x is read elsewhere, too, or comes from Gelu, nothing takes the
division along: it is a multiplication of its own, and costs a tenth of the time. So it is for where integers lose too
much without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from export.calibrate import calibrate, largest_by_channel
from export.network import Network, Weights, to_int8
from tasks.features import Features
from training.model.heads import BertModel

_KINDS = ("qkv", "intermediate", "output")
"""Layers whose inputs are evened out; what `attention_output` takes has no such channels."""
_LARGE = 2
"""Medians of the channels' sizes that a channel may have."""
_MOST = 32
"""What channels are divided by at most: rows of the matrix are to become integers, too."""


def balanced(network: Network, model: BertModel, features: Sequence[Features]) -> Network:
    """The same network for products of kind "balanced int8".

    Args:
        features: a few hundred sequences of the kind to come.
    """
    layers = [name for name in network.layers if name.split(".")[-1] in _KINDS]
    largest = largest_by_channel(model, network.task, features, layers)
    divisors = {name: channel_divisors(values) for name, values in largest.items()}
    factors = {name: 1 / values for name, values in divisors.items()}
    int8 = {
        f"{name}.weight": to_int8(network.weights[f"{name}.weight"] * values[:, None])
        for name, values in divisors.items()
    }
    ranges = calibrate(model, network.task, features, network.layers, factors=factors)
    return replace(network, weights=Weights(network.weights.floats, int8), ranges=ranges, factors=factors)


def channel_divisors(largest: np.ndarray) -> np.ndarray:
    """What to divide channels by, [in] float32: 1 for most.

    Args:
        largest: absolute value of each channel, [in].
    """
    sizes = largest.astype(np.float64)
    limit = max(_LARGE * np.median(sizes), sizes.max() / _MOST)
    return np.maximum(sizes / (limit or 1), 1).astype(np.float32)
