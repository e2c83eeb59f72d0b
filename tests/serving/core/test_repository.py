"""Servers whose directory of models changes while they serve."""

import asyncio
import errno
import gc
import os
import shutil
import threading
import time
import weakref
from contextlib import contextmanager

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bertline.v1 import encoder_pb2 as pb
from serving.core import repository as repository_module
from serving.core.repository import Repository
from serving.grpc_api.health import SERVING, HealthServicer
from tasks.bundle.model_directory import MODEL_FILE
from tests.serving.conftest import serve
from tests.serving.models import edit_manifest, write_model
from tests.serving.reliability import errors_of, is_vector, vectors, wait_until

SERVICE = "bertline.v1.Encoder"
TEXTS = ["the cat", "who likes the old river", "dog", "a bird near the tree ."]
LONG = "the cat " * 15


@pytest.fixture
def put(tmp_path):
    """Function that writes a model elsewhere and renames it into the directory of models, as export does."""

    def put(name="tiny", version="1", *, broken=False, **options):
        staging, place = tmp_path / "staging", tmp_path / "models" / name / version
        reference = write_model(staging, name, version, **options)
        if broken:
            (staging / name / version / MODEL_FILE).write_bytes(b"junk")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            os.rename(place, staging / "old")
        os.rename(staging / name / version, place)
        shutil.rmtree(staging)
        return reference

    return put


@pytest.fixture
def models_dir(tmp_path):
    return tmp_path / "models"


@contextmanager
def watching(models_dir, **settings):
    """Server that polls every 20 ms."""
    with serve(models_dir, **{"poll_s": 0.02} | settings) as running:
        yield running


def embed(server, texts=TEXTS, **model):
    return server.stub.Embed(pb.EmbedRequest(texts=texts, model=pb.ModelRef(**model)), timeout=20)


def versions(server):
    """Return states and errors of ListModels by `name/version`."""
    reply = server.stub.ListModels(pb.ListModelsRequest())
    return {
        f"{info.model.name}/{info.model.version}": (pb.ModelState.Name(info.state)[12:], info.error)
        for info in reply.models
    }


def states(server):
    return {key: state for key, (state, _) in versions(server).items()}


@contextmanager
def clients(server, num_threads=4):
    """Run clients that call without pause; yield their replies in the order of arrival."""
    replies, errors, stopping = [], [], threading.Event()

    def call():
        while not stopping.is_set():
            try:
                replies.append(embed(server))
            except grpc.RpcError as error:
                errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield replies
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert not errors


def wait_for_more(replies, count=20):
    """Wait for more replies."""
    target = len(replies) + count
    wait_until(lambda: len(replies) >= target)


def is_of(reply, expected):
    return is_vector(vectors(reply), expected)


def test_replaced_under_load(put, models_dir):
    """A version that is replaced in place again and again answers each call wholly with one of its contents."""
    contents = [np.stack(put(seed=0).predict(TEXTS))]
    with watching(models_dir) as server, clients(server) as replies:
        for seed in range(1, 4):
            wait_for_more(replies)
            contents.append(np.stack(put(seed=seed).predict(TEXTS)))
            wait_until(lambda: is_of(replies[-1], contents[-1]))

    chosen = [[is_of(reply, expected) for expected in contents].index(True) for reply in replies]

    assert set(chosen) == {0, 1, 2, 3}


def test_version_is_replaced_by_another_task(put, models_dir):
    """A version may be replaced by a model of another task."""
    put()
    with watching(models_dir) as server:
        put(task="classification")
        wait_until(lambda: server.stub.ListModels(pb.ListModelsRequest()).models[0].task == "classification")

        assert len(server.stub.Classify(pb.ClassifyRequest(inputs=[pb.TextInput(text="cat")])).results) == 1
        assert server.total("bertline_model_info") == server.total("bertline_model_info", task="classification") == 1


