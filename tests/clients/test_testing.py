"""Fake server for applications' tests. docs/guides/test-your-application.md has more examples, which are tested as
well."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import example, given
from hypothesis import strategies as st

from bertline import AsyncClient, Client, Usage, errors, testing
from bertline._models import model_of_task
from bertline._replies import read_model_info
from bertline.testing import FakeModel, FakeServer, vector
from bertline.testing._answers import ANSWERS
from bertline.testing._faults import Refusal
from bertline.testing._models import TASKS, choose_model
from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import (
    ExpiredError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    ServingError,
    UnavailableError,
)
from serving.core.models import Models, Version
from serving.grpc_api.status import status_of
from tests.clients.test_client import METHODS as ALL_METHODS
from tests.clients.wire.plain import plain
from tests.serving.conftest import serve
from tests.serving.models import SETTINGS, edit_manifest, write_model


def test_vectors_are_the_same_in_every_process() -> None:
    """Vectors depend on the text alone, have length 1, and differ."""
    assert np.linalg.norm(vector("text", 384)) == pytest.approx(1)
    assert vector("text", 4).tolist() == pytest.approx([-0.5141, 0.4716, 0.4205, -0.5801], abs=1e-4)
    assert not np.allclose(vector("text"), vector("texts"))


def test_every_rpc_is_answered() -> None:
    """The fake answers every RPC of the API."""
    rpcs = set(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name)

    assert rpcs == {*ANSWERS, "ListModels", "GetModel"}
    assert set(TASKS) == set(ANSWERS) - {"Rerank", "Tokenize", "ZeroShot"}
    assert all(hasattr(testing, name) for name in testing.__all__)


def ask(client: Client, method: str, **options: Any) -> Any:
    inputs: Any = {
        "answer": ("Where?", "here"),
        "choose": ("Which?", ["a", "b"]),
        "rerank": ("Where?", ["here", "there"]),
        "fill_mask": "a [MASK]",
    }
    return getattr(client, method)([inputs.get(method, "a text")], **options)


METHODS = [method for method in ALL_METHODS if method not in ("zero_shot", "models", "model", "health")]


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_the_same_every_time(method: str) -> None:
    """Another fake server gives the same answers."""
    answers = []
    for _ in range(2):
        with FakeServer() as server, Client(server.target) as client:
            answers += [ask(client, method), ask(client, method)]

    assert all(plain(other) == plain(answers[0]) for other in answers[1:])


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory):
    """Return the targets of a real and a fake server with models of the same names."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "embedder", task="embedding")
    write_model(models, "embedder", version="10", task="embedding")
    write_model(models, "sorter", task="classification")
    write_model(models, "sorter2", task="classification")
    write_model(models, "inference", task="classification")
    tasks = {"embedder": "embedding", "sorter": "classification", "sorter2": "classification"}
    for name in ("sorter", "sorter2"):
        edit_manifest(models / name / "1", settings=SETTINGS["classification"] | {"labels": ["no", "maybe", "yes"]})
    fakes = [FakeModel(name=name, task=task, max_seq_length=32) for name, task in tasks.items()]
    fakes.append(
        FakeModel(
            name="inference", task="classification", max_seq_length=32, labels=SETTINGS["classification"]["labels"]
        )
    )
    lengths = {"multiple-choice": 16, "spans": 16, "tagging": 16, "masked-lm": 32, "sparse-embedding": 32}
    lengths |= {"token-embedding": 16}
    for task, length in lengths.items():
        write_model(models, task, task=task)
        about = {"settings": SETTINGS[task]}
        fakes.append(FakeModel(name=task, task=task, max_seq_length=length, manifest=about))
    manifest = {"settings": SETTINGS["embedding"]}
    fakes.append(FakeModel(name="embedder", version="10", task="embedding", max_seq_length=32, manifest=manifest))
    with serve(models) as real, FakeServer(fakes) as fake:
        yield real.target, fake.target


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.embed([""]),
        lambda client: client.embed(["the cat", " \n"]),
        lambda client: client.embed(["cat " * 100]),
        lambda client: client.embed(["cat"], model="other"),
        lambda client: client.embed(["cat"], model="embedder", version="7"),
        lambda client: client.embed(["cat"], model="sorter"),
        lambda client: client.embed_sparse(["cat", ""]),
        lambda client: client.embed_sparse(["cat " * 100]),
        lambda client: client.embed_sparse(["cat"], model="embedder"),
        lambda client: client.embed_sparse(["cat"], prompt_name="passage"),
        lambda client: client.embed_sparse(["cat"], prompt_name="query", input_type="query"),
        lambda client: client.embed_tokens(["cat", ""]),
        lambda client: client.embed_tokens(["cat " * 100]),
        lambda client: client.embed_tokens(["cat"], prompt_name="passage"),
        lambda client: client.rerank([("cat", ["dog", ""])], model="token-embedding"),
        lambda client: client.rerank([("cat", ["dog"])], model="token-embedding", label="dog"),
        lambda client: client.classify(["cat"]),
        lambda client: client.classify([("cat", "")], model="sorter"),
        lambda client: client.regress([("cat", "cat")]),
        lambda client: client.model(),
        lambda client: client.embed([""] * 1000),
        lambda client: client.embed(["cat"], dimensions=9),
        lambda client: client.embed(["cat"], window_stride=16),
        lambda client: client.embed(["cat"], prompt_name="passage"),
        lambda client: client.embed(["cat"], prompt_name="long", windows=True),
        lambda client: client.classify([("", "cat"), ("cat", "dog " * 28)], model="sorter"),
        lambda client: client.classify([("cat", "dog " * 29), ("cat " * 29, "dog")], model="sorter"),
        lambda client: client.choose([("cat", [])]),
        lambda client: client.choose([("cat", ["dog"])]),
        lambda client: client.choose([("cat", "dog", ["bird", " "]), ("cat", " ", ["bird", "dog"])]),
        lambda client: client.choose([("cat", ["bird", " "]), (" ", ["bird", "dog"])]),
        lambda client: client.choose([("cat", ["bird", "dog " * 13]), ("cat " * 13, "dog", ["bird", "tree"])]),
        lambda client: client.answer([("cat", [])]),
        lambda client: client.answer([("", "cat"), ("cat", ["dog", ""])]),
        lambda client: client.rerank([("cat", [])]),
        lambda client: client.rerank([("", ["cat"]), ("cat", ["dog", ""])]),
        lambda client: client.rerank([("cat", ["dog"])], model="sorter"),
        lambda client: client.rerank([("cat", ["dog"])], model="sorter", label="dog"),
        lambda client: client.rerank([("cat", ["dog"])], label="dog"),
        lambda client: client.rerank([("cat", ["dog"])], model="tagging"),
        lambda client: client.zero_shot(["cat"], ["dog", "bird"], model="tagging"),
        lambda client: client.zero_shot(["cat"], ["dog"]),
        lambda client: client.zero_shot(["cat", ""], ["dog", "bird"], model="inference"),
        lambda client: client.zero_shot(["cat " * 40], ["dog", "bird"], model="inference"),
        lambda client: client.zero_shot(["cat"], ["dog", "", "dog"], model="inference"),
        lambda client: client.zero_shot(["cat"], ["dog", "bird"], template="it", model="inference"),
        lambda client: client.tag([[" ", ""], [], " "]),
        lambda client: client.fill_mask(["cat"]),
        lambda client: client.fill_mask(["cat " * 30 + "[MASK]"], truncate=True),
        lambda client: client.fill_mask(["cat " * 30 + "[MASK]", ""]),
    ],
)
def test_refusals_are_those_of_a_real_server(targets: tuple[str, str], use: Callable[[Client], Any]) -> None:
    """The fake refuses with the same error, items, reason and fields in the status details as a real server."""
    found = []
    for target in targets:
        with Client(target, batch_size=1000) as client, pytest.raises(errors.BertlineError) as caught:
            use(client)
        items = [(item.index, item.field) for item in getattr(caught.value, "items", [])]
        found.append((type(caught.value), items, *typed_fields(caught.value.__cause__)))

    assert found[0] == found[1]


