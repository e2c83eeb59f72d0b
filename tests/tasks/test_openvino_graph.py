"""Graphs in OpenVINO: their settings, aborts and errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tasks.bundle.manifest import Execution
from tasks.bundle.openvino_graph import OpenVINOGraph, OpenVINORun, compiler_settings
from tasks.bundle.providers import OPENVINO
from tests.serving.models import Weights, make_graph

EXECUTION = Execution(provider=OPENVINO)


def graph_of(passes=0, hidden_size=8, **settings):
    weights = Weights.random(0, hidden_size, 1)
    return OpenVINOGraph(make_graph("embedding", weights, passes).SerializeToString(), EXECUTION, **settings)


def batch(size=2, length=5):
    return {name: np.ones((size, length), np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}


@pytest.mark.parametrize(("num_threads", "num_streams"), [(1, "4"), (2, "2"), (4, "1"), (9, "1")])
def test_as_many_batches_as_there_are_cores_for(num_threads, num_streams):
    """OpenVINO gets all cores of the server, and a stream for each batch that fits on them."""
    settings = compiler_settings(Execution(provider=OPENVINO, num_threads=num_threads), 4)

    assert (settings["NUM_STREAMS"], settings["INFERENCE_NUM_THREADS"]) == (num_streams, "4")


@pytest.mark.parametrize("task", ["embedding", "tagging", "classification"])
@pytest.mark.parametrize(("size", "length"), [(1, 1), (3, 17), (17, 35), (33, 9)])
def test_padding_changes_no_outputs(task, size, length):
    """A batch of any shape has the outputs of ONNX Runtime, in the same shapes."""
    model = make_graph(task, Weights.random(0, 8, 3), 0).SerializeToString()
    rng = np.random.default_rng(0)
    mask = (np.arange(length) < rng.integers(1, length, (size, 1), endpoint=True)).astype(np.int32)
    arrays = {"attention_mask": mask, "input_ids": rng.integers(0, 9, mask.shape, np.int32), "token_type_ids": mask * 0}
    graph = OpenVINOGraph(model, EXECUTION)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    found = graph.run(graph.outputs, arrays)

    for name, expected in zip(graph.outputs, session.run(graph.outputs, arrays), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "max_length", "expected"), [(33, None, 36), (33, 77, 36), (73, 77, 77), (77, 77, 77), (100, 77, 100)]
)
def test_padding_ends_with_the_positions(length, max_length, expected, monkeypatch):
    """Batches are padded to at most the length that the network knows, and longer ones not at all."""
    shapes, begin = [], OpenVINORun.begin
    monkeypatch.setattr(
        OpenVINORun,
        "begin",
        lambda self, request, inputs: (shapes.append(inputs["input_ids"].shape), begin(self, request, inputs)),
    )
    graph = graph_of(max_length=max_length)
    graph.run(graph.outputs, batch(2, length))

    assert shapes == [(2, expected)]


def test_outputs_keep_their_names():
    """An output has the name of its graph, also when OpenVINO fuses an operator into it and adds a name."""
    shapes = {"a": ["rows", 8], "w": [8, 3], "b": [3]}
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, shapes["a"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 3])]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, shapes[name], np.ones(shapes[name])) for name in "wb"]
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["another/name"]),
        helper.make_node("Add", ["another/name", "b"], ["logits"]),
    ]
    proto = helper.make_model(
        helper.make_graph(nodes, "head", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    graph = OpenVINOGraph(proto.SerializeToString(), EXECUTION)

    assert (graph.inputs, graph.outputs) == (("a",), ("logits",))
    np.testing.assert_array_equal(
        graph.run(["logits"], {"a": np.ones((2, 8), np.float32)})["logits"], np.full((2, 3), 9)
    )


def test_outputs_are_copies():
    """The outputs of one run stay as they are when the next one reuses its request."""
    graph = graph_of()
    first = graph.run(graph.outputs, batch())["sentence_embedding"]
    before = first.copy()
    graph.run(
        graph.outputs, {name: array * 0 for name, array in batch().items()} | {"attention_mask": batch()["input_ids"]}
    )

    np.testing.assert_array_equal(first, before)


def test_threads_have_requests_of_their_own():
    """Runs at the same time do not mix their outputs."""
    graph, found = graph_of(passes=20), {}
    expected = {length: graph.run(graph.outputs, batch(2, length)) for length in (3, 30)}

    def work(length):
        found[length] = [graph.run(graph.outputs, batch(2, length)) for _ in range(50)]

    threads = [threading.Thread(target=work, args=[length]) for length in expected]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for length, outputs in expected.items():
        for item in found[length]:
            np.testing.assert_allclose(item["sentence_embedding"], outputs["sentence_embedding"], rtol=1e-6)


def test_abort():
    """An abort, before a run or in its middle, ends that run soon, and the graph computes the next one."""
    graph = graph_of(passes=100, hidden_size=512)
    run, started = OpenVINORun(), time.monotonic()
    graph.run(graph.outputs, batch(16, 16))
    many = batch(16, 1024)  # takes about 64 times as long
    threading.Timer(0.02, run.abort).start()
    short_s, started = time.monotonic() - started, time.monotonic()

    with pytest.raises(RuntimeError, match=r"^Infer Request was canceled$"):
        graph.run(graph.outputs, many, run)
    assert time.monotonic() - started < 8 * short_s
    assert graph.run(graph.outputs, batch())["sentence_embedding"].shape == (2, 512)
    with pytest.raises(RuntimeError, match="the run was aborted"):
        graph.run(graph.outputs, batch(), run)


def test_weights_are_copied(tmp_path):
    """Writing to the weights of a loaded graph changes no outputs."""
    graph, path = make_graph("embedding", Weights.random(0, 8, 1), 0), tmp_path / "model.onnx"
    onnx.save(graph, path, save_as_external_data=True, location="weights", size_threshold=0)
    compiled = OpenVINOGraph(path, EXECUTION)
    before = compiled.run(compiled.outputs, batch())
    with (tmp_path / "weights").open("r+b") as file:
        file.write(bytes((tmp_path / "weights").stat().st_size))

    np.testing.assert_array_equal(
        compiled.run(compiled.outputs, batch())["sentence_embedding"], before["sentence_embedding"]
    )


SIGNAL_AFTER_USE = """
import gc, signal, sys
from tasks.bundle.openvino_graph import OpenVINOGraph
from tasks.bundle.manifest import Execution

