from __future__ import annotations

import asyncio
import http.server
import itertools
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from bertline import AsyncClient, Client, errors
from bertline._convert import Request
from bertline._status import ERRORS, FailedCall, client_error
from bertline.testing import FakeServer
from bertline.testing._faults import Refusal
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server
from tests.clients.command import Embed, both_clients, embed_sync


@contextmanager
def silent_listener() -> Iterator[str]:
    """Listen on a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def full_listener() -> Iterator[str]:
    """Listen on a port where connecting hangs, as with a host that is switched off."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def wrong_name() -> Iterator[str]:
    yield "no-such-host.invalid:50051"


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{free.getsockname()[1]}"
    yield target


@pytest.mark.parametrize("address", [closed_port, wrong_name, silent_listener, full_listener])
@both_clients
def test_an_address_without_a_server_fails_at_once(
    address: Callable[[], AbstractContextManager[str]], embed: Embed
) -> None:
    """A wrong address is an error within two seconds, with the address and the remedy."""
    took = []
    while not took or (took[-1] >= 2 and len(took) < 3):  # repeats, because the machine may be busy
        with address() as target:
            start = time.perf_counter()
            with pytest.raises(errors.ConnectionFailed, match=f"`{target}` .*; start one") as caught:
                embed(target, ["text"])
            took.append(time.perf_counter() - start)

    assert min(took) < 2
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, grpc.RpcError)


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_proxy_that_blocks_the_call(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC uses the proxy of the environment also for local addresses, and the error names `no_proxy`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(errors.ConnectionFailed, match="name the host in `no_proxy`"):
            embed_sync(server.target, ["text"])
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert embed_sync(server.target, ["text"]).shape == (1, 8)
        proxy.shutdown()


def test_a_target_without_a_port() -> None:
    """The error states that a target without a port means port 443."""
    with pytest.raises(errors.ConnectionFailed, match="no port was given, which stands for 443"):
        embed_sync("no-such-host.invalid", ["text"])


def test_a_server_that_comes_up_is_found(dead_target: str) -> None:
    """A client that failed to connect works soon after the server starts."""
    with Client(dead_target) as client:
        with pytest.raises(errors.ConnectionFailed):
            client.models()
        with FakeServer(port=int(dead_target.rpartition(":")[2])):
            end = time.perf_counter() + 3
            while True:
                try:
                    assert client.models()
                    break
                except errors.ConnectionFailed:
                    assert time.perf_counter() < end
                    time.sleep(0.1)


@both_clients
def test_bad_inputs_are_named_by_position(server: FakeServer, embed: Embed) -> None:
    """The error gives positions in the caller's list, for any split."""
    texts = [f"text {number}" for number in range(10)]
    texts[6], texts[7] = " ", "refuse this"
    server.refuse("refuse this", "refused")
    with pytest.raises(errors.InvalidInput) as caught:
        embed(server.target, texts, batch_size=4)

    assert caught.value.items == [
        errors.InvalidItem(6, "text", "empty text; it needs at least one word"),
        errors.InvalidItem(7, "text", "refused"),
    ]
    assert str(caught.value) == "input 6, text: empty text; it needs at least one word; input 7, text: refused"


@both_clients
def test_inputs_that_are_too_many_to_name_are_counted(server: FakeServer, embed: Embed) -> None:
    """The error lists the inputs that the server names and counts the others."""
    with pytest.raises(errors.InvalidInput, match=r"input 2, text: .* \(and 997 more\)$") as caught:
        embed(server.target, [""] * 1000, batch_size=1000)

    assert 3 < len(caught.value.items) < caught.value.num_items == 1000
    assert str(caught.value.shifted(8)).endswith("(and 997 more)")
    assert str(errors.InvalidInput.of(caught.value.items[:1], 10)).endswith("(and 9 more)")


@pytest.mark.parametrize(("texts", "hint"), [(["a", "b"], "; lower `batch_size`"), (["a"], "")])
def test_too_much_in_one_request(client: Client, server: FakeServer, texts: list[str], hint: str) -> None:
    """An error about all inputs together suggests a lower `batch_size` if there are several inputs."""

    def refuse(request: Any) -> None:
        raise Refusal("INVALID_ARGUMENT", "too many", [("texts", "9000 came, a request takes 8192")])

    server.reply("FillMask", refuse)
    with pytest.raises(errors.InvalidInput) as caught:
        client.fill_mask(texts)

    assert str(caught.value) == f"texts: 9000 came, a request takes 8192{hint}"


def test_a_text_that_is_too_large_for_the_server_is_named(client: Client) -> None:
    """A text above the server's message limit is an InvalidInput error, not Overloaded."""
    with pytest.raises(errors.InvalidInput, match="too large for the server") as caught:
        client.embed(["text", "x" * 5_000_000])

    assert caught.value.items[0].index == 1


REQUEST_ID, NEVER = ("x-request-id", "1"), ("grpc-retry-pushback-ms", "-1")


def packed(
    reason: str = "", domain: str = "bertline", fields: Sequence[str] = (), **metadata: str
) -> tuple[str, bytes]:
    """Return status details like a server's, made with Google's own messages."""
    status = status_pb2.Status()
    if fields:
        violations = [{"field": field, "description": "bad"} for field in fields]
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=violations))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    return "grpc-status-details-bin", status.SerializeToString()


