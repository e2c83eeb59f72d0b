"""Matrix products of activations with a network's weights, in floats or int8.

In int8, weights have one scale per output channel, activations are uint8 with one scale and zero point. ONNX Runtime's
MatMulIntegerToFloat multiplies, scales and adds the bias in one operator, and an activation is quantised once for all
layers that read it. On CPUs without VNNI, a slower mode keeps the sums exact (`Execution.session_config`). Standard
graphs write static int8 as QDQ (QuantizeLinear, DequantizeLinear, MatMul), which runtimes fuse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from export.builder import CONTRIB, GraphBuilder
from export.network import DECODER_MATRIX, Network
from export.variant import DECODER, WORD_EMBEDDINGS, GraphPrecision, GraphVariant


@dataclass(frozen=True)
class Int8Activation:
    """Names of a quantised activation's values in the graph."""

    values: str
    scale: str
    zero_point: str


class LinearLayers:
    """Adds a network's linear layers to a graph."""

    def __init__(self, graph: GraphBuilder, network: Network, precision: GraphPrecision, variant: GraphVariant) -> None:
        self._graph = graph
        self._weights = network.weights
        self._ranges, self._smoothing_factors = network.ranges, network.smoothing_factors
        self._precision, self._shares_layers, self._num_shared = precision, network.config.shares_layers, 0
        self._is_standard = variant.standard
        self._quantised: dict[str, Int8Activation] = {}
        self._dequantised: dict[str, str] = {}

    def is_float(self, layer: str) -> bool:
        """Return whether the matrix product of a layer runs in floats."""
        return not self._precision.is_int8 or layer in self._precision.fp32_layers

    def apply(self, layer: str, x: str, columns: slice = slice(None), *, with_bias: bool = True) -> str:
        """Add x W + b to the graph and return the name of the result.

        Args:
            columns: outputs of the layer to compute.
            with_bias: False for x W.
        """
        bias = self.bias(layer, columns) if with_bias else ""
        if self.is_float(layer):
            return self._add_bias(self._graph.add("MatMul", x, self.weight(layer, columns)), bias)
        activation = self.quantise(layer, x)
        if self._is_standard:
            return self._add_bias(self._standard_matmul(activation, layer, columns), bias)
        values, scales = self.int8_weight(layer, columns)
        return self._graph.add(
            "MatMulIntegerToFloat",
            *(activation.values, values, activation.scale, scales, activation.zero_point, "", bias),
            domain=CONTRIB,
        )

    def _standard_matmul(self, activation: Int8Activation, layer: str, columns: slice) -> str:
        """Add a matrix product in standard operators: MatMulInteger and scales (dynamic), or QDQ (static)."""
        values, scales = self.int8_weight(layer, columns)
        if self._precision.matmul == "dynamic int8":
            integers = self._graph.add("MatMulInteger", activation.values, values, activation.zero_point)
            scale = self._graph.add("Mul", activation.scale, scales)
            return self._graph.add("Mul", self._graph.add("Cast", integers, to=TensorProto.FLOAT), scale)
        # Without VNNI, ONNX Runtime 1.31 rewrites zero points, and fails if there are none or if they are shared.
        num_outputs = len(self._weights.int8(f"{layer}.weight").scales[columns])
        zeros = self._graph.weight(f"{values}.zeros", np.zeros(num_outputs, np.int8))
        weights = self._graph.add("DequantizeLinear", values, scales, zeros, axis=1)
        if activation.values not in self._dequantised:
            inputs = (activation.values, activation.scale, activation.zero_point)
            self._dequantised[activation.values] = self._graph.add("DequantizeLinear", *inputs)
        return self._graph.add("MatMul", self._dequantised[activation.values], weights)

    def _add_bias(self, matmul: str, bias: str) -> str:
        return self._graph.add("Add", matmul, bias) if bias else matmul

    def weight(self, layer: str, columns: slice = slice(None)) -> str:
        """Return the matrix [in, out] of a layer."""
        name = f"{layer}.weight"
        return self._graph.weight(_slice_name(name, columns), self._weights[name][:, columns])

    def bias(self, layer: str, columns: slice = slice(None)) -> str:
        """Return the bias [out] of a layer; "" if it has none."""
        name = f"{layer}.bias"
        if name not in self._weights:
            return ""
        return self._graph.weight(_slice_name(name, columns), self._weights[name][columns])

    def int8_weight(self, layer: str, columns: slice = slice(None)) -> tuple[str, str]:
        """Return the int8 matrix [in, out] of a layer and its scales [out]."""
        if layer == DECODER and self._precision.int8_embeddings:  # stored once, transposed when the graph is loaded
            rows, row_scales = self.word_rows()
            return self._graph.add("Transpose", rows, perm=[1, 0]), self._graph.add("Squeeze", row_scales)
        matrix, name = self._weights.int8(f"{layer}.weight"), _slice_name(f"{layer}.weight", columns)
        values = self._graph.weight(f"{name}.int8", matrix.values[:, columns])
        if self._shares_layers:
            # Without VNNI, ONNX Runtime 1.31 rewrites a constant for one use only. A slice of all rows is folded into a
            # constant for each use; ends that differ keep equal slices from being joined before.
            self._num_shared += 1
            ends = self._graph.ints(len(matrix.values) + self._num_shared)
            values = self._graph.add("Slice", values, self._graph.ints(0), ends, self._graph.ints(0))
        return values, self._graph.weight(f"{name}.scales", matrix.scales[columns])

    def word_rows(self) -> tuple[str, str]:
        """Return the int8 word embeddings [vocabulary, hidden] and their scales [vocabulary, 1]."""
        matrix = self._weights.int8(DECODER_MATRIX)
        return (
            self._graph.weight(f"{WORD_EMBEDDINGS}.rows", matrix.values.T),
            self._graph.weight(f"{WORD_EMBEDDINGS}.row_scales", matrix.scales[:, None]),
        )

    def quantise(self, layer: str, x: str) -> Int8Activation:
        """Return a layer's input as uint8, quantised once for all layers that read it."""
        if x not in self._quantised:
            is_dynamic = self._precision.matmul == "dynamic int8"
            self._quantised[x] = (
                Int8Activation(*self._graph.add_many("DynamicQuantizeLinear", x, num_outputs=3))
                if is_dynamic
                else self._quantise_static(layer, x)
            )
        return self._quantised[x]

    def _quantise_static(self, layer: str, x: str) -> Int8Activation:
        if layer in self._smoothing_factors:
            factors = self._graph.weight(f"{layer}.input.factors", self._smoothing_factors[layer])
            x = self._graph.add("Mul", x, factors)
        item = self._ranges[layer]
        scale = self._graph.weight(f"{layer}.input.scale", np.array(item.scale, np.float32))
        zero_point = self._graph.weight(f"{layer}.input.zero_point", np.array(item.zero_point, np.uint8))
        return Int8Activation(self._graph.add("QuantizeLinear", x, scale, zero_point), scale, zero_point)


def _slice_name(name: str, columns: slice) -> str:
    return name if columns == slice(None) else f"{name}.{columns.start}-{columns.stop}"
