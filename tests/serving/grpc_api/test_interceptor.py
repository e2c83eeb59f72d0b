import logging
import re
from contextlib import suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bertline.v1 import encoder_pb2 as pb
from serving.core import credentials
from serving.core.credentials import BearerTokens, read_tokens
from serving.core.errors import UnauthenticatedError
from tests.serving.conftest import serve
from tests.serving.reliability import errors_of, wait_until

CAT = pb.EmbedRequest(texts=["cat"], model=pb.ModelRef(name="embedder"))
LONG = "the cat " * 15
GOOD, OTHER = "good-token-1", "good-token-2"


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def code(server, **options):
    return server.stub.Embed.future(CAT, timeout=5, **options).code()


def health_code(server, **options):
    return (
        health_pb2_grpc.HealthStub(server.channel)
        .Check.future(health_pb2.HealthCheckRequest(), timeout=5, **options)
        .code()
    )


def reflection_code(server, **options):
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    call = stub.ServerReflectionInfo(requests, timeout=5, **options)
    with suppress(grpc.RpcError):
        list(call)
    return call.code()


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# for the tests\n\n{GOOD}\n  {OTHER}\n")
    return path


@pytest.fixture(scope="module")
def guarded(embedder, tmp_path_factory):
    """Server with two tokens."""
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"{GOOD}\n{OTHER}\n")
    with serve(embedder, tokens_file=path) as running:
        yield running


def test_calls_need_a_valid_token(guarded):
    """Calls with a valid token are answered; others are UNAUTHENTICATED and counted."""
    counted = {"grpc_code": "Unauthenticated", "grpc_method": "Embed"}
    before = guarded.total("grpc_server_handled_total", **counted)
    before_refused = guarded.total("bertline_refused_total", reason="unauthenticated")
    assert [code(guarded, metadata=bearer(token)) for token in (GOOD, OTHER)] == [grpc.StatusCode.OK] * 2

    refused = [(), bearer("good-token"), bearer(""), (("authorization", GOOD),)]
    for metadata in refused:
        assert code(guarded, metadata=metadata) is grpc.StatusCode.UNAUTHENTICATED
    guarded.wait_for("grpc_server_handled_total", before + len(refused), **counted)  # a client hears of it first
    assert guarded.total("bertline_refused_total", reason="unauthenticated") - before_refused == len(refused)


def test_every_service_is_guarded(guarded):
    """Health, reflection and methods that do not exist ask for the token, too."""
    unknown = guarded.channel.unary_unary("/bertline.v1.Encoder/Sing")

    for ask in (health_code, reflection_code, lambda _, **options: unknown.future(b"", **options).code()):
        assert ask(guarded) is grpc.StatusCode.UNAUTHENTICATED
    assert health_code(guarded, metadata=bearer(GOOD)) is grpc.StatusCode.OK
    assert reflection_code(guarded, metadata=bearer(GOOD)) is grpc.StatusCode.OK
    assert unknown.future(b"", metadata=bearer(GOOD)).code() is grpc.StatusCode.UNIMPLEMENTED


def test_open_health(embedder, tokens_file):
    """Only health can be open without tokens."""
    with serve(embedder, tokens_file=tokens_file, open_health=True) as running:
        assert health_code(running) is grpc.StatusCode.OK
        assert reflection_code(running) is grpc.StatusCode.UNAUTHENTICATED
        assert code(running) is grpc.StatusCode.UNAUTHENTICATED


def test_reload(embedder, tokens_file, caplog, monkeypatch):
    """Removed tokens are refused; an unusable file keeps the earlier tokens, and the metrics report it."""
    monkeypatch.setattr(credentials, "CHECK_S", 0.01)

    with serve(embedder, tokens_file=tokens_file) as running:
        tokens_file.write_text(f"{OTHER}\nnew\n")
        wait_until(lambda: code(running, metadata=bearer("new")) is grpc.StatusCode.OK, "it is not read", limit_s=5)
        assert code(running, metadata=bearer(GOOD)) is grpc.StatusCode.UNAUTHENTICATED
        tokens_file.write_text("a secret with spaces\n")
        wait_until(lambda: len(errors_of(caplog)) == 1, "no error", limit_s=5)
        assert running.total("bertline_reload_failed", what="tokens") == 1
        tokens_file.unlink()
        wait_until(lambda: len(errors_of(caplog)) == 2, "no error", limit_s=5)

        assert code(running, metadata=bearer("new")) is grpc.StatusCode.OK
        tokens_file.write_text("newer\n")
        wait_until(lambda: not running.total("bertline_reload_failed"), "it is not read again", limit_s=5)