def test_unloaded_under_load(put, models_dir, held):
    """A call that waits for a model whose directory is removed is answered; later calls are NOT_FOUND."""
    put("keeper")
    put("slow")
    with watching(models_dir, workers=1, max_batch_tokens=32) as server:
        request = pb.EmbedRequest(texts=[LONG] * 64, model=pb.ModelRef(name="slow"))
        call = server.stub.Embed.future(request)
        server.wait_for("bertline_queue_tokens", 1, model="slow")
        shutil.rmtree(models_dir / "slow")
        wait_until(lambda: "slow/1" not in versions(server))

        assert server.total("bertline_model_state", model="slow", state="unloading") == 1
        assert not call.done()
        held.set()
        assert len(call.result(120).num_tokens) == 64
        assert server.stub.Embed.future(request).code() is grpc.StatusCode.NOT_FOUND
        assert "bertline_queue_tokens" not in {name for name, labels in server.metrics() if ("model", "slow") in labels}
        assert server.total("bertline_tokens_total", model="slow") == 64 * 32


def test_replaced_model_is_freed(put, models_dir):
    """The session of a replaced model is freed, and its last state disappears."""
    put()
    put("other")
    with watching(models_dir) as server:
        embed(server, name="tiny")
        before = [weakref.ref(model.session) for model in server.server._repository.models if "tiny" in str(model)]
        put(version="2")
        shutil.rmtree(models_dir / "tiny" / "1")
        wait_until(lambda: states(server) == {"other/1": "READY", "tiny/2": "READY"})
        gc.collect()

        assert [reference() for reference in before] == [None]
        assert not [labels for name, labels in server.metrics() if "_state" in name and ("version", "1") in labels[1:2]]


def test_a_further_model_of_a_task(put, models_dir, caplog):
    """The first model still answers requests without a name, and a warning says so; that of --default-model does so
    from the start."""
    put("second")
    with watching(models_dir) as server:
        put("first")
        wait_until(lambda: "first/1" in states(server) and states(server)["first/1"] == "READY")
        assert embed(server).model.name == "second"
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith("set --default-model embedding=second")

    with serve(models_dir, default_model={"embedding": "first", "rerank": "none"}) as server:
        assert embed(server).model.name == "first"
        with pytest.raises(grpc.RpcError, match="model `none` does not exist"):
            server.stub.Rerank(pb.RerankRequest(inputs=[pb.RerankInput(query="a", documents=["b"])]))
    assert "--default-model rerank=none: no such model is loaded" in caplog.records[-1].getMessage()
    with serve(models_dir) as server, pytest.raises(grpc.RpcError, match="several models are loaded"):
        embed(server)


ONE, OTHER = "1" * 16, "2" * 16


def test_another_space_warns(put, models_dir, caplog):
    """A line says that a name gives vectors of another space: replaced, of a new version, or the one before again."""
    put(space=ONE)
    with watching(models_dir) as server:
        assert embed(server).model.space == server.stub.GetModel(pb.GetModelRequest()).model.space == ONE
        with pytest.raises(grpc.RpcError, match=f"vectors of space `{ONE}`, not of `{OTHER}`") as refused:
            embed(server, space=OTHER)
        put(space=OTHER, seed=1)
        wait_until(lambda: embed(server).model.space == OTHER)
        put(version="2", space=OTHER)
        wait_until(lambda: embed(server).model.version == "2")
        put(version="3", space=ONE)
        wait_until(lambda: embed(server).model.version == "3")
        assert embed(server, space=ONE).model.space == ONE
        shutil.rmtree(models_dir / "tiny" / "3")
        wait_until(lambda: embed(server).model.version == "2")

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    lines = [record.getMessage() for record in caplog.records if "now gives vectors" in record.getMessage()]
    assert [line[: line.index(": compute")] for line in lines] == [
        f"`tiny` now gives vectors of space `{now}`, not of `{before}`"
        for now, before in ((OTHER, ONE), (ONE, OTHER), (OTHER, ONE))
    ]


def test_pinned_space_is_kept(put, models_dir, caplog):
    """With --space, a version of another space is not loaded, and the one before goes on answering."""
    put(space=ONE)
    put("free")
    with watching(models_dir, space={"tiny": ONE, "none": ONE}) as server:
        assert f"--space none={ONE}: there is no such model" in caplog.text
        put(space=OTHER, seed=1)
        wait_until(lambda: states(server)["tiny/1"] == "STALE")
        assert embed(server, name="tiny").model.space == ONE
        assert f"vectors of space `{OTHER}`; --space wants `{ONE}`" in versions(server)["tiny/1"][1]
    with pytest.raises(ValueError, match=r"--space wants"):
        serve(models_dir, space={"tiny": ONE}, strict=True).__enter__()


