"""Write an ONNX graph node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from export.storage import MIN_WEIGHT_BYTES, Graph, external_initializers

OPSET = 20
"""First opset with Gelu; LayerNormalization exists since 17."""
CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
_IR_VERSION = 10
"""IR version of the file, which ONNX Runtime 1.18 and newer read."""


class GraphBuilder:
    """Nodes and initializers of a graph under construction; values are referred to by name."""

    dtype: Any
    """Type of added floats: float32 or float16."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype = dtype
        self._nodes: list[NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._constants: dict[tuple[str, bytes], str] = {}
        self._output_names: dict[str, str] = {}
        self._scope: tuple[str, ...] = ()

    @contextmanager
    def scope(self, *names: str) -> Iterator[None]:
        """Prefix the names of the nodes added inside the block, so that profiles are readable."""
        self._scope += names
        yield
        self._scope = self._scope[: -len(names)]

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output.

        Args:
            inputs: names of values; "" for an optional input that is left out.

        Returns:
            The name of its output.
        """
        return self.add_many(op_type, *inputs, num_outputs=1, domain=domain, **attributes)[0]

    def add_many(
        self,
        op_type: str,
        *inputs: str,
        num_outputs: int,
        unused: Collection[int] = (),
        domain: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add a node with several outputs and return their names; "" for optional outputs that are unused."""
        name = "/".join((*self._scope, f"{op_type}_{len(self._nodes)}"))
        names = (name, *(f"{name}:{index}" for index in range(1, num_outputs)))
        outputs = tuple("" if index in unused else value for index, value in enumerate(names))
        self._nodes.append(helper.make_node(op_type, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs

    def weight(self, name: str, values: np.ndarray, *, as_float32: bool = False) -> str:
        """Add an initializer, once, and return its name.

        Args:
            as_float32: True to keep floats as float32, regardless of `dtype`.
        """
        if name not in self._weights:
            dtype = self.dtype if values.dtype == np.float32 and not as_float32 else values.dtype
            self._weights[name] = np.asarray(values, dtype, order="C")
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a small initializer, once per value, and return its name."""
        values = np.asarray(value, self.dtype if dtype == np.float32 else dtype)
        key = (f"{values.dtype}{list(values.shape)}", values.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight(f"constant_{len(self._constants)}", values)
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """Add an int64 vector, such as a shape or axes."""
        return self.constant(values, np.int64)

    def floats(self, value: str) -> str:
        """Cast integers to floats."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))

    def as_float32(self, value: str) -> str:
        """Cast floats to float32, and use float32 for everything added from here on."""
        if self.dtype == np.float32:
            return value
        self.dtype = np.float32
        return self.floats(value)

    def output(self, name: str, value: str) -> None:
        """Make a value an output of the graph under a given name."""
        self._output_names[value] = name

    def model(self, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> Graph:
        """Return the finished graph."""
        for node in self._nodes:
            for values in (node.input, node.output):
                values[:] = [self._output_names.get(value, value) for value in values]
        large = {name: values for name, values in self._weights.items() if values.nbytes >= MIN_WEIGHT_BYTES}
        small = [numpy_helper.from_array(self._weights[name], name) for name in self._weights if name not in large]
        initializers = [*small, *external_initializers(large)]
        graph = GraphProto(node=self._nodes, name="bert", input=inputs, output=outputs, initializer=initializers)
        domains = {node.domain for node in self._nodes}
        opsets = [helper.make_opsetid("", OPSET)] + [helper.make_opsetid(CONTRIB, 1)] * (CONTRIB in domains)
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bertline")
        return Graph(proto, large)
