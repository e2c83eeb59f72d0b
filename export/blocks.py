"""Parts of a graph that heads and layers of all families share."""

from __future__ import annotations

from typing import Any

import numpy as np

from export.builder import CONTRIB, GraphBuilder
from export.linear import LinearLayers
from export.network import Network, reads_only_cls
from export.variant import GraphPrecision, GraphVariant

_SIMPLE = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
_STANDARD_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
_GELU = {"gelu": "Gelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


class Blocks:
    """A graph under construction; methods return the names of values. x is [batch, length, hidden]."""

    config: Any

    def __init__(self, network: Network, precision: GraphPrecision, variant: GraphVariant) -> None:
        self.config, self.weights, self.task = network.config, network.weights, network.task
        self.reads_only_cls = reads_only_cls(network.task, network.config)
        self.precision, self.variant = precision, variant
        self.graph = GraphBuilder(precision.dtype)
        self.linear = LinearLayers(self.graph, network, precision, variant)

    def weight(self, name: str) -> str:
        """Add a weight."""
        return self.graph.weight(name, self.weights[name])

    def norm_weights(self, norm: str) -> tuple[str, ...]:
        """Return the scale of a LayerNorm, and its bias if it has one."""
        return tuple(self.weight(name) for name in (f"{norm}.weight", f"{norm}.bias") if name in self.weights)

    def layer_norm(self, norm: str, x: str) -> str:
        """Return LayerNorm with the weights of that name."""
        epsilon = self.config.layer_norm_eps
        return self.graph.add("LayerNormalization", x, *self.norm_weights(norm), axis=-1, epsilon=epsilon)

    def intermediate(self, name: str, x: str, activation: str) -> str:
        """Return a linear layer and its activation function."""
        if self.variant.bias_gelu and activation == "gelu" and (bias := self.linear.bias(name)):
            matmul = self.linear.apply(name, x, with_bias=False)
            return self.graph.add("BiasGelu", matmul, bias, domain=CONTRIB)
        return self.activation(activation, self.linear.apply(name, x))

    def activation(self, name: str, x: str) -> str:
        """Return the activation function of that name."""
        if name == "identity":
            return x
        if name == "silu" and self.variant.standard:
            return self.graph.add("Mul", x, self.graph.add("Sigmoid", x))
        if name == "silu":  # QuickGelu is x * sigmoid(alpha x)
            return self.graph.add("QuickGelu", x, domain=CONTRIB, alpha=1.0)
        if name in _SIMPLE:
            return self.graph.add(_SIMPLE[name], x)
        if self.variant.standard:
            return self.graph.add("Gelu", x, approximate=_STANDARD_GELU[name])
        return self.graph.add(_GELU[name], x, domain=CONTRIB)

    def product(self, x: str, y: str, scale: float = 1.0, *, axes: int = 0) -> str:
        """Return scale * x y^T over the last two axes, or scale * x y if y is transposed already.

        Args:
            axes: number of axes of y; 0 if it is transposed already.
        """
        if not self.variant.standard:
            return self.graph.add("FusedMatMul", x, y, domain=CONTRIB, transB=int(axes > 0), alpha=scale)
        if axes:
            y = self.graph.add("Transpose", y, perm=[*range(axes - 2), axes - 1, axes - 2])
        if scale != 1:
            x = self.graph.add("Mul", x, self.graph.constant(scale))
        return self.graph.add("MatMul", x, y)

    def first_token(self, x: str) -> str:
        """Return the state of [CLS] with its axis, [batch, 1, hidden]."""
        return self.graph.add("Slice", x, self.graph.ints(0), self.graph.ints(1), self.graph.ints(1))

    def length(self) -> str:
        """Return the length of the sequences, [1] int64."""
        return self.graph.add("Shape", "input_ids", start=1, end=2)

    def positions_from(self, first: int) -> str:
        """Return the positions of the tokens, counted from 0 or 1, int64 [length]."""
        length = self.graph.add("Squeeze", self.length())
        start, one = self.graph.constant(first, np.int64), self.graph.constant(1, np.int64)
        end = self.graph.add("Add", length, one) if first else length
        return self.graph.add("Range", start, end, one)