def test_models_in_wrong_places(put, models_dir, caplog):
    """Each is warned of once with its path, at the start and while others are served."""
    put()
    put("flat")
    for item in (models_dir / "flat" / "1").iterdir():
        item.rename(models_dir / "flat" / item.name)
    os.rmdir(models_dir / "flat" / "1")
    with watching(models_dir) as server:
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [line.partition("; ")[0] for line in warnings] == [
            f"`{models_dir}/flat` holds a model that is not served: move it to a version, such as `{models_dir}/flat/1`"
        ]
        shutil.copytree(models_dir / "tiny" / "1", models_dir / "tiny" / "latest")
        wait_until(lambda: f"`{models_dir}/tiny/latest` holds a model" in caplog.records[-1].getMessage())
        time.sleep(0.1)

        assert embed(server).model.version == "1"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2


def test_bad_version(put, models_dir, caplog):
    """A version that cannot be loaded is reported once, leaves the others serving, and serves once it is corrected."""
    put()
    with watching(models_dir) as server:
        put(version="2", broken=True)
        wait_until(lambda: states(server).get("tiny/2") == "FAILED")
        time.sleep(0.2)

        assert embed(server).model.version == "1"
        error = versions(server)["tiny/2"][1]
        assert error.startswith("wrong digest of `")
        assert "\n" not in error
        with pytest.raises(grpc.RpcError, match="`tiny/2` could not be loaded: wrong digest"):
            embed(server, name="tiny", version="2")
        assert [error in line for line in errors_of(caplog)] == [True]
        assert server.total("bertline_model_state", version="2", state="failed") == 1
        assert server.total("bertline_model_loads_total", version="2", result="failed") == 1
        assert (server.health(f"{SERVICE}/tiny/2"), server.health(f"{SERVICE}/tiny"), server.health()) == (
            "NOT_SERVING",
            "SERVING",
            "SERVING",
        )

        put(version="2")
        wait_until(lambda: states(server)["tiny/2"] == "READY")
        assert embed(server).model.version == "2"
        assert server.health(f"{SERVICE}/tiny/2") == "SERVING"
        assert server.total("bertline_model_loads_total", version="2", result="loaded") == 1


def test_corrected_version_is_loading(put, models_dir, monkeypatch):
    """While the correction of a failed version is loaded, calls for it are UNAVAILABLE."""
    put("tiny", task="regression")
    put("mended", broken=True)
    entered, gate = threading.Event(), threading.Event()
    load_unchanged = Repository._load_unchanged

    def held(*arguments):
        entered.set()
        assert gate.wait(60)
        return load_unchanged(*arguments)

    with watching(models_dir) as server:
        assert states(server)["mended/1"] == "FAILED"
        monkeypatch.setattr(Repository, "_load_unchanged", held)
        put("mended")
        assert entered.wait(60)
        for model in ({}, {"name": "mended"}, {"name": "mended", "version": "1"}):
            with pytest.raises(grpc.RpcError, match="`mended/1` is being loaded; try again") as caught:
                embed(server, **model)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert versions(server)["mended/1"] == ("LOADING", "")
        gate.set()
        wait_until(lambda: states(server)["mended/1"] == "READY")
        embed(server)


def scan(server):
    """Make a server scan its directory once, as polling does."""
    refresh = server.server._repository.refresh(patient=True)
    asyncio.run_coroutine_threadsafe(refresh, server.loop).result(60)


@pytest.mark.parametrize("breakage", ["graph", "task"])
def test_replaced_by_a_broken_version(put, models_dir, breakage):
    """A version serves on as STALE if its replacement cannot be loaded."""
    reference = put()
    directory = models_dir / "tiny" / "1"
    with watching(models_dir) as server:
        if breakage == "graph":
            (directory / MODEL_FILE).write_bytes(b"junk")
        else:
            edit_manifest(directory, task="regression", settings={})
        wait_until(lambda: states(server)["tiny/1"] == "STALE")

        assert is_of(embed(server), np.stack(reference.predict(TEXTS)))
        assert server.total("bertline_model_state", state="stale") == 1
        assert server.health(f"{SERVICE}/tiny/1") == "SERVING"