model = open(sys.argv[1], "rb").read()
graphs = [OpenVINOGraph(model, Execution(provider="OpenVINO")) for _ in range(2)]
while graphs:
    del graphs[0]
    gc.collect()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


FIRST_TYPES = """
import os, sys, threading
from pathlib import Path
import openvino
from tasks.bundle.manifest import Execution
from tasks.bundle.openvino_graph import OpenVINOGraph
from tasks.bundle.providers import OPENVINO

graph = OpenVINOGraph(Path(sys.argv[1]), Execution(provider=OPENVINO))
barrier = threading.Barrier(16)

def read_type():
    barrier.wait()
    openvino.Type.i32.to_dtype()  # as for each array of a batch

threads = [threading.Thread(target=read_type) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ended", flush=True)
os._exit(0)
"""


def test_first_batches_in_threads(tmp_path):
    """Threads that compute the first batches of a process at the same time do not wait for each other forever."""
    path = tmp_path / "model.onnx"
    onnx.save(make_graph("embedding", Weights.random(0, 8, 1), 0), path)

    command = [sys.executable, "-c", FIRST_TYPES, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (0, "ended\n")


def test_signals_after_the_last_graph(tmp_path):
    """A signal is handled after graphs are gone in the order they came; two cores would leave it a freed stack."""
    path = tmp_path / "model.onnx"
    onnx.save(make_graph("embedding", Weights.random(0, 8, 1), 0), path)

    done = subprocess.run([sys.executable, "-c", SIGNAL_AFTER_USE, path], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "interrupted\n")


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (b"garbage", {}, "Unable to read the model. Please check if the model format is supported"),
        (None, {"NONSENSE": "1"}, "Unsupported property NONSENSE"),
    ],
)
def test_errors_are_one_line(graph, options, message):
    """A graph or option that OpenVINO refuses is a one-line error that states why."""
    graph = graph or make_graph("embedding", Weights.random(0, 8, 1), 0).SerializeToString()

    with pytest.raises(ValueError, match=message) as refused:
        OpenVINOGraph(graph, Execution(provider=OPENVINO, provider_options=options))
    assert "\n" not in str(refused.value)


def test_telemetry_is_off(tmp_path):
    """The import of OpenVINO loads nothing that calls home, and writes no file."""
    code = (
        "import tasks, openvino, sys; print([name for name in sys.modules if name.startswith('openvino_telemetry.')])"
    )
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []
