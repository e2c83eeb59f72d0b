"""Canaries: a model that loads and answers is only healthy while its numbers are right."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertline.v1 import encoder_pb2 as pb
from serving.core.canary import Canaries
from serving.core.models import Model, load_model
from serving.core.scheduler import Scheduler
from serving.core.session import Session
from tasks.bundle.known_outputs import known_input, sample
from tasks.bundle.model_directory import MODEL_FILE
from tests.serving.conftest import serve
from tests.serving.core.test_broken_models import sign
from tests.serving.http_api.requests import send
from tests.serving.models import SETTINGS, edit_manifest, write_model
from tests.serving.reliability import wait_until


def write_known(models, task):
    """Write a model whose manifest has its outputs for the known input, as numpy computes them."""
    reference = write_model(models, task=task)
    outputs = reference.outputs(known_input(reference.task.tokenizer, SETTINGS[task]["max_seq_length"]))
    values = {name: sample(array[None])[0].tolist() for name, array in outputs.items()}
    edit_manifest(models / "tiny/1", known_outputs={"values": values, "atol": dict.fromkeys(values, 1e-4)})
    return models / "tiny/1"


def damage(directory, change):
    """Change the embeddings of a graph, and sign it again."""
    graph = onnx.load(directory / MODEL_FILE)
    tensor = next(item for item in graph.graph.initializer if item.name == "embedding")
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)).astype(np.float32), "embedding"))
    onnx.save(graph, directory / MODEL_FILE)
    sign(directory)


@pytest.mark.parametrize("task", SETTINGS)
def test_a_graph_with_other_numbers_is_not_loaded(tmp_path, task):
    """A graph of right shapes and wrong numbers fails to load; one with the manifest's numbers loads."""
    directory = write_known(tmp_path, task)
    assert len(load_model(directory).probes) == 2

    damage(directory, lambda weights: weights[::-1] * 1.5)
    with pytest.raises(ValueError, match=r"wrong numbers: output `\w+` differs from the known one by `.*tolerance"):
        load_model(directory)


def test_a_graph_without_numbers_is_not_loaded(tmp_path):
    """NaN at load is an error, also without numbers in the manifest, and known outputs of another size are."""
    directory = write_known(tmp_path, "classification")
    edit_manifest(directory, known_outputs={"values": {"logits": [1.0]}, "atol": {"logits": 9.0}})
    with pytest.raises(ValueError, match="`logits` has not the size of the known one"):
        load_model(directory)

    edit_manifest(directory, known_outputs={"values": {"logits": [1.0]}, "atol": {}})
    with pytest.raises(ValueError, match="known_outputs needs values and atol of the same outputs"):
        load_model(directory)

    edit_manifest(directory, known_outputs=None)
    damage(directory, lambda weights: weights * np.nan)
    with pytest.raises(ValueError, match="output `logits` has NaN or infinity"):
        load_model(directory)


class Watched:
    """Canaries of one model with a clock that only moves by hand."""

    def __init__(self, model, every_s=60):
        self.now_s, self.num_changes = 0.0, 0
        self.scheduler = Scheduler(workers=1, observer=Mock())
        self.canaries = Canaries(self.scheduler, every_s, self._changed, clock=lambda: self.now_s)
        self.model = model
        self.canaries.watch([model])

    def _changed(self):
        self.num_changes += 1

    def after(self, seconds):
        """Move the clock, let what is due run to its end, and return the problem."""
        self.now_s += seconds
        self.canaries.tick()
        wait_until(lambda: all(item.future is None or item.future.done() for item in self.canaries._canaries))
        self.canaries.tick()
        return self.canaries.problems()[self.model]


@contextmanager
def watched(model, **options):
    found = Watched(model, **options)
    try:
        yield found
    finally:
        found.scheduler.close()


def changed(change):
    return lambda *given: {name: change(array) for name, array in RUN(*given).items()}


def fail(*_):
    raise RuntimeError("Failed to allocate memory for requested buffer of size 1073741824")


RUN = Session.run
WRONG = {
    "other numbers": (changed(lambda array: array + 1), "differs from the known one"),
    "NaN": (changed(lambda array: array * np.nan), "has NaN or infinity"),
    "no memory": (fail, "Failed to allocate memory"),
}


