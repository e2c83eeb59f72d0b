"""Fake server for applications' tests. docs/guides/test-your-application.md has more examples, which are tested as
well."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertline import Client, Usage, errors, testing
from bertline._models import model_of_task
from bertline.operations.models import read_model_info
from bertline.testing import FakeModel, FakeServer, vector
from bertline.testing._answers import RESULTS
from bertline.testing._faults import Refusal
from bertline.testing._models import choose_model
from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import ServingError
from serving.core.models import Models, Version
from tests.clients.test_client import METHODS as ALL_METHODS
from tests.clients.wire.plain import plain
from tests.serving.conftest import serve
from tests.serving.models import SETTINGS, write_model


def test_vectors_are_the_same_in_every_process() -> None:
    """Vectors depend on the text alone, have length 1, and differ."""
    assert np.linalg.norm(vector("text", 384)) == pytest.approx(1)
    assert vector("text", 4).tolist() == pytest.approx([-0.5141, 0.4716, 0.4205, -0.5801], abs=1e-4)
    assert not np.allclose(vector("text"), vector("texts"))


def test_every_rpc_is_answered() -> None:
    """The fake answers every RPC of the API."""
    rpcs = set(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name)

    assert rpcs == {*RESULTS, "ListModels", "GetModel"}
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


def test_answers_are_the_same_every_time() -> None:
    """Another fake server gives the same answers."""
    answers = []
    for _ in range(2):
        with FakeServer() as server, Client(server.target) as client:
            answers.append([[plain(ask(client, method)), plain(ask(client, method))] for method in METHODS])

    assert answers[0] == answers[1]
    assert all(first == second for first, second in answers[0])


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory):
    """Return the targets of a real and a fake server with models of the same names."""
    models = tmp_path_factory.mktemp("models")
    fakes = []
    lengths = {"embedding": 32, "classification": 32, "multiple-choice": 16, "spans": 16, "tagging": 16}
    for name, task, version in [
        ("embedder", "embedding", "1"),
        ("embedder", "embedding", "10"),
        ("sorter", "classification", "1"),
        ("sorter2", "classification", "1"),
        *((task, task, "1") for task in ("multiple-choice", "spans", "tagging")),
    ]:
        write_model(models, name, version=version, task=task)
        about = {"settings": SETTINGS[task]}
        fakes.append(FakeModel(name=name, version=version, task=task, max_seq_length=lengths[task], manifest=about))
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
        lambda client: client.classify(["cat"]),
        lambda client: client.regress(["cat"]),
        lambda client: client.classify([("", "cat"), ("cat", "dog " * 60)], model="sorter"),
        lambda client: client.choose([("cat", "dog", ["bird", " "])]),
        lambda client: client.answer([("", "cat"), ("cat", ["dog", ""])]),
        lambda client: client.tag([[" ", ""], [], " "]),
    ],
)
def test_refusals_are_those_of_a_real_server(targets: tuple[str, str], use: Callable[[Client], Any]) -> None:
    """The fake refuses with the same error, code and items as a real server."""
    found = []
    for target in targets:
        with Client(target, batch_size=1000) as client, pytest.raises(errors.BertlineError) as caught:
            use(client)
        items = [(item.index, item.field) for item in getattr(caught.value, "items", [])]
        cause: Any = caught.value.__cause__
        found.append((type(caught.value), cause.code(), items))

    assert found[0] == found[1]


def test_tokens_are_counted_as_by_a_real_server(targets: tuple[str, str]) -> None:
    """The fake counts read and truncated tokens, and chooses the highest version, as a real server does."""
    found = []
    for target in targets:
        usage = Usage()
        with Client(target) as client:
            client.embed(["cat " * 100, "dog"], truncate=True, usage=usage)
            found.append((usage.num_tokens, usage.num_truncated, client.model("embedder").version))

    assert found[0] == found[1]
    assert found[0][2] == "10"


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


def test_silence_ends_with_reset(client: Client, server: FakeServer) -> None:
    """Calls wait during `silence` and continue after `reset`."""
    client.embed(["text"])
    server.silence()
    with pytest.raises(errors.TimedOut):
        client.embed(["text"], timeout=0.2)
    server.reset()

    assert client.embed(["text"]).shape == (1, 8)


def test_a_token_is_required() -> None:
    """A fake with `token` refuses calls and health checks without it, like a server with --tokens-file."""
    with FakeServer(token="secret") as server:
        with Client(server.target, token="secret") as client:
            assert client.embed(["text"]).shape == (1, 8)
            assert client.health()
        with Client(server.target, token="other") as client, pytest.raises(errors.Unauthenticated):
            client.embed(["text"])
        with Client(server.target) as client:
            for use in (client.models, client.health):
                with pytest.raises(errors.Unauthenticated, match="the call has no token"):
                    use()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda server: server.fail("OK"), "a call cannot fail with status `OK`"),
        (lambda server: server.fail(times=0), "`times` must be at least 1, and `after` 0: `0`, `0`"),
        (lambda server: server.overload(pushback_ms=0), "`pushback_ms` must not be 0"),
        (lambda server: server.delay(0), "`seconds` must be above 0: `0`"),
        (lambda server: server.reply("embed", print), "no RPC of that name: `embed`"),
        (lambda server: FakeModel(task="spam"), "unknown task: `spam`"),
    ],
)
def test_impossible_faults_raise_at_once(server: FakeServer, use: Callable[[FakeServer], Any], message: str) -> None:
    """An impossible fault raises ValueError immediately, so that no test passes without it."""
    with pytest.raises(ValueError, match=message):
        use(server)


def test_a_busy_port_raises() -> None:
    """A busy port raises OSError."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        FakeServer(port=taken.getsockname()[1])


def outcomes(client: Client, count: int, method: str = "regress") -> list[str]:
    """Return `ok` or the error's name for each of several calls."""
    found = []
    for _ in range(count):
        try:
            getattr(client, method)(["text"])
            found.append("ok")
        except errors.BertlineError as error:
            found.append(type(error).__name__)
    return found


def test_calls_before_a_fault_are_answered(client: Client, server: FakeServer) -> None:
    """`after` answers this many calls, of the method if named, once the fault before has ended; then `times` fail."""
    server.fail("INTERNAL", method="Regress", after=2, times=3)

    assert outcomes(client, 5, "embed") == ["ok"] * 5
    assert outcomes(client, 6) == ["ok", "ok", "ServerError", "ServerError", "ServerError", "ok"]

    for _ in range(2):
        server.fail("INTERNAL", after=2)

    assert outcomes(client, 7) == ["ok", "ok", "ServerError", "ok", "ok", "ServerError", "ok"]


def test_delays_and_failures_count_apart(client: Client, server: FakeServer) -> None:
    """A delay does not count as a call before a failure."""
    server.delay(0.3, after=1, times=1)
    server.fail("INTERNAL", after=1)
    client.regress(["text"])
    start = time.monotonic()

    assert outcomes(client, 2) == ["ServerError", "ok"]
    assert time.monotonic() - start >= 0.3


def test_a_connection_can_be_lost_later(server: FakeServer) -> None:
    """The client sends calls of a lost connection again over another one."""
    server.drop(after=2)
    with Client(server.target) as client:
        for _ in range(4):
            client.regress(["text"])

    peers = [call.peer for call in server.calls]
    assert len(peers) == 5
    assert peers[:3] == [peers[0]] * 3
    assert peers[3:] == [peers[3]] * 2 != peers[:2]
