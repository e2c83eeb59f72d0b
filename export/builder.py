"""Write an ONNX graph node by node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from export.storage import MIN_WEIGHT_BYTES, Graph, place

OPSET = 20
"""The first with Gelu; LayerNormalization came with 17."""
CONTRIB = "com.microsoft"
"""ONNX Runtime's own operators."""
_IR_VERSION = 10
"""Read by ONNX Runtime 1.18 and newer."""


class GraphBuilder:
    """Nodes and initializers of a graph in the making. Values are known by their names."""

    dtype: Any
    """Of the floats that are added: float32 or float16."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype = dtype
        self._nodes: list[NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._small: dict[tuple[str, bytes], str] = {}
        self._renamed: dict[str, str] = {}
        self._scope: tuple[str, ...] = ()

    @contextmanager
    def scope(self, *names: str) -> Iterator[None]:
        """Put names before those of the nodes that are added meanwhile, for profiles that people read."""
        self._scope += names
        yield
        self._scope = self._scope[: -len(names)]

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node of one output; "" stands for an input that is left out.

        Returns:
            The name of its output.
        """
        return self.add_many(op_type, *inputs, num_outputs=1, domain=domain, **attributes)[0]

    def add_many(
        self, op_type: str, *inputs: str, num_outputs: int, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node of several outputs.

        Returns:
            The names of its outputs.
        """
        name = "/".join((*self._scope, f"{op_type}_{len(self._nodes)}"))
        outputs = (name, *(f"{name}:{number}" for number in range(1, num_outputs)))
        self._nodes.append(helper.make_node(op_type, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs

    def weight(self, name: str, values: np.ndarray) -> str:
        """An initializer, by its name."""
        if name not in self._weights:
            dtype = self.dtype if values.dtype == np.float32 else values.dtype
            self._weights[name] = np.asarray(values, dtype, order="C")
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A small initializer; the same value is kept once."""
        values = np.asarray(value, self.dtype if dtype == np.float32 else dtype)
        key = (f"{values.dtype}{list(values.shape)}", values.tobytes())
        if key not in self._small:
            self._small[key] = self.weight(f"constant_{len(self._small)}", values)
        return self._small[key]

    def ints(self, *values: int) -> str:
        """Shapes, axes and the like: int64 [n]."""
        return self.constant(values, np.int64)

    def floats(self, value: str) -> str:
        """Integers as floats."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))

    def as_float32(self, value: str) -> str:
        """Floats in single precision, as are all that are added from here on."""
        if self.dtype == np.float32:
            return value
        self.dtype = np.float32
        return self.floats(value)

    def output(self, name: str, value: str) -> None:
        """Let a value leave the graph under a name of its own."""
        self._renamed[value] = name

    def model(
        self,
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> Graph:
        """The finished graph."""
        for node in self._nodes:
            for values in (node.input, node.output):
                values[:] = [self._renamed.get(value, value) for value in values]
        large = {name: values for name, values in self._weights.items() if values.nbytes >= MIN_WEIGHT_BYTES}
        small = [numpy_helper.from_array(self._weights[name], name) for name in self._weights if name not in large]
        graph = GraphProto(
            node=self._nodes, name="bert", input=inputs, output=outputs, initializer=[*small, *place(large)]
        )
        domains = {node.domain for node in self._nodes}
        opsets = [helper.make_opsetid("", OPSET)] + [helper.make_opsetid(CONTRIB, 1)] * (CONTRIB in domains)
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bertline")
        return Graph(proto, large)