def typed_fields(error: Any) -> tuple[Any, ...]:
    """Return the machine-readable part of a status: code, details without sentences, names of the metadata."""
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in rpc_status.from_call(error).details:
        assert detail.Unpack(info) or detail.Unpack(bad)
    fields = [violation.field for violation in bad.field_violations]
    names = {key for key, _ in error.trailing_metadata()}
    return error.code(), info.reason, info.domain, dict(info.metadata), fields, names


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_refused_token_is_that_of_a_real_server(tmp_path: Path, token: str) -> None:
    """The fake refuses a token as a real server does, for calls and health checks."""
    write_model(tmp_path / "models")
    (tmp_path / "tokens").write_text("a-secret-token")
    found = []
    with (
        serve(tmp_path / "models", tokens_file=tmp_path / "tokens") as real,
        FakeServer(token="a-secret-token") as fake,
    ):
        for target in (real.target, fake.target):
            with Client(target, token=token or None, check_health=False) as client:
                for use in (client.models, client.health):
                    with pytest.raises(errors.Unauthenticated) as caught:
                        use()
                    found.append(typed_fields(caught.value.__cause__))

    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("INVALID_ARGUMENT", InvalidRequestError("bad")),
        ("NOT_FOUND", ModelNotFoundError("none")),
        ("UNAVAILABLE", UnavailableError("draining")),
        ("DEADLINE_EXCEEDED", ExpiredError("late")),
        ("INTERNAL", ZeroDivisionError()),
    ],
)
def test_faults_are_those_of_a_real_server(server: FakeServer, status: str, error: Exception) -> None:
    """A status made by `fail` has the details that a real server sends with it."""
    server.fail(status, "a fault", times=None)
    with Client(server.target) as client, pytest.raises(errors.BertlineError) as caught:
        client.models()
    code, reason, *_ = typed_fields(caught.value.__cause__)

    real = status_of(error)
    assert code is real.code
    assert f"{reason}".encode() in dict(real.trailing_metadata)["grpc-status-details-bin"]


def test_an_overload_is_that_of_a_real_server(server: FakeServer) -> None:
    """`overload` sends the status of a real server, with the time after which to retry."""
    server.overload(times=None)
    with Client(server.target) as client, pytest.raises(errors.Overloaded) as caught:
        client.models()
    code, reason, *_, names = typed_fields(caught.value.__cause__)

    real = status_of(QueueFullError("full", retry_s=0.1))
    assert (code, names - {"x-request-id"}) == (real.code, {key for key, _ in real.trailing_metadata})
    assert reason.encode() in dict(real.trailing_metadata)["grpc-status-details-bin"]


@pytest.mark.parametrize(
    ("method", "inputs", "options"),
    [
        ("embed", ["cat " * 100], {"truncate": True}),
        ("classify", ["cat", ("cat", "dog"), ("cat " * 40, "dog")], {"model": "sorter", "truncate": True}),
        ("choose", [("cat", "dog", ["bird", "tree near"]), ("cat " * 12, ["bird"] * 4)], {}),
        ("choose", [("cat " * 20, ["bird", "tree"])], {"truncate": True}),
        ("answer", [("cat", ["dog", "bird"])], {}),
        ("embed_sparse", ["cat " * 100, "dog"], {"truncate": True}),
        ("rerank", [("cat", ["dog", "bird"]), ("dog", ["cat"])], {"top_n": 1, "model": "spans"}),
        ("zero_shot", ["cat", "dog " * 40], {"labels": ["a", "bird"], "truncate": True, "template": "{}"}),
        ("tag", [["cat", "dog"], "cat"], {}),
        ("fill_mask", ["[MASK] " + "cat " * 40 + "[MASK]"], {"truncate": True}),
    ],
)
def test_accepted_inputs_are_those_of_a_real_server(
    targets: tuple[str, str], method: str, inputs: list[Any], options: dict[str, Any]
) -> None:
    """The fake counts read and truncated tokens, and remaining [MASK]s, as a real server does."""
    found = []
    for target in targets:
        usage = Usage()
        with Client(target) as client:
            results = getattr(client, method)(inputs, usage=usage, **options)
        masks = [len(result) for result in results] if method == "fill_mask" else []
        found.append((usage.num_tokens, usage.num_truncated, masks))

    assert found[0] == found[1]


def test_windows_truncate_nothing(client: Client, server: FakeServer) -> None:
    """`windows` prevents truncation, even with `truncate`."""
    server.models = [FakeModel(max_seq_length=8)]
    usage = Usage()
    client.embed(["cat " * 100], windows=True, truncate=True, usage=usage)

    assert usage.num_truncated == [0]