def test_tokens_stay_secret(guarded, caplog):
    """Logs, metrics and statuses never contain a token."""
    caplog.set_level(logging.DEBUG)
    call = guarded.stub.Embed.future(CAT, metadata=bearer("almost-good"))
    assert call.code() is grpc.StatusCode.UNAUTHENTICATED

    assert not re.search("almost|good", call.details() + caplog.text + guarded.page() + repr(call.trailing_metadata()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# none\n\n", "holds no token"),
        (b"one\ntwo words\n", "line 2: a token consists"),
        (b"\xff\n", "not UTF-8"),
        ("one\nwords\n".encode("utf-16"), "is UTF-16"),
        (b"one\n" + b"words" * 1000, "line 2: the token has 5000 characters; the maximum is 4096"),
    ],
)
def test_bad_tokens_file(tmp_path, content, message):
    """Errors for unusable token files are one line with the path, without content."""
    path = tmp_path / "tokens"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        BearerTokens(path)
    assert str(path) in str(caught.value)
    assert "words" not in str(caught.value)


@pytest.mark.parametrize("second", [GOOD, "wrong"])
def test_two_authorizations(guarded, second):
    """Calls with two tokens are refused, since a proxy may have checked only one of them."""
    call = guarded.stub.Embed.future(CAT, metadata=(*bearer(GOOD), *bearer(second)))

    assert call.code() is grpc.StatusCode.UNAUTHENTICATED
    assert call.details() == "the call has 2 `authorization` entries in its metadata; send one"


def test_clients_by_token(tokens_file, tmp_path):
    """Calls with the same token have the same client name, which does not contain it; long tokens are not hashed."""
    tokens = BearerTokens(tokens_file)
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbf" + tokens_file.read_bytes().replace(b"\n", b"\r\n"))

    assert tokens.client([f"Bearer {GOOD}"]) == tokens.client([f"bearer  {GOOD}"]) != tokens.client([f"Bearer {OTHER}"])
    assert GOOD not in tokens.client([f"Bearer {GOOD}"])
    assert len(read_tokens(tokens_file)) == len(read_tokens(tmp_path / "bom")) == 2
    with pytest.raises(UnauthenticatedError, match="the token has 5000 characters; the maximum is 4096"):
        tokens.client(["Bearer " + "a" * 5000])


def test_concurrency_of_a_client(embedder, tokens_file, held):
    """Clients with too many concurrent calls get RESOURCE_EXHAUSTED; others, and later calls, are answered."""
    request = pb.EmbedRequest(texts=[LONG] * 8)
    with serve(embedder, tokens_file=tokens_file, max_concurrent_per_client=2) as running:
        calls = [running.stub.Embed.future(request, metadata=bearer(GOOD)) for _ in range(2)]
        running.wait_for("grpc_server_started_total", 2)
        refused = running.stub.Embed.future(request, metadata=bearer(GOOD))
        other = running.stub.Embed.future(pb.EmbedRequest(texts=["cat"]), metadata=bearer(OTHER))

        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "calls of this client (maximum `2`)" in refused.details()
        assert health_code(running, metadata=bearer(GOOD)) is grpc.StatusCode.OK
        held.set()
        assert {call.code() for call in (*calls, other)} == {grpc.StatusCode.OK}
        assert running.stub.Embed(pb.EmbedRequest(texts=["cat"]), metadata=bearer(GOOD)).num_tokens == [3]
        assert running.total("bertline_refused_total", reason="client_concurrency") == 1


def test_concurrency_of_an_address(embedder, held):
    """Clients without tokens are identified by address; cancelled calls make room."""
    with serve(embedder, max_concurrent_per_client=1) as running:
        call = running.stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 8))
        running.wait_for("grpc_server_started_total", 1)
        with grpc.insecure_channel(running.target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            other = channel.unary_unary("/bertline.v1.Encoder/ListModels").future(b"")
            assert other.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call.cancel()
        running.wait_for("grpc_server_handled_total", 1, grpc_code="Cancelled")
        held.set()

        assert running.stub.ListModels(pb.ListModelsRequest()).models


@pytest.mark.parametrize("text", ["cat", ""])
def test_request_id(guarded, text):
    """Replies and errors return the request id of the call, or a new one if it is missing or invalid."""
    for sent, expected in (
        ("job-7", "job-7"),
        ("x" * 129, "[0-9a-f]{16}"),
        ("two words", "[0-9a-f]{16}"),
        (None, "[0-9a-f]{16}"),
    ):
        metadata = (("x-request-id", sent),) if sent else ()
        call = guarded.stub.Embed.future(pb.EmbedRequest(texts=[text]), metadata=(*bearer(GOOD), *metadata))

        assert re.fullmatch(expected, dict(call.trailing_metadata())["x-request-id"])


@pytest.mark.parametrize("value", ["interactive", "bulk", "u=3, i", "u=1", "i", ""])
def test_known_priorities(server, value):
    """The server accepts both classes, and the values that proxies send in this header (RFC 9218)."""
    assert code(server, metadata=(("priority", value),)) is grpc.StatusCode.OK


@pytest.mark.parametrize("value", ["Bulk", "low", "bulk,bulk", "1"])
def test_unknown_priorities_are_refused(server, value):
    """An unknown priority is refused, because a misspelt bulk class would compete with interactive calls."""
    call = server.stub.Embed.future(pb.EmbedRequest(texts=["cat"]), metadata=(("priority", value),), timeout=10)

    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details() == f"unknown `priority`: `{value}`; send `interactive` or `bulk`"