def error_of(code: str, *metadata: tuple[str, Any], **call: Any) -> errors.BertlineError:
    """Return the client's error for a status with trailing metadata, whatever its message."""
    trailing = grpc.aio.Metadata(*metadata)
    error = grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), trailing, details="larger than max")
    request = Request(None, **{"num_inputs": 1} | call)
    return client_error(error, FailedCall(target="localhost:1", timeout=1.0, request=request))


@pytest.mark.parametrize(
    ("metadata", "call", "kind", "is_final"),
    [
        ([REQUEST_ID, NEVER, packed("MESSAGE_TOO_LARGE")], {}, errors.InvalidInput, None),
        ([REQUEST_ID, NEVER, packed("MESSAGE_TOO_LARGE")], {"num_inputs": 2}, errors.Overloaded, True),
        ([REQUEST_ID, NEVER, packed("MESSAGE_TOO_LARGE")], {"num_documents": 1}, errors.InvalidInput, None),
        ([REQUEST_ID, NEVER, packed("MESSAGE_TOO_LARGE")], {"num_documents": 64}, errors.Overloaded, True),
        ([REQUEST_ID, NEVER, packed("REQUEST_TOO_LARGE")], {}, errors.Overloaded, True),
        ([REQUEST_ID, packed("QUEUE_FULL")], {}, errors.Overloaded, False),
        ([REQUEST_ID, packed("MESSAGE_TOO_LARGE", domain="example.com")], {}, errors.Overloaded, False),
        ([REQUEST_ID, ("grpc-status-details-bin", b"\xff")], {}, errors.Overloaded, False),
        ([REQUEST_ID], {}, errors.Overloaded, False),
        # gRPC itself sends no metadata. A proxy, which may limit the rate, sends its headers.
        ([], {}, errors.InvalidInput, None),
        ([], {"num_inputs": 2}, errors.Overloaded, True),
        ([("server", "envoy")], {}, errors.Overloaded, False),
    ],
)
def test_typed_fields_identify_requests_that_are_too_large(
    metadata: list[tuple[str, Any]], call: dict[str, int], kind: type[errors.BertlineError], is_final: bool | None
) -> None:
    """The error depends on typed fields and metadata, not on the text of the message."""
    error = error_of("RESOURCE_EXHAUSTED", *metadata, **call)

    assert type(error) is kind
    assert getattr(error, "is_final", None) is is_final


@both_clients
def test_a_slow_server_is_timed_out(server: FakeServer, embed: Embed) -> None:
    """The timeout ends the wait, and the message gives its length."""
    server.delay(0.5)
    with pytest.raises(errors.TimedOut, match=r"within 0\.1 s"):
        embed(server.target, ["text"], timeout=0.1)


