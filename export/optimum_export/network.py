"""Graphs of a network that Optimum exported: in fp32, and quantised by ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export.optimum_export.model import ExportedConfig, quiet
from export.storage import MAX_FILE_BYTES, MIN_WEIGHT_BYTES, Graph, external_initializers, save_graph
from export.variant import MatMulPrecision
from tasks import AnyTask
from tasks.features import INPUT_NAMES


@dataclass(frozen=True)
class ExportedNetwork:
    """Network with its graph, used in place of a `Network`: it has no variants and no layers to choose from."""

    config: ExportedConfig
    task: AnyTask
    graphs: dict[MatMulPrecision, Graph]
    """Graphs that exist already, by the precision of their matrix products."""
    pads: bool = True
    """False if padding changes the outputs, so that each text must be a separate batch."""

    ranges: ClassVar[Mapping[str, object]] = {}
    quantizable_layers: ClassVar[list[str]] = []

    def graph(self, matmul: MatMulPrecision) -> Graph:
        """Return the graph in fp32 or dynamic int8.

        Raises:
            ValueError: if nothing in it can be computed in int8.
        """
        if matmul not in self.graphs:
            assert matmul == "dynamic int8", matmul
            self.graphs[matmul] = self._quantised()
        return self.graphs[matmul]

    def _quantised(self) -> Graph:
        from onnxruntime.quantization import QuantType, quantize_dynamic  # slow to import

        graph = self.graphs["fp32"]
        with tempfile.TemporaryDirectory() as folder, quiet():
            fp32, int8 = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
            save_graph(graph, fp32)
            quantize_dynamic(
                fp32,
                int8,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                weight_type=QuantType.QInt8,
                use_external_data_format=graph.num_bytes > MAX_FILE_BYTES,
                # Shape inference does not know every value of a traced graph; those it misses are float.
                extra_options={"DefaultTensorType": TensorProto.FLOAT},
            )
            quantised = read_graph(int8)
        if not any(node.op_type == "MatMulInteger" for node in quantised.proto.graph.node):
            raise ValueError(f"no matrix product of a `{self.config.model_type}` can be quantised; export it in fp32")
        return quantised


def read_graph(path: Path) -> Graph:
    """Read a graph with its weights, and give it the inputs of all our graphs, int32 [batch, length]."""
    proto = onnx.load(path)
    arrays = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    large = {name: values for name, values in arrays.items() if values.nbytes >= MIN_WEIGHT_BYTES}
    small = [item for item in proto.graph.initializer if item.name not in large]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"]) for name in INPUT_NAMES]
    for items, new in (
        (proto.graph.initializer, [*small, *external_initializers(large)]),
        (proto.graph.input, inputs),  # tracing drops an input that the network does not read
    ):
        del items[:]
        items.extend(new)
    without_weights = ModelProto()  # the message that was read keeps the memory of its weights
    without_weights.CopyFrom(proto)
    return Graph(without_weights, large)