def test_blank_words_among_others_are_accepted(targets: tuple[str, str]) -> None:
    """A tagging model accepts blank words."""
    for target in targets:
        with Client(target) as client:
            assert len(client.tag([["cat", " "]])) == 1


def test_versions_are_chosen_as_by_a_real_server(targets: tuple[str, str]) -> None:
    """The highest version by number answers."""
    for target in targets:
        with Client(target) as client:
            assert client.model("embedder").version == "10"


TASK_OF_VERSION = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["1", "9", "10"])), st.sampled_from(["embedding", "regression"])
)


@given(loaded=TASK_OF_VERSION, name=st.sampled_from(["", "a"]), version=st.sampled_from(["", "9"]))
@example({("a", "1"): "regression", ("a", "2"): "embedding"}, "", "")
@example({("a", "1"): "embedding", ("a", "2"): "regression", ("b", "1"): "embedding"}, "", "")
def test_all_choose_the_same_model(loaded: dict[tuple[str, str], str], name: str, version: str) -> None:
    """Client and fake choose the model that the server chooses, or none as it."""
    fakes = [FakeModel(name=key[0], version=key[1], task=task) for key, task in loaded.items()]
    stubs: list[Any] = [SimpleNamespace(task=SimpleNamespace(name=fake.task), manifest=fake) for fake in fakes]
    versions = [Version(fake.name, fake.version, stub) for fake, stub in zip(fakes, stubs, strict=True)]
    infos = [read_model_info(fake.info) for fake in fakes]

    of_server = _ref(lambda: Models(versions).find(name, version, "embedding").manifest)
    of_client = _ref(lambda: model_of_task(infos, "embedding", name, version))
    of_fake = _ref(lambda: choose_model(fakes, "Embed", pb.ModelRef(name=name, version=version)))

    assert of_client == of_fake == of_server


def _ref(choose: Callable[[], Any]) -> str:
    """Return the chosen model; empty if there is none."""
    try:
        found = choose()
    except (errors.ModelNotFound, Refusal, ServingError):
        return ""
    return f"{found.name}/{found.version}"


@pytest.mark.parametrize(
    ("state", "model", "error", "message"),
    [
        ("loading", "fake", errors.ConnectionFailed, "being loaded; try again"),
        ("loading", "", errors.ConnectionFailed, "being loaded; try again"),
        ("failed", "fake", errors.ModelNotFound, "not be loaded: broken"),
        ("failed", "", errors.ModelNotFound, "no model is loaded"),
    ],
)
def test_models_that_are_not_loaded(state: str, model: str, error: type[errors.BertlineError], message: str) -> None:
    """A loading model gives UNAVAILABLE; a failed one gives the reason."""
    with FakeServer([FakeModel(state=state, error="broken")]) as server, Client(server.target) as client:
        with pytest.raises(error, match=message):
            client.embed(["text"], model=model)
        assert not client.health("fake")


def test_faults_come_in_order_and_end(client: Client, server: FakeServer) -> None:
    """Each fault ends after its number of calls, and faults of other methods wait."""
    server.fail("INTERNAL", "first", method="Embed")
    server.fail("NOT_FOUND", "second", method="Embed", times=2)
    found = []
    for _ in range(4):
        client.classify(["text"])
        try:
            client.embed(["text"])
        except errors.BertlineError as error:
            found.append(type(error))

    assert found == [errors.ServerError, errors.ModelNotFound, errors.ModelNotFound]


def test_calls_are_recorded(server: FakeServer) -> None:
    """`calls` records all calls with their metadata, refused ones included."""
    with Client(server.target, timeout=7, check_health=False) as client:
        client.embed(["text"])
        with pytest.raises(errors.InvalidInput):
            client.classify([""])

    first, second = server.calls
    assert (first.method, list(first.request.texts), second.method) == ("Embed", ["text"], "Classify")
    assert first.timeout == pytest.approx(7, abs=1)
    assert "user-agent" in first.metadata
    server.reset()
    assert server.calls == []


def test_a_delayed_call_ends_with_its_caller(client: Client, server: FakeServer) -> None:
    """A delay ends when its caller leaves, so that the server can close."""
    server.delay(60)
    with pytest.raises(errors.TimedOut):
        client.embed(["text"], timeout=0.1)
    start = time.monotonic()
    server.close()

    assert time.monotonic() - start < 20