@pytest.mark.parametrize("manifest_last", [False, True])
def test_version_is_loaded_when_its_copy_is_complete(put, models_dir, tmp_path, caplog, manifest_last):
    """A directory that is copied file by file is loaded when it is complete, without errors before."""
    put()
    write_model(tmp_path / "staging", version="2")
    with watching(models_dir, poll_s=0) as server:
        target = models_dir / "tiny" / "2"
        target.mkdir()
        for item in sorted((tmp_path / "staging" / "tiny" / "2").iterdir(), reverse=manifest_last):
            content = item.read_bytes()
            with open(target / item.name, "wb", buffering=0) as file:
                for start in range(0, len(content), 1 + len(content) // 4):
                    file.write(content[start : start + 1 + len(content) // 4])
                    scan(server)
        scan(server)

        assert states(server)["tiny/2"] == "READY"

    assert not errors_of(caplog)


def test_same_content(put, models_dir):
    """A version that only looks new is checked, but neither loaded again nor counted."""
    put()
    with watching(models_dir, poll_s=0) as server:
        model = next(iter(server.server._repository.models))
        seconds = server.total("bertline_model_load_seconds")
        os.utime(models_dir / "tiny" / "1" / MODEL_FILE)
        scan(server)

        assert next(iter(server.server._repository.models)) is model
        assert server.total("bertline_model_loads_total", result="loaded") == 1
        assert server.total("bertline_model_load_seconds") == seconds


def test_malformed_manifest_fails_only_its_version(put, models_dir):
    """A manifest that cannot be written as JSON or UTF-8 fails its own version; the others are listed."""
    put()
    odd = {"nan": {"scores": {"pearson": float("nan")}}, "half": {"outputs": ["\ud800"]}, "key": {"\ud800": 1}}
    for name, changes in odd.items():
        put(name)
        edit_manifest(models_dir / name / "1", **changes)
    with serve(models_dir) as server:
        assert states(server) == {"half/1": "FAILED", "key/1": "FAILED", "nan/1": "FAILED", "tiny/1": "READY"}


def test_unreadable_folder(put, models_dir, tmp_path, caplog):
    """If a folder cannot be read, its loaded versions serve on and other models come and go."""
    put()
    put("other")
    with watching(models_dir, poll_s=0) as server:
        os.rename(models_dir / "tiny", tmp_path / "away")
        os.symlink("tiny", models_dir / "tiny")
        put("third")
        shutil.rmtree(models_dir / "other")
        for _ in range(3):
            scan(server)

        assert states(server) == {"third/1": "READY", "tiny/1": "READY"}
        [error] = errors_of(caplog)
        assert error.startswith(f"cannot read `{models_dir / 'tiny'}`: too many levels of symbolic links; ")

        os.unlink(models_dir / "tiny")
        scan(server)
        assert states(server) == {"third/1": "READY"}

    os.symlink("tiny", models_dir / "tiny")
    with serve(models_dir) as server:
        assert states(server) == {"third/1": "READY"}
    with (
        pytest.raises(ValueError, match=r"a model cannot be loaded, and --strict is set: cannot read"),
        serve(models_dir, strict=True),
    ):
        pass
    shutil.rmtree(models_dir / "third")
    with pytest.raises(ValueError, match=r"no model can be loaded: cannot read"), serve(models_dir):
        pass


def test_requested_scan(put, models_dir):
    """A requested scan, without polling, also loads failed versions again."""
    put()
    put("other", broken=True)
    with watching(models_dir, poll_s=0) as server:
        for count in (2, 3):
            server.loop.call_soon_threadsafe(server.server.reload)
            server.wait_for("bertline_model_loads_total", count, result="failed")

        assert server.total("bertline_model_loads_total", result="loaded") == 1


def fail_to_load(monkeypatch, errors):
    """Make loads fail with these errors, one after another; return weak references to what they held."""
    load, held = Repository._load_unchanged, []

    class Weights:
        pass

    def failing(self, *arguments):
        if not errors:
            return load(self, *arguments)
        weights = Weights()
        held.append(weakref.ref(weights))
        raise errors.pop(0)

    monkeypatch.setattr(Repository, "_load_unchanged", failing)
    return held


def test_storage_that_fails_for_a_while(put, models_dir, monkeypatch, caplog):
    """A version whose files could not be read is loaded when they can be read, and the log reports the error once."""
    monkeypatch.setattr(repository_module, "RETRY_S", 0.05)
    put()
    with watching(models_dir) as server:
        fail_to_load(monkeypatch, [OSError(errno.EIO, "Input/output error", "weights") for _ in range(3)])
        put("other")
        wait_until(lambda: states(server).get("other/1") == "FAILED")
        wait_until(lambda: states(server).get("other/1") == "READY")

        assert server.total("bertline_model_loads_total", model="other", result="failed") == 1
        [error] = errors_of(caplog)
        assert error.endswith("it is not served: cannot read `weights`: input/output error")


def test_failed_load_frees_its_memory(put, models_dir, monkeypatch):
    """The memory of a failed load is free immediately, without the garbage collector."""
    put()
    gc.disable()
    try:
        with watching(models_dir) as server:
            held = fail_to_load(monkeypatch, [ValueError("broken"), ValueError("broken again")])
            for name in ("other", "third"):
                put(name)
                wait_until(lambda name=name: states(server).get(f"{name}/1") in ("FAILED", "READY"))
            wait_until(lambda: len(held) == 2 and not any(item() for item in held))
    finally:
        gc.enable()


def test_missing_directory_unloads_nothing(put, models_dir, tmp_path, caplog):
    """No model is unloaded if the directory of models vanishes or is empty, for example when it is unmounted."""
    put()
    with watching(models_dir) as server:
        os.rename(models_dir, tmp_path / "away")
        wait_until(lambda: caplog.records and "no directory of models" in caplog.records[-1].message)
        models_dir.mkdir()
        wait_until(lambda: "no models in" in caplog.records[-1].message)
        assert embed(server).model.version == "1"
        os.rename(tmp_path / "away", models_dir)
        put("other")
        wait_until(lambda: "other/1" in versions(server))

        assert len(errors_of(caplog)) == 2


def test_max_versions(put, models_dir):
    """Only the highest versions of each model that can be loaded are kept."""
    for version in ("1", "2", "10"):
        put(version=version, broken=version == "10")
    put("other", "7")
    with watching(models_dir, max_versions=1) as server:
        assert states(server) == {"other/7": "READY", "tiny/2": "READY", "tiny/10": "FAILED"}
        put(version="11")
        wait_until(lambda: "tiny/2" not in versions(server))

        assert states(server) == {"other/7": "READY", "tiny/11": "READY"}


def test_start_needs_one_model_or_all_if_strict(put, models_dir):
    """A server starts with the models that can be loaded, and not without any, or with --strict if one fails."""
    put(broken=True)
    put("other", broken=True)
    with (
        pytest.raises(ValueError, match=r"^no model can be loaded: wrong digest .*; wrong digest .*$"),
        serve(models_dir),
    ):
        pass
    put()
    with (
        pytest.raises(ValueError, match=r"^a model cannot be loaded, and --strict is set: "),
        serve(models_dir, strict=True),
    ):
        pass
    with serve(models_dir) as server:
        assert states(server) == {"other/1": "FAILED", "tiny/1": "READY"}
        with pytest.raises(grpc.RpcError, match="`other/1` could not be loaded: wrong digest"):
            embed(server, name="other")


def test_health_of_models(put, models_dir):
    """Health watches report when a model comes and goes; an unknown model is SERVICE_UNKNOWN or NOT_FOUND."""
    put("other")
    with watching(models_dir) as server:
        stub = health_pb2_grpc.HealthStub(server.channel)
        sent = iter(stub.Watch(health_pb2.HealthCheckRequest(service=f"{SERVICE}/tiny")))
        status = health_pb2.HealthCheckResponse

        assert next(sent).status == status.SERVICE_UNKNOWN
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            server.health(f"{SERVICE}/tiny")
        put()
        assert [next(sent).status, next(sent).status] == [status.NOT_SERVING, status.SERVING]
        assert {server.health(f"{SERVICE}/{item}") for item in ("other", "other/1", "tiny", "tiny/1")} == {"SERVING"}
        shutil.rmtree(models_dir / "tiny")
        assert next(sent).status == status.SERVICE_UNKNOWN
        stopping = server.stop(5)
        assert not list(sent)
        stopping.result(10)


def test_health_is_frozen_by_a_drain():
    """A model that is loaded during a drain does not make the server healthy again."""

    async def run():
        health = HealthServicer()
        health.publish({"": SERVING})
        health.drain()
        health.publish({"": SERVING, "other": SERVING})
        return health.serving

    assert asyncio.run(run()) == {"": False}
