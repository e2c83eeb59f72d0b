"""ONNX Runtime and OpenVINO behind the same sessions: answers, aborts, fallback, metrics."""

from __future__ import annotations

import asyncio
import queue
import shutil
from dataclasses import asdict

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bertline.v1 import encoder_pb2 as pb
from serving.core.models import load_model
from serving.core.session import OnnxRuntimeRun
from tasks.bundle.files import sha256
from tasks.bundle.manifest import Execution
from tasks.bundle.model_directory import MODEL_FILE, read_model_directory
from tasks.bundle.openvino_graph import OpenVINORun
from tasks.bundle.providers import CPU, OPENVINO
from tasks.features import Features
from tests.serving.conftest import serve
from tests.serving.models import edit_manifest, write_model
from tests.serving.open_inference.messages import call

OPENVINO_FILE = "model.openvino.onnx"
RUNS = {CPU: OnnxRuntimeRun, OPENVINO: OpenVINORun}
EVERY = pytest.mark.parametrize("provider", RUNS, ids=["onnxruntime", "openvino"])


def write_both(models, **changes):
    """Write a model with a graph for each engine, and return its reference."""
    reference = write_model(models, execution=Execution(provider=OPENVINO, max_batch_tokens=64), **changes)
    path = models / "tiny/1"
    shutil.copy(path / MODEL_FILE, path / OPENVINO_FILE)
    with (path / OPENVINO_FILE).open("ab") as file:
        file.write(b"\x12\x01x")  # producer_name
    files = {item.name: sha256(item) for item in path.iterdir() if item.name != "manifest.json"}
    edit_manifest(path, files=files, fallback=asdict(Execution(max_batch_tokens=32)))
    return reference


@pytest.fixture
def _no_openvino(monkeypatch):
    for module in ("tasks.bundle.providers", "serving.core.session"):
        monkeypatch.setattr(f"{module}.has_openvino", lambda: False)


@EVERY
@pytest.mark.parametrize("task", ["embedding", "classification", "spans", "masked-lm", "sparse-embedding", "tagging"])
def test_batch_equals_single_sequences(provider, task, tmp_path):
    """A batch of different lengths equals numpy's results for each sequence alone."""
    reference = write_model(tmp_path, task=task, execution=Execution(provider=provider))
    model = load_model(tmp_path / "tiny" / "1")
    tokenizer = model.task.tokenizer
    sequences = [
        Features(**tokenizer.assemble(item.ids)) for item in tokenizer.tokenize(["cat", "the cat sees", "who likes"])
    ]

    for sequence, outputs in zip(sequences, model.compute(sequences), strict=True):
        for name, expected in reference.outputs(sequence).items():
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-5)


@EVERY
def test_abort_before_the_run(provider, tmp_path):
    """An abort before the run starts is not lost, and affects that run only."""
    write_model(tmp_path, execution=Execution(provider=provider))
    model = load_model(tmp_path / "tiny" / "1")
    sequences = model.task.encode(["cat"])[0]
    run = model.new_run()
    run.abort()

    with pytest.raises(Exception, match=r"terminate flag|was aborted"):
        model.compute(sequences, run)
    assert len(model.compute(sequences, model.new_run())) == 1


@EVERY
def test_a_run_that_hangs_is_aborted(provider, tmp_path, monkeypatch):
    """A hanging run is INTERNAL and makes the server NOT_SERVING until it ends, and later calls are answered.

    Meanwhile /healthz answers 503 with the reason.
    """
    write_model(tmp_path, "slow", hidden_size=512, passes=100, execution=Execution(provider=provider))
    aborted, abort = queue.Queue(), RUNS[provider].abort
    monkeypatch.setattr(RUNS[provider], "abort", lambda run: aborted.put(run))
    monkeypatch.setattr("serving.server.MONITOR_S", 0.01)
    monkeypatch.setattr("serving.core.scheduler.ABORT_S", 60)
    text = "the cat sees " * 10
    with serve(tmp_path, workers=1, max_batch_tokens=8192, max_queue_s=600) as running:
        running.server._scheduler._max_run_s = 0.01
        watching = asyncio.run_coroutine_threadsafe(running.server.monitor_workers(), running.loop)
        watch = health_pb2_grpc.HealthStub(running.channel).Watch(
            health_pb2.HealthCheckRequest(service=""), timeout=120
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        hung = running.stub.Embed.future(pb.EmbedRequest(texts=[text] * 256), timeout=120)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        status, _, reason = running.get()
        assert (status, "batch" in reason) == (503, True)
        abort(aborted.get(timeout=60))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert hung.code() is grpc.StatusCode.INTERNAL
        running.server._scheduler._max_run_s = 60
        assert running.stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=60).dim == 512
        watching.cancel()


