"""Graphs with their weights: in memory while they are tried, on disk in one file, or in two if they exceed 512 MiB.

A graph file is a protobuf message, which takes twice its size in memory to write and to load, and at most 2 GiB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from tasks.bundle.model_directory import DATA_FILE

MAX_FILE_BYTES = 2**29
"""Maximum bytes of graph and weights in one file; a BERT-base in fp32 has 418 MiB."""
MIN_WEIGHT_BYTES = 1024
"""Minimum bytes of a weight outside the graph. Shapes and axes are smaller; ONNX Runtime needs them in the graph."""
_PAGE_BYTES = 4096
"""Alignment of weights, so that they can be mapped into memory."""
_DIGEST = "weights_sha256"
"""Property of a graph with a second file, which makes graphs that differ only in weights different files."""


@dataclass(frozen=True)
class Graph:
    """ONNX graph without its large weights, and these weights by name."""

    proto: ModelProto
    """Refers to each large weight by its offset in `DATA_FILE`."""
    weights: Mapping[str, np.ndarray]

    @property
    def num_bytes(self) -> int:
        """Approximate size as one file, in bytes."""
        return self.proto.ByteSize() + sum(values.nbytes for values in self.weights.values())

    def whole(self) -> ModelProto:
        """Return the graph with all weights inside."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        for item in proto.graph.initializer:
            if item.name in self.weights:
                item.ClearField("external_data")
                item.data_location = TensorProto.DEFAULT
                item.raw_data = self.weights[item.name].tobytes()
        return proto


def external_initializers(weights: Mapping[str, np.ndarray]) -> list[TensorProto]:
    """Return initializers that refer to weights stored one after the other in `DATA_FILE`."""
    tensors, offset = [], 0
    for name, values in weights.items():
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
            dims=values.shape,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in {"location": DATA_FILE, "offset": offset, "length": values.nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        offset += -(-values.nbytes // _PAGE_BYTES) * _PAGE_BYTES
    return tensors


def save_graph(graph: Graph, path: Path, *, max_bytes: int | None = None) -> None:
    """Write a graph as one file, or with its weights in a separate file `<name>.data` if it is too large.

    Args:
        max_bytes: maximum bytes of one file; None for `MAX_FILE_BYTES`.
    """
    if graph.num_bytes <= (MAX_FILE_BYTES if max_bytes is None else max_bytes):
        onnx.save(graph.whole(), path)
        return
    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    data = path.with_name(f"{path.name}.data")
    for item in proto.graph.initializer:
        for entry in item.external_data:
            if entry.key == "location":
                entry.value = data.name
    digest = hashlib.sha256()
    with data.open("wb") as file:
        for values in graph.weights.values():
            for part in (values.data.cast("B"), bytes(-values.nbytes % _PAGE_BYTES)):
                file.write(part)
                digest.update(part)
    helper.set_model_props(proto, {_DIGEST: digest.hexdigest()})
    onnx.save(proto, path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the initializers of a graph by name; weights in a separate file are memory-mapped."""
    arrays, data = {}, path.with_name(f"{path.name}.data")
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if not uses_external_data(tensor):
            arrays[tensor.name] = numpy_helper.to_array(tensor)
            continue
        info, dtype = ExternalDataInfo(tensor), helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if info.location != data.name:
            raise ValueError(f"weights must be stored in `{data.name}`: `{info.location}`")
        arrays[tensor.name] = np.memmap(data, dtype, "r", info.offset or 0, tuple(tensor.dims))
    return arrays