@pytest.mark.parametrize(("run", "problem"), WRONG.values(), ids=WRONG)
def test_a_model_that_breaks_is_found_and_recovers(tmp_path, monkeypatch, run, problem):
    """A canary runs each minute; after a failure it runs soon again, and a run that passes ends the problem."""
    write_model(tmp_path)
    with watched(load_model(tmp_path / "tiny/1")) as server:
        monkeypatch.setattr(Session, "run", run)
        assert server.after(59) == ""
        assert problem in server.after(1)
        assert problem in server.after(5)
        monkeypatch.setattr(Session, "run", RUN)
        assert problem in server.after(4)
        assert server.after(1) == ""
        assert server.num_changes == 2


def test_a_run_that_hangs_is_a_problem(tmp_path, monkeypatch):
    """A canary that hangs is aborted as any batch, and the model has the problem until one passes."""
    write_model(tmp_path)
    ended = threading.Event()
    with watched(load_model(tmp_path / "tiny/1")) as server:
        server.scheduler._max_run_s = 0.05
        with monkeypatch.context() as patch:
            patch.setattr(Session, "new_run", lambda *_, **__: SimpleNamespace(abort=ended.set))
            patch.setattr(Session, "run", lambda *_: ended.wait(10) and fail())
            server.now_s = 60
            server.canaries.tick()
            wait_until(lambda: server.scheduler.check_workers() and ended.is_set())
            assert "did not end in time" in server.after(0)
        assert server.after(10) == ""


@pytest.mark.parametrize(("core_s", "every_s"), [(0.001, 60), (0.3, 60), (2.0, 600), (0.1, 0)])
def test_canaries_take_a_thousandth_of_a_core(tmp_path, monkeypatch, core_s, every_s):
    """The interval stretches so that all canaries take at most 0.1% of a core; with 0 they wait for a demand."""
    write_model(tmp_path)
    model = load_model(tmp_path / "tiny/1")
    model = replace(model, probes=[replace(probe, core_s=core_s) for probe in model.probes])
    monkeypatch.setattr("serving.core.canary.Canary.compute", lambda canary, *_: runs.append(canary) or [""])
    runs = []
    with watched(model, every_s=every_s) as server:
        for _ in range(100):
            server.after(100)

        assert len(runs) * core_s / server.now_s <= 0.001
        assert len(runs) >= 0.6 * 2 * server.now_s / max(every_s, 100, 2 * core_s / 0.001) if every_s else not runs
        before = len(runs)
        asyncio.run(server.canaries.run())
        assert len(runs) == before + 2


def test_a_server_with_a_broken_model_is_not_ready(tmp_path, monkeypatch):
    """Health, its reason, the list of models and the metric say which model is broken; other models stay healthy."""
    for name in ("good", "bad"):
        write_model(tmp_path, name)
    service = "bertline.v1.Encoder"
    with serve(tmp_path, http_port=0, canary_s=0) as running:

        def states():
            names = ("", service, f"{service}/bad", f"{service}/bad/1", f"{service}/good")
            return [running.health(name) == "SERVING" for name in names]

        def metric(name):
            return running.total("bertline_model_healthy", model=name, version="1")

        assert send(running, "POST", "/health").json() == {"status": "ok"}
        with monkeypatch.context() as patch:
            patch.setattr(Model, "probe", lambda model, *_: "it is wrong" * (model.manifest.name == "bad"))
            reply = send(running, "POST", "/health")
            reason = "`bad/1` fails its canary: it is wrong"
            assert (reply.status, reply.json()) == (503, {"status": reason})
            assert running.get()[::2] == (503, f"{reason}\n")
            assert states() == [False, False, False, False, True]
            errors = [item.error for item in running.stub.ListModels(pb.ListModelsRequest()).models]
            assert errors == ["it is wrong", ""]
            assert (metric("bad"), metric("good")) == (0, 1)
        assert send(running, "POST", "/health").status == 200
        assert (states(), metric("bad")) == ([True] * 5, 1)
        assert running.total("bertline_tokens_total") == 0
