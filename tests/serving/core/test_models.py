import time

import numpy as np
import onnx
import pytest

from serving.core.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from serving.core.models import Models, Version, load_model
from serving.core.session import Session
from serving.endpoints import ENDPOINTS
from tasks import TASKS
from tasks.bundle.files import sha256
from tasks.bundle.manifest import Execution
from tasks.bundle.model_directory import MODEL_FILE
from tasks.features import INPUT_NAMES
from tests.serving.models import SETTINGS, edit_manifest, write_model


def test_shared_tokenizer(tmp_path):
    """Models with the same tokenizer file share one tokenizer, loaded once."""
    for version in ("1", "2"):
        write_model(tmp_path, version=version)
    models = [load_model(tmp_path / "tiny" / version) for version in ("1", "2")]

    assert models[0].task.tokenizer is models[1].task.tokenizer


@pytest.mark.parametrize(
    ("settings", "max_batch_tokens", "num_threads"),
    [
        ({}, 64, 3),
        ({"max_batch_tokens": 7, "num_threads": 2}, 7, 2),
        ({"workers": 2}, 64, 2),
        ({"workers": 8}, 64, 3),
    ],
)
def test_execution(tmp_path, settings, max_batch_tokens, num_threads):
    """Token cap and threads come from the manifest unless settings replace them; threads never exceed the cores."""
    write_model(tmp_path, execution=Execution(max_batch_tokens=64, num_threads=3))

    model = load_model(tmp_path / "tiny" / "1", **settings)

    assert model.max_batch_tokens == max_batch_tokens
    assert model.num_threads == num_threads
    assert model.session._graph._session.get_session_options().intra_op_num_threads == num_threads


@pytest.mark.parametrize(
    ("versions", "requested", "error", "message"),
    [
        ([Version("m", "1", error="bad"), Version("m", "2")], ("m", ""), UnavailableError, "`m/2` is being loaded"),
        ([Version("m", "1"), Version("m", "2", error="bad")], ("m", ""), UnavailableError, "`m/1` is being loaded"),
        ([Version("m", "1", error="bad"), Version("m", "2")], ("m", "1"), ModelNotFoundError, "`m/1` .*: bad"),
        (
            [Version("m", "9", error="bad"), Version("m", "10", error="worse")],
            ("m", ""),
            ModelNotFoundError,
            "`m/10` could not be loaded: worse",
        ),
        ([Version("m", "1")], ("n", ""), ModelNotFoundError, r"`n` does not exist \(loaded: none\)"),
        ([], ("", ""), ModelNotFoundError, "no model is loaded"),
        ([Version("m", "1", error="bad")], ("", ""), ModelNotFoundError, "no model is loaded"),
        ([Version("m", "1", error="bad"), Version("n", "1")], ("", ""), UnavailableError, "`n/1` is being loaded"),
    ],
)
def test_models_that_are_not_loaded(versions, requested, error, message):
    """A version that is loading is UNAVAILABLE; otherwise the error of the highest failed version is reported."""
    with pytest.raises(error, match=message):
        Models(versions).find(*requested)


@pytest.mark.parametrize(
    ("since", "defaults", "task", "found"),
    [
        ({"b": 0, "c": 1, "d": 2}, {}, "embedding", "b"),
        ({"b": 1, "c": 0, "d": 2}, {}, "embedding", "c"),
        ({"b": 1, "c": 0, "d": 2}, {}, None, "c"),
        ({"b": 1, "c": 1, "d": 0}, {}, None, "d"),
        ({"b": 0, "c": 0, "d": 1}, {}, "embedding", None),
        ({"b": 0, "c": 0, "d": 1}, {"embedding": "c"}, "embedding", "c"),
        ({"b": 0, "c": 0, "d": 1}, {"embedding": "c"}, "regression", "d"),
    ],
)
def test_default_models(tmp_path, since, defaults, task, found):
    """Without a name, the model that was loaded first answers, or that of --default-model; no model if several were."""
    tasks = {"b": "embedding", "c": "embedding", "d": "regression"}
    for name, kind in tasks.items():
        write_model(tmp_path, name, task=kind)
    versions = [Version(name, "1", load_model(tmp_path / name / "1")) for name in tasks]
    models = Models(versions, since=since, defaults=defaults)

    if found:
        assert models.find("", "", task).manifest.name == found
    else:
        with pytest.raises(InvalidRequestError, match="several models are loaded"):
            models.find("", "", task)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"execution": Execution(provider="CUDAExecutionProvider")}, "not installed: `CUDAExecutionProvider`"),
        ({"inputs": INPUT_NAMES[:2]}, "has the inputs .*, but its manifest names input_ids, attention_mask"),
        ({"outputs": ("logits",)}, "has the outputs .*, but its manifest names logits"),
        ({"hidden_size": 9}, r"has shape \[2, 8\], but its manifest needs \[2, 9\]"),
        ({"task": "classification", "settings": SETTINGS["classification"]}, "has no output `logits`"),
    ],
)
def test_graph_unlike_manifest(tmp_path, changes, message):
    """A graph that does not match its manifest is an error that names the difference."""
    if changes.keys() & {"hidden_size", "task"}:
        write_model(tmp_path)
        edit_manifest(tmp_path / "tiny" / "1", **changes)
    else:
        write_model(tmp_path, **changes)

    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "tiny" / "1")


def test_every_task_is_served():
    """Each task has one separate endpoint; Rerank and ZeroShot use models of other tasks."""
    assert sorted(endpoint.task for endpoint in ENDPOINTS) == sorted([*TASKS, "rerank", "zero-shot"])


def test_model_directory_with_another_name_is_an_error(tmp_path):
    """A model directory under another name is an error that names its own name."""
    write_model(tmp_path)
    (tmp_path / "tiny").rename(tmp_path / "renamed")

    with pytest.raises(ValueError, match=r"manifest of `.*renamed/1` is that of `tiny/1`"):
        load_model(tmp_path / "renamed" / "1")


def test_graph_that_fails(tmp_path):
    """A graph that cannot process the tokenizer's ids fails at warm-up."""
    write_model(tmp_path)
    directory = tmp_path / "tiny" / "1"
    graph = onnx.load(directory / MODEL_FILE)
    embedding = next(item for item in graph.graph.initializer if item.name == "embedding")
    embedding.CopyFrom(onnx.numpy_helper.from_array(np.zeros((2, 8), np.float32), "embedding"))
    onnx.save(graph, directory / MODEL_FILE)
    edit_manifest(directory, files={name: sha256(directory / name) for name in (MODEL_FILE, "tokenizer.json")})

    with pytest.raises(ValueError, match="fails on 32 tokens"):
        load_model(directory)


def test_speed_is_that_of_the_fastest_run(tmp_path, monkeypatch):
    """The speed is that of the fastest run, because other processes may slow some runs down."""
    write_model(tmp_path)
    monkeypatch.setattr("serving.core.models.MAX_MEASURE_S", 60)
    run, pauses = Session.run, iter([0.6, 0.4])

    def slow(*arguments):
        time.sleep(next(pauses, 0.0))
        return run(*arguments)

    monkeypatch.setattr(Session, "run", slow)
    model = load_model(tmp_path / "tiny" / "1")

    assert [tokens for tokens, _ in model.measured_batches] == [2 * model.task.settings.max_seq_length, 6]
    assert max(seconds for _, seconds in model.measured_batches) < 0.4