@pytest.mark.parametrize("status", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_has_its_error(client: Client, server: FakeServer, status: grpc.StatusCode) -> None:
    """A status becomes the error of the table, or else ServerError, with the server's message."""
    server.fail(status, "the server's words", times=None)
    expected = ERRORS[status][0] if status in ERRORS else errors.ServerError
    with pytest.raises(errors.BertlineError) as caught:
        client.models()

    assert type(caught.value) is expected
    assert "the server's words" in str(caught.value)


def test_every_error_has_a_status_and_a_place_in_the_tree() -> None:
    """The table and the tree in the module's docstring contain every error."""
    kinds = {kind for kind in errors.BertlineError.__subclasses__() if kind.__module__ == errors.__name__}

    assert kinds == {kind for kind, _ in ERRORS.values()} | {errors.ServerError, errors.OtherSpace}
    assert all(f"─ {kind.__name__} " in (errors.__doc__ or "") for kind in kinds)


def test_replies_of_two_models_are_not_mixed(client: Client, server: FakeServer) -> None:
    """A call whose replies come from two model versions raises an error."""
    versions = itertools.cycle("12")
    server.reply("Embed", lambda request: vectors_of(next(versions), len(request.texts)))
    with pytest.raises(errors.ServerError, match="give one `version`"):
        client.embed([str(number) for number in range(20)])


def vectors_of(version: str, count: int) -> pb.EmbedReply:
    return pb.EmbedReply(model=pb.ModelRef(name="fake", version=version), dim=1, vectors=bytes(4 * count))


def test_vectors_of_several_lengths_are_refused(client: Client, server: FakeServer) -> None:
    """A call whose replies have vectors of different lengths, as its model was replaced meanwhile, raises an error."""
    lengths = iter([1, 2])

    def reply(request: pb.EmbedRequest) -> pb.EmbedReply:
        dim = next(lengths)
        return pb.EmbedReply(dim=dim, vectors=bytes(4 * dim * len(request.texts)))

    server.reply("Embed", reply)
    with pytest.raises(errors.ServerError, match="vectors of lengths 1 and 2: the model was replaced"):
        client.embed(["a"] * 8)


@contextmanager
def babbling() -> Iterator[str]:
    """Start a server whose replies are no valid messages."""
    embed = grpc.unary_unary_rpc_method_handler(lambda raw, context: b"\xff")
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("bertline.v1.Encoder", {"Embed": embed}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@both_clients
def test_unreadable_replies_are_server_errors(embed: Embed) -> None:
    """An unreadable reply raises ServerError, for one request and for several."""
    with babbling() as target:
        for texts in (["a"], ["a", "b"]):
            with pytest.raises(errors.ServerError):
                embed(target, texts, batch_size=1)


@pytest.mark.parametrize(
    ("method", "reply", "message"),
    [
        ("embed", pb.EmbedReply(dim=2, vectors=bytes(16)), "2 results for 1 inputs"),
        ("embed", pb.EmbedReply(dim=3, vectors=bytes(16)), "16 bytes as float32 vectors of length 3"),
        ("embed", pb.EmbedReply(), "length 0"),
        ("classify", pb.ClassifyReply(), "0 results for 1 inputs"),
    ],
)
def test_impossible_results_are_refused(
    client: Client, server: FakeServer, method: str, reply: Any, message: str
) -> None:
    """A reply with a wrong number or size raises an error when it arrives, not when it is read."""
    server.reply(method.capitalize(), lambda request: reply)
    with pytest.raises(errors.ServerError, match=message):
        getattr(client, method)(["text"])


def spoilt(request: pb.EmbedRequest) -> pb.EmbedReply:
    """Return vectors that are not finite, or zero, for bad texts."""
    values = {"nan": np.nan, "inf": -np.inf, "zero": 0}
    vectors = np.array([[values.get(text, 1), 0] for text in request.texts], dtype="<f4")
    return pb.EmbedReply(model=pb.ModelRef(name="fake", version="1"), dim=2, vectors=vectors.tobytes())


@both_clients
def test_vectors_with_nan_are_refused(server: FakeServer, embed: Embed) -> None:
    """The error gives the position of each vector that is not finite in the caller's list."""
    server.reply("Embed", spoilt)
    with pytest.raises(errors.ServerError) as caught:
        embed(server.target, ["a", "b", "c", "nan", "inf"], batch_size=3)

    assert str(caught.value) == "input 3, reply: the vector is not finite; input 4, reply: the vector is not finite"
    assert [item.index for item in caught.value.items] == [3, 4]


def test_vectors_without_length_are_refused(client: Client, server: FakeServer) -> None:
    """A vector of zeros is refused if normalized vectors were requested."""
    server.reply("Embed", spoilt)

    assert client.embed(["a", "zero"]).tolist() == [[1, 0], [0, 0]]
    with pytest.raises(errors.ServerError, match="input 1, reply: the vector is all zeros"):
        client.embed(["a", "zero"], normalize=True)


NAN = float("nan")


@pytest.mark.parametrize(
    ("method", "results"),
    [
        ("classify", [pb.Classification(labels=[pb.LabelScore(score=1), pb.LabelScore(score=NAN)])]),
        ("answer", [pb.AnswerResult(has_answer=True, spans=[pb.Span(score=NAN)])]),
        ("answer", [pb.AnswerResult(no_answer_score=NAN)]),
        ("choose", [pb.ChooseResult(scores=[0.5, float("inf")])]),
        ("tag", [pb.TagResult(entities=[pb.Entity(score=NAN)])]),
        ("tag", [pb.TagResult(words=[pb.TaggedWord(score=NAN)])]),
        ("fill_mask", [pb.FillMaskResult(masks=[pb.MaskFill(tokens=[pb.TokenScore(score=NAN)])])]),
        ("fill_mask", [pb.FillMaskResult(masks=[pb.MaskFill(targets=[pb.TokenScore(score=NAN)])])]),
        ("embed_sparse", [pb.SparseVector(indices=[1], values=[NAN])]),
        ("regress", [NAN]),
        ("rerank", [pb.RerankResult(documents=[pb.RankedDocument(score=NAN)])]),
    ],
)
def test_scores_that_are_not_finite_are_refused(
    client: Client, server: FakeServer, method: str, results: list[Any]
) -> None:
    """A score that is not finite is refused, for every task and field."""
    name = "".join(map(str.capitalize, method.split("_")))
    pair = ("Which?", ["a", "b"])
    inputs: dict[str, Any] = {"answer": ("Where?", "here"), "choose": pair, "rerank": pair}
    field = "values" if method == "regress" else "results"
    reply = getattr(pb, f"{name}Reply")(**{field: results})
    server.reply(name, lambda request: reply)
    with pytest.raises(errors.ServerError, match=r"^input 0, reply: a score is not finite$"):
        getattr(client, method)([inputs.get(method, "text")])


def test_inputs_that_a_model_fails_on_are_named(client: Client, server: FakeServer) -> None:
    """The error gives the position of an input that the model fails on."""

    def fail(request: pb.EmbedRequest) -> pb.EmbedReply:
        raise Refusal("INTERNAL", "texts[1]: no number", [("texts[1]", "no number")])

    server.reply("Embed", fail)
    with pytest.raises(errors.ServerError, match=r"^input 1, text: no number$") as caught:
        client.embed(["a", "b"])

    assert [item.index for item in caught.value.items] == [1]


def test_a_closed_client_raises(server: FakeServer) -> None:
    """A closed client refuses calls."""
    with Client(server.target) as client:
        pass
    with pytest.raises(ValueError, match="closed"):
        client.models()

    async def use() -> None:
        async with AsyncClient(server.target) as client:
            pass
        await client.models()

    with pytest.raises(ValueError, match="closed"):
        asyncio.run(use())


class Holding(EncoderServicer):
    """Servicer that holds calls until their caller leaves; the call with text `bad` ends after two others are held.

    Args:
        end: returns the reply of the call `bad`, or aborts it.
    """

    def __init__(self, end: Callable[[grpc.ServicerContext], pb.EmbedReply]) -> None:
        self._end = end
        self._held, self._left = threading.Semaphore(0), threading.Semaphore(0)
        self.num_calls = 0

    def Embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        self.num_calls += 1
        if request.texts[0] == "bad":
            self.wait_for_calls(2)
            return self._end(context)
        gone = threading.Event()
        if not context.add_callback(gone.set):
            gone.set()
        self._held.release()
        gone.wait()
        self._left.release()
        return pb.EmbedReply()

    def wait_for_calls(self, count: int) -> None:
        """Wait until this many more calls are held."""
        assert all(self._held.acquire(timeout=10) for _ in range(count))

    def wait_for_leaving(self, count: int) -> None:
        """Wait until this many more callers have left."""
        assert all(self._left.acquire(timeout=10) for _ in range(count))


def abort(context: grpc.ServicerContext) -> pb.EmbedReply:
    context.abort(grpc.StatusCode.INTERNAL, "made to fail")


def send_no_vectors(context: grpc.ServicerContext) -> pb.EmbedReply:
    return pb.EmbedReply(dim=1)


@pytest.fixture
def holding(request: pytest.FixtureRequest) -> Iterator[tuple[str, Holding]]:
    """Yield a target and its servicer, by default one without a failing call."""
    held = Holding(getattr(request, "param", abort))
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool)
        add_EncoderServicer_to_server(held, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}", held
        server.stop(None).wait()


@pytest.mark.parametrize("holding", [abort, send_no_vectors], indirect=True)
@both_clients
def test_when_a_request_fails_the_others_are_cancelled(holding: tuple[str, Holding], embed: Embed) -> None:
    """A failed request or an invalid reply cancels the other requests of its call."""
    target, server = holding
    with pytest.raises(errors.ServerError) as caught:
        embed(target, ["bad", "a", "b"], batch_size=1, num_in_flight=3)
    server.wait_for_leaving(2)

    assert caught.value.__traceback__  # the traceback would keep interrupted calls alive


def test_cancelling_an_async_call_cancels_its_requests(holding: tuple[str, Holding]) -> None:
    """Cancelling a call cancels its requests at the server and sends no more."""
    target, server = holding

    async def use() -> None:
        async with AsyncClient(target, batch_size=1, num_in_flight=2) as client:
            task = asyncio.create_task(client.embed([str(number) for number in range(20)]))
            await asyncio.to_thread(server.wait_for_calls, 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(server.wait_for_leaving, 2)

    asyncio.run(use())

    assert server.num_calls == 2


@pytest.mark.parametrize("texts", [["a"], ["a", "b", "c"]])
def test_closing_a_client_fails_the_calls_under_way(holding: tuple[str, Holding], texts: list[str]) -> None:
    """Closing a client raises ServerError in the threads or tasks that wait."""
    target, server = holding
    with ThreadPoolExecutor() as pool, Client(target, batch_size=1, num_in_flight=2) as client:
        waiting = pool.submit(client.embed, texts)
        server.wait_for_calls(min(len(texts), 2))
        client.close()
        with pytest.raises(errors.ServerError, match="closed"):
            waiting.result()

    async def use() -> None:
        client = AsyncClient(target, batch_size=1, num_in_flight=2)
        task = asyncio.create_task(client.embed(texts))
        await asyncio.to_thread(server.wait_for_calls, min(len(texts), 2))
        await client.close()
        with pytest.raises(errors.ServerError, match="closed"):
            await task

    asyncio.run(use())


def test_errors_can_be_pickled() -> None:
    """A pickled error keeps its message and items."""
    error = errors.InvalidInput.of([errors.InvalidItem(3, "text", "empty text")])
    copy = pickle.loads(pickle.dumps(error))

    assert (str(copy), copy.items) == (str(error), error.items)