def admit_at_last(context: grpc.ServicerContext) -> None:
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()


def test_a_call_that_ends_before_its_fault_comes(server: FakeServer) -> None:
    """The server can close if a call ends before its fault starts."""
    server._admit = admit_at_last
    server.drop()
    with Client(server.target, check_health=False) as client, pytest.raises(errors.TimedOut):
        client.embed(["text"], timeout=0.1)

    server.close()


def test_silence_ends_with_reset(client: Client, server: FakeServer) -> None:
    """Calls wait during `silence` and continue after `reset`."""
    client.embed(["text"])
    server.silence()
    with pytest.raises(errors.TimedOut):
        client.embed(["text"], timeout=0.2)
    server.reset()

    assert client.embed(["text"]).shape == (1, 8)


@pytest.mark.parametrize("open_health", [False, True])
def test_a_token_is_required(open_health: bool) -> None:
    """A fake with `token` refuses calls without it, like a server with --tokens-file."""
    with FakeServer(token="secret", open_health=open_health) as server:
        with Client(server.target, token="secret") as client:
            assert client.embed(["text"]).shape == (1, 8)
        with Client(server.target, token="other") as client, pytest.raises(errors.Unauthenticated):
            client.embed(["text"])
        with Client(server.target) as client:
            with pytest.raises(errors.Unauthenticated, match="the call has no token"):
                client.embed(["text"])
            if open_health:
                assert client.health()


def test_a_server_may_restart(server: FakeServer) -> None:
    """A client works again after a server restarts at the same port."""
    port = int(server.target.rpartition(":")[2])
    with Client(server.target) as client:
        client.embed(["text"])
        server.close()
        with FakeServer(port=port):
            end = time.monotonic() + 10
            while True:
                try:
                    client.embed(["text"])
                    break
                except errors.ConnectionFailed:
                    assert time.monotonic() < end


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda server: server.fail("OK"), "a call cannot fail with status `OK`"),
        (lambda server: server.fail("FULL"), "a call cannot fail with status `FULL`"),
        (lambda server: server.fail(grpc.StatusCode.OK), "a call cannot fail"),
        (lambda server: server.fail(method="embed"), "no RPC of that name: `embed`"),
        (lambda server: server.fail(times=0), "`times` must be at least 1: `0`"),
        (lambda server: server.overload(pushback_ms=0), "`pushback_ms` must not be 0"),
        (lambda server: server.delay(0), "`seconds` must be above 0: `0`"),
        (lambda server: server.reply("embed", print), "no RPC of that name: `embed`"),
        (lambda server: FakeModel(task="spam"), "unknown task: `spam`"),
        (lambda server: FakeModel(state="new"), "unknown state: `new`"),
        (lambda server: FakeModel(version="v1"), "a version must be a whole number of at least 1: `v1`"),
    ],
)
def test_impossible_faults_raise_at_once(server: FakeServer, use: Callable[[FakeServer], Any], message: str) -> None:
    """An impossible fault raises ValueError immediately, so that no test passes without it."""
    with pytest.raises(ValueError, match=message):
        use(server)


def test_a_busy_port_raises() -> None:
    """A busy port raises OSError and leaves no listening port behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = listening()
        with pytest.raises(OSError, match="in use"):
            FakeServer(port=taken.getsockname()[1])

        assert listening() == before


def listening() -> set[str]:
    """Return the listening sockets of this process, by inode."""
    links = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [row.split() for file in ("tcp", "tcp6") for row in Path("/proc/self/net", file).read_text().splitlines()]
    return {row[9] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}


def test_a_word_may_occur_many_times(client: Client) -> None:
    """The scores of a word's many places fall to 0."""
    (found,) = client.answer([("Where is the owl?", "owl " * 2000)], top_k=2000)

    assert (len(found.spans), found.spans[0].score, found.spans[-1].score) == (2000, 0.75, 0)


def test_a_fake_server_starts_in_an_event_loop() -> None:
    """A fake server starts inside a running event loop, as in tests that are coroutines."""

    async def ask() -> int:
        with FakeServer() as server:
            async with AsyncClient(server.target) as client:
                return len(await client.embed(["text"]))

    assert asyncio.run(ask()) == 1