@EVERY
def test_metrics_name_engine_and_graph(provider, tmp_path):
    """The metrics state which engine runs a model, and have the digest of the graph that it runs.

    Metadata and configuration of the Open Inference Protocol name the engine as Triton does.
    """
    write_both(tmp_path)
    path = tmp_path / "tiny/1"
    name = OPENVINO_FILE if provider == OPENVINO else MODEL_FILE
    if provider == CPU:
        edit_manifest(path, execution=asdict(Execution()))
    digest = sha256(path / name)
    with serve(tmp_path) as running:
        engine = Execution(provider=provider).engine
        assert running.total("bertline_model_info", engine=engine, digest=digest) == 1
        assert running.stub.GetModel(pb.GetModelRequest()).digest == digest
        metadata, config = call(running, "ModelMetadata", name="tiny"), call(running, "ModelConfig", name="tiny").config

    assert metadata.platform == config.platform == {CPU: "onnxruntime_onnx", OPENVINO: "openvino"}[provider]
    assert config.backend == engine


def test_each_engine_has_its_graph(tmp_path):
    """OpenVINO loads its own graph, and `model.onnx` where a directory has only that."""
    write_both(tmp_path)
    directory = read_model_directory(tmp_path / "tiny/1")

    assert directory.model_path.name == OPENVINO_FILE
    assert directory.graph_path(directory.manifest.fallback).name == MODEL_FILE
    assert load_model(tmp_path / "tiny/1").session.path.name == OPENVINO_FILE
    write_model(tmp_path, "old", execution=Execution(provider=OPENVINO))
    assert load_model(tmp_path / "old/1").session.path.name == MODEL_FILE


@pytest.mark.usefixtures("_no_openvino")
def test_missing_engine(tmp_path):
    """Without OpenVINO a model for it is an error with the remedy, also one that has a graph for ONNX Runtime."""
    write_both(tmp_path)
    with pytest.raises(ValueError, match="is not installed; pip install openvino, or start with --engine-fallback"):
        load_model(tmp_path / "tiny/1")
    write_model(tmp_path, "alone", execution=Execution(provider=OPENVINO))
    with pytest.raises(ValueError, match="pip install openvino, or export the model again with --engine onnxruntime"):
        load_model(tmp_path / "alone/1", engine_fallback=True)


@pytest.mark.usefixtures("_no_openvino")
def test_fallback(tmp_path, caplog):
    """With --engine-fallback the graph for ONNX Runtime is served, with its settings and digest, which is logged."""
    write_both(tmp_path)
    path = tmp_path / "tiny/1"
    with serve(tmp_path, engine_fallback=True) as running:
        assert running.total("bertline_model_info", engine="onnxruntime", digest=sha256(path / MODEL_FILE)) == 1
        assert running.stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=60).dim == 8
    assert load_model(path, engine_fallback=True).max_batch_tokens == 32
    assert "runs in ONNX Runtime" in caplog.text


def test_overflowing_int8_is_not_served(tmp_path, monkeypatch, caplog):
    """Where OpenVINO's int8 sums overflow, an int8 model for it is an error, or falls back; one in fp32 is served."""
    monkeypatch.setattr("serving.core.session.int8_sums_overflow", lambda: True)
    write_both(tmp_path)
    path = tmp_path / "tiny/1"
    assert load_model(path, engine_fallback=True).execution.engine == "openvino"
    edit_manifest(path, precision="int8")

    with pytest.raises(ValueError, match="has no VNNI; start with --engine-fallback to use its graph"):
        load_model(path)
    assert load_model(path, engine_fallback=True).execution.engine == "onnxruntime"
    assert "which has no VNNI" in caplog.text


@EVERY
def test_broken_graph(provider, tmp_path):
    """A graph that the engine refuses is an error in one line that names the file."""
    write_model(tmp_path, execution=Execution(provider=provider))
    path = tmp_path / "tiny/1"
    (path / MODEL_FILE).write_bytes(b"garbage")
    edit_manifest(path, files={name: sha256(path / name) for name in (MODEL_FILE, "tokenizer.json")})

    with pytest.raises(ValueError, match=rf"cannot load `{path / MODEL_FILE}`: ") as refused:
        load_model(path)
    assert "\n" not in str(refused.value)
