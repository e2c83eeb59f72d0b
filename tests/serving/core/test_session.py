"""Graphs in ONNX Runtime."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from serving.core.session import OnnxRuntimeGraph
from tasks.bundle.manifest import Execution

MIB = 2**20


@pytest.fixture
def sums(tmp_path):
    """Return a graph that multiplies [rows, 1] by [1, 1024], and sums the products of each row."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["products"]),
        helper.make_node("ReduceSum", ["products"], ["y"], keepdims=1),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in "xy")
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1, 1024], np.ones(1024, np.float32))
    nodes[1].input.append("axes")
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "sums", [x], [y], [weights, axes])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return OnnxRuntimeGraph(path, [], Execution())


def resident_bytes():
    """Return the memory of this process, without what malloc keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_of_large_batches_is_released(sums):
    """The memory of a large batch can be given back, and the graph runs as before."""
    large, small = {"x": np.ones((2**16, 1), np.float32)}, {"x": np.full((2, 1), 2, np.float32)}
    sums.run(["y"], small, sums.new_run())  # the first block of memory stays, whatever its size
    before = resident_bytes()
    sums.run(["y"], large, sums.new_run())
    kept = resident_bytes()
    sums.release_memory(small)

    assert kept - before > 200 * MIB
    assert kept - resident_bytes() > 200 * MIB
    np.testing.assert_array_equal(sums.run(["y"], small, sums.new_run())["y"], np.full((2, 1), 2048))
    np.testing.assert_array_equal(sums.run(["y"], large, sums.new_run())["y"][-1], [1024])
