"""Matrix products with the network's weights, in floats or in integers.

Integers: weights are int8 with a scale for each output channel, activations uint8 with one scale and zero point. ONNX
Runtime's MatMulIntegerToFloat multiplies, scales and adds the bias at once, and one quantisation of an activation
serves all products that take it. Sums are exact without VNNI, too, if slower (`Execution.session_config`).
Standard graphs turn static integers back into floats before a product of floats (QDQ): runtimes join them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from export.builder import CONTRIB, GraphBuilder
from export.network import DECODER_MATRIX, Network
from export.variant import DECODER, WORD_EMBEDDINGS, Form, Numbers


@dataclass(frozen=True)
class Int8Activation:
    """A quantised activation: names of its values in the graph."""

    values: str
    scale: str
    zero_point: str


class LinearLayers:
    """Adds the products of activations with layers' weights to a graph."""

    def __init__(self, graph: GraphBuilder, network: Network, numbers: Numbers, form: Form) -> None:
        self._graph = graph
        self._weights = network.weights
        self._ranges, self._factors = network.ranges, network.factors
        self._numbers = numbers
        self._is_standard = form.standard
        self._quantised: dict[str, Int8Activation] = {}
        self._restored: dict[str, str] = {}

    def in_floats(self, layer: str) -> bool:
        """Whether the products of a layer are of floats."""
        return not self._numbers.in_integers or layer in self._numbers.fp32_layers

    def apply(self, layer: str, x: str, part: slice = slice(None), *, with_bias: bool = True) -> str:
        """x W + b.

        Args:
            part: of the layer's outputs.
            with_bias: otherwise x W.
        """
        bias = self.bias(layer, part) if with_bias else ""
        if self.in_floats(layer):
            return self._sum(self._graph.add("MatMul", x, self.weight(layer, part)), bias)
        activation = self.quantise(layer, x)
        if self._is_standard:
            return self._sum(self._standard_product(activation, layer, part), bias)
        values, scales = self.int8_weight(layer, part)
        return self._graph.add(
            "MatMulIntegerToFloat",
            *(activation.values, values, activation.scale, scales, activation.zero_point, "", bias),
            domain=CONTRIB,
        )

    def _standard_product(self, activation: Int8Activation, layer: str, part: slice) -> str:
        """Dynamic: a product of integers, to be scaled. Static: QDQ."""
        values, scales = self.int8_weight(layer, part)
        if self._numbers.products == "dynamic int8":
            integers = self._graph.add("MatMulInteger", activation.values, values, activation.zero_point)
            scale = self._graph.add("Mul", activation.scale, scales)
            return self._graph.add("Mul", self._graph.add("Cast", integers, to=TensorProto.FLOAT), scale)
        # ONNX Runtime 1.31 rewrites zero points where there is no VNNI, and fails where none or a shared one is.
        num_outputs = len(self._weights.int8(f"{layer}.weight").scales[part])
        zeros = self._graph.weight(f"{values}.zeros", np.zeros(num_outputs, np.int8))
        weights = self._graph.add("DequantizeLinear", values, scales, zeros, axis=1)
        return self._graph.add("MatMul", self._restore(activation), weights)

    def _restore(self, activation: Int8Activation) -> str:
        """An activation's floats again, rounded to what integers hold."""
        if activation.values not in self._restored:
            inputs = (activation.values, activation.scale, activation.zero_point)
            self._restored[activation.values] = self._graph.add("DequantizeLinear", *inputs)
        return self._restored[activation.values]

    def _sum(self, product: str, bias: str) -> str:
        return self._graph.add("Add", product, bias) if bias else product

    def weight(self, layer: str, part: slice = slice(None)) -> str:
        """The matrix [in, out] of a layer."""
        name = f"{layer}.weight"
        return self._graph.weight(_named(name, part), self._weights[name][:, part])

    def bias(self, layer: str, part: slice = slice(None)) -> str:
        """The bias [out] of a layer."""
        name = f"{layer}.bias"
        return self._graph.weight(_named(name, part), self._weights[name][part])

    def int8_weight(self, layer: str, part: slice = slice(None)) -> tuple[str, str]:
        """The matrix of a layer as integers [in, out], and their scales [out]."""
        if layer == DECODER and self._numbers.int8_embeddings:  # kept once, turned when the graph is loaded
            rows, row_scales = self.word_rows()
            return self._graph.add("Transpose", rows, perm=[1, 0]), self._graph.add("Squeeze", row_scales)
        matrix, name = self._weights.int8(f"{layer}.weight"), _named(f"{layer}.weight", part)
        return (
            self._graph.weight(f"{name}.int8", matrix.values[:, part]),
            self._graph.weight(f"{name}.scales", matrix.scales[part]),
        )

    def word_rows(self) -> tuple[str, str]:
        """The word embeddings as integers [vocabulary, hidden], and their scales [vocabulary, 1]."""
        matrix = self._weights.int8(DECODER_MATRIX)
        return (
            self._graph.weight(f"{WORD_EMBEDDINGS}.rows", matrix.values.T),
            self._graph.weight(f"{WORD_EMBEDDINGS}.row_scales", matrix.scales[:, None]),
        )

    def quantise(self, layer: str, x: str) -> Int8Activation:
        """The activation that a layer takes as integers."""
        if x not in self._quantised:
            dynamic = self._numbers.products == "dynamic int8"
            self._quantised[x] = self._by_batch(x) if dynamic else self._by_range(layer, x)
        return self._quantised[x]

    def _by_batch(self, x: str) -> Int8Activation:
        return Int8Activation(*self._graph.add_many("DynamicQuantizeLinear", x, num_outputs=3))

    def _by_range(self, layer: str, x: str) -> Int8Activation:
        if layer in self._factors:
            x = self._graph.add("Mul", x, self._graph.weight(f"{layer}.input.factors", self._factors[layer]))
        known = self._ranges[layer]
        scale = self._graph.weight(f"{layer}.input.scale", np.array(known.scale, np.float32))
        zero_point = self._graph.weight(f"{layer}.input.zero_point", np.array(known.zero_point, np.uint8))
        return Int8Activation(self._graph.add("QuantizeLinear", x, scale, zero_point), scale, zero_point)


def _named(name: str, part: slice) -> str:
    return name if part == slice(None) else f"{name}.{part.start}-{part.stop}"
