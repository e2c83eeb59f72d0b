"""A graph whose weights lie beside it: in memory while it is tried, in its file when it is written, and in a second one
where a single file cannot hold them, as a protobuf message ends at 2 GiB.
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

from tasks.model_directory import DATA_FILE

MAX_FILE_BYTES = 2**31 - 2**20
"""Of a graph with its weights; what is left of 2 GiB holds their names and shapes."""
MIN_WEIGHT_BYTES = 1024
"""Less stays in the graph: ONNX Runtime reads shapes and axes from there."""
_PAGE_BYTES = 4096
"""Weights start at multiples of it, so that they can be mapped into memory."""
_DIGEST = "weights_sha256"


@dataclass(frozen=True)
class Graph:
    """Nodes, and weights by their names."""

    proto: ModelProto
    """It says of each weight where in `DATA_FILE` it would stand."""
    weights: Mapping[str, np.ndarray]

    @property
    def num_bytes(self) -> int:
        """About what one file would have."""
        return self.proto.ByteSize() + sum(values.nbytes for values in self.weights.values())

    def whole(self) -> ModelProto:
        """With the weights in it."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        for item in proto.graph.initializer:
            if item.name in self.weights:
                item.CopyFrom(numpy_helper.from_array(self.weights[item.name], item.name))
        return proto


def place(weights: Mapping[str, np.ndarray]) -> list[TensorProto]:
    """Initializers that say where in `DATA_FILE` the values of weights stand, one after the other."""
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
    """Write a graph as one file, or, where that would be too large, its weights into `DATA_FILE` beside it.

    Args:
        max_bytes: of one file; None for `MAX_FILE_BYTES`.
    """
    if graph.num_bytes <= (MAX_FILE_BYTES if max_bytes is None else max_bytes):
        onnx.save(graph.whole(), path)
        return
    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    helper.set_model_props(proto, {_DIGEST: _write_weights(graph, path.with_name(DATA_FILE))})
    onnx.save(proto, path)


def _write_weights(graph: Graph, path: Path) -> str:
    """Returns the digest, by which graphs that differ in nothing else are told apart."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for values in graph.weights.values():
            padding = bytes(-values.nbytes % _PAGE_BYTES)
            for part in (values.data.cast("B"), padding):
                file.write(part)
                digest.update(part)
    return digest.hexdigest()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The initializers of a graph by name; those in a file of their own are read when they are used."""
    proto = onnx.load(path, load_external_data=False)
    return {item.name: _values(item, path.parent) for item in proto.graph.initializer}


def _values(tensor: TensorProto, directory: Path) -> np.ndarray:
    if not uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    info, dtype = ExternalDataInfo(tensor), helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if info.location != DATA_FILE:
        raise ValueError(f"weights lie in `{info.location}`, not in `{DATA_FILE}`")
    return np.memmap(directory / info.location, dtype, "r", info.offset or 0, tuple(tensor.dims))
