"""Small calls of a busy client leave together, as one request, and each keeps its own result, timeout and error."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertline import AsyncClient, Client, InvalidInput, Overloaded, ServerError, TextsCut, TimedOut, Usage
from bertline._coalescing import MAX_BYTES, MAX_INPUTS, Coalescer, Member
from bertline._convert import ReplyCollector
from bertline.errors import BertlineError
from bertline.operations.classify import classify
from bertline.operations.embed import embed
from bertline.operations.rerank import rerank
from bertline.operations.zero_shot import zero_shot
from bertline.testing import FakeModel, FakeServer, vector

KINDS = [Client, AsyncClient]
Work = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Name of a method, and its arguments."""
Run = Callable[..., list[Any]]


def _in_threads(target: str, works: Sequence[Work], **options: Any) -> list[Any]:
    with Client(target, **options) as client, ThreadPoolExecutor(len(works)) as threads:

        def one(work: Work) -> Any:
            name, arguments, flags = work
            try:
                return getattr(client, name)(*arguments, **flags)
            except BertlineError as error:
                return error

        return list(threads.map(one, works))


def _in_tasks(target: str, works: Sequence[Work], **options: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with AsyncClient(target, **options) as client:
            calls = [getattr(client, name)(*arguments, **flags) for name, arguments, flags in works]
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


@pytest.fixture(params=[_in_threads, _in_tasks], ids=["threads", "tasks"])
def together(request: pytest.FixtureRequest) -> Run:
    """Return a function that makes calls at the same time, and returns results and errors."""
    found: Run = request.param
    return found


def embeds(*texts: str, **flags: Any) -> list[Work]:
    return [("embed", ([text],), flags) for text in texts]


def sizes(server: FakeServer) -> list[int]:
    return [len(request.texts) for request in server.requests]


def test_a_burst_leaves_in_few_requests(server: FakeServer, together: Run) -> None:
    """The first calls leave alone; those that come in the meantime leave together, and each gets its own vector."""
    server.delay(0.2)
    texts = [f"text {number}" for number in range(40)]

    found = together(server.target, embeds(*texts), num_in_flight=2)

    for text, vectors in zip(texts, found, strict=True):
        assert np.array_equal(vectors, [vector(text)])
    assert sum(sizes(server)) == 40
    assert sizes(server)[:2] == [1, 1]
    assert len(sizes(server)) <= 5


def test_requests_hold_at_most_batch_size_inputs(server: FakeServer, together: Run) -> None:
    """A shared request has at most `batch_size` inputs."""
    server.delay(0.1)

    together(server.target, embeds(*map(str, range(20))), num_in_flight=1, batch_size=8)

    assert max(sizes(server)) == 8
    assert sum(sizes(server)) == 20


def test_idle_clients_do_not_wait(server: FakeServer, together: Run) -> None:
    """As long as no more than `num_in_flight` calls are in flight, each is a separate request."""
    server.delay(0.1)

    together(server.target, embeds("a", "b", "c", "d"))

    assert sizes(server) == [1, 1, 1, 1]


def test_coalescing_can_be_switched_off(server: FakeServer, together: Run) -> None:
    """With coalesce=False each call is a separate request."""
    server.delay(0.05)

    together(server.target, embeds(*map(str, range(12))), num_in_flight=1, coalesce=False)

    assert sizes(server) == [1] * 12


def test_calls_with_other_options_go_apart(server: FakeServer, together: Run) -> None:
    """Only calls of the same method, model and options share a request."""
    server.models.append(FakeModel(name="other"))
    server.delay(0.1)
    works = (
        embeds("a", "b", "c", model="fake")
        + embeds("d", "e", model="other")
        + embeds("f", "g", model="fake", dimensions=2)
    )
    works += [("classify", (["h"],), {"model": "fake"}), ("classify", ([("i", "j")],), {"model": "fake"})]

    found = together(server.target, works, num_in_flight=1)

    assert [len(item[0]) for item in found[5:7]] == [2, 2]
    texts = [{*request.texts} for request in server.requests if hasattr(request, "texts")]
    assert all(part <= {*"abc"} or part <= {*"de"} or part <= {*"fg"} for part in texts)
    assert found[7] == together(server.target, works[7:8])[0]
    assert found[8] == together(server.target, works[8:9])[0]


def test_an_invalid_input_fails_its_own_call_only(server: FakeServer, together: Run) -> None:
    """If the server refuses a shared request, its calls are sent alone; errors name positions in the own list."""
    server.refuse("bad")
    server.delay(0.1, times=1)

    works = embeds(*map(str, range(6)))
    works[4] = ("embed", (["good", "bad"],), {})
    found = together(server.target, works, num_in_flight=1)

    assert isinstance(found[4], InvalidInput)
    assert [item.index for item in found[4].items] == [1]
    for number in (0, 1, 2, 3, 5):
        assert np.array_equal(found[number], [vector(str(number))])


def test_an_overloaded_server_refuses_each_call(server: FakeServer, together: Run) -> None:
    """The calls of a refused request all get the error, each one a separate error."""
    server.delay(0.2, times=1)
    server.overload(times=None, after=1)

    found = together(server.target, embeds(*map(str, range(5))), num_in_flight=1)

    errors = [item for item in found if isinstance(item, BertlineError)]
    assert [type(error) for error in errors] == [Overloaded] * 4
    assert len(set(map(id, errors))) == 4


def test_timeouts_are_those_of_each_call(server: FakeServer, together: Run) -> None:
    """A call ends after its own timeout, while others of its request wait longer."""
    server.delay(0.4)
    works = [*embeds("first"), *embeds("patient", timeout=10), *embeds("hasty", timeout=0.5)]

    started = time.monotonic()
    first, patient, hasty = together(server.target, works, num_in_flight=1)

    assert np.array_equal(first, [vector("first")])
    assert np.array_equal(patient, [vector("patient")])
    assert isinstance(hasty, TimedOut)
    assert "within 0.5 s" in str(hasty)
    assert time.monotonic() - started < 5


def test_shared_timeouts_name_the_timeout_of_each_call(server: FakeServer, together: Run) -> None:
    """A call names its own timeout, not what is left of it after the wait, and the details of the server."""
    server.delay(0.2, times=1)
    server.fail("DEADLINE_EXCEEDED", "the queue is long", times=None, after=1)
    works = [*embeds("first"), *embeds("a", timeout=10), *embeds("b")]

    _, *found = together(server.target, works, num_in_flight=1, timeout=20)

    assert sizes(server) == [1, 2]
    check_timeouts(found, [10, 20], "the queue is long")


def test_a_hanging_server_times_each_call_out(server: FakeServer, together: Run) -> None:
    """The error names the timeout of the call, whether it ends before, at or after the moment of its request."""
    server.delay(0.2, times=1)
    server.delay(20)
    timeouts = [0.19, 0.2, 0.21]
    works = [*embeds("first"), *(embeds("a", timeout=timeout)[0] for timeout in timeouts)]

    _, *found = together(server.target, works, num_in_flight=1)

    check_timeouts(found, timeouts, "Deadline Exceeded")


def check_timeouts(errors: Sequence[Any], timeouts: Sequence[float], details: str) -> None:
    """Check that each error is a separate TimedOut that names its timeout."""
    assert len(set(map(id, errors))) == len(errors)
    for error, timeout in zip(errors, timeouts, strict=True):
        assert isinstance(error, TimedOut)
        assert f"within {timeout} s ({details}); raise the timeout" in str(error)
        assert error.__cause__ is None or isinstance(error.__cause__, grpc.RpcError)


def test_calls_whose_caller_has_left_are_not_sent_alone(server: FakeServer, together: Run) -> None:
    """After a refused request, calls whose timeout ended meanwhile are not sent again."""
    server.delay(0.4)
    server.refuse("bad")
    works = [*embeds("first"), *embeds("bad"), *embeds("hasty", timeout=0.6)]

    _, bad, hasty = together(server.target, works, num_in_flight=1)

    assert isinstance(bad, InvalidInput)
    check_timeouts([hasty], [0.6], "Deadline Exceeded")
    assert sizes(server) == [1, 2, 1]


def test_usage_and_warnings_are_those_of_each_call(server: FakeServer, together: Run) -> None:
    """Tokens and truncation are counted for the texts of the own call."""
    server.models = [FakeModel(max_seq_length=8)]
    server.delay(0.1)
    long_text = "word " * 400
    usages = [Usage() for _ in range(4)]
    texts = ["one", "two words", long_text, "three more words"]

    works: list[Work] = [
        ("embed", ([text],), {"usage": usage, "truncate": True}) for text, usage in zip(texts, usages, strict=True)
    ]
    found = together(server.target, works, num_in_flight=1)

    assert not [item for item in found if isinstance(item, Exception)]
    assert [usage.num_tokens for usage in usages] == [[3], [4], [8], [5]]
    assert [usage.num_truncated for usage in usages] == [[0], [0], [394], [0]]
    assert [len(usage.timings) for usage in usages] == [1] * 4


def test_cut_texts_warn_their_own_caller(server: FakeServer) -> None:
    """Only the call with a text that was cut warns."""
    server.models = [FakeModel(max_seq_length=8, manifest={"truncate": True})]
    server.delay(0.1)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _in_tasks(server.target, embeds("a", "b", "word " * 400, "c"), num_in_flight=1)

    assert [item.category for item in found] == [TextsCut]


def test_a_cancelled_call_leaves_the_others(server: FakeServer) -> None:
    """Cancelling a call that waits changes nothing for the others."""
    server.delay(0.2)

    async def run() -> list[Any]:
        async with AsyncClient(server.target, num_in_flight=1) as client:
            tasks = [asyncio.ensure_future(client.embed([str(number)])) for number in range(5)]
            await asyncio.sleep(0.05)
            tasks[2].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())

    assert isinstance(found[2], asyncio.CancelledError)
    for number in (0, 1, 3, 4):
        assert np.array_equal(found[number], [vector(str(number))])
    assert sizes(server) == [1, 3]


def test_a_fault_of_the_client_reaches_its_callers(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is none of the client's errors reaches every call of the request."""
    server.delay(0.1, times=1)
    monkeypatch.setattr("bertline._coalescing.SimpleNamespace", lambda **fields: 1 // 0)

    first, *others = _in_tasks(server.target, embeds("first", "a", "b"), num_in_flight=1)

    assert np.array_equal(first, [vector("first")])
    assert [type(item) for item in others] == [ZeroDivisionError] * 2


def test_cancelling_the_call_in_flight_sends_those_that_wait(server: FakeServer) -> None:
    """When the call that holds the lane is cancelled, those that wait leave."""
    server.delay(0.3, times=1)

    async def run() -> list[Any]:
        async with AsyncClient(server.target, num_in_flight=1) as client:
            tasks = [asyncio.ensure_future(client.embed([str(number)])) for number in range(3)]
            await asyncio.sleep(0.1)
            tasks[0].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, *others = asyncio.run(run())

    assert isinstance(cancelled, asyncio.CancelledError)
    assert np.array_equal(np.concatenate(others), [vector("1"), vector("2")])


@pytest.mark.parametrize("kind", KINDS)
def test_closing_ends_the_calls_that_wait(server: FakeServer, kind: type) -> None:
    """Calls that wait when the client is closed fail with ServerError, as those in flight."""
    server.delay(1.0)

    async def run_tasks() -> list[Any]:
        client = AsyncClient(server.target, num_in_flight=1)
        tasks = [asyncio.ensure_future(client.embed([str(number)])) for number in range(4)]
        await asyncio.sleep(0.2)
        await client.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    def run_threads() -> list[Any]:
        client, found = Client(server.target, num_in_flight=1), list[Any]()

        def one(number: int) -> None:
            try:
                found.append(client.embed([str(number)]))
            except BertlineError as error:
                found.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        client.close()
        for thread in threads:
            thread.join(10)
        return found

    started = time.monotonic()
    found = asyncio.run(run_tasks()) if kind is AsyncClient else run_threads()

    assert [type(item) for item in found] == [ServerError] * 4
    assert time.monotonic() - started < 5


def test_ctrl_c_in_a_waiting_call_holds_up_no_other(server: FakeServer) -> None:
    """When the thread that waits is interrupted, other calls are answered, and the client goes on."""
    server.delay(0.5, times=1)
    found: list[Any] = []
    with Client(server.target, num_in_flight=1) as client:
        threads = [threading.Thread(target=lambda text=text: found.append(client.embed([text]))) for text in "abc"]
        for thread in threads[:2]:
            thread.start()
        time.sleep(0.1)
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        timer.start()

        with pytest.raises(KeyboardInterrupt):
            client.embed(["interrupted"], timeout=100)
        threads[2].start()
        for thread in threads:
            thread.join(10)

        assert len(found) == 3
        assert np.array_equal(client.embed(["after"]), [vector("after")])


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=60, max_size=60), st.booleans())
def test_requests_of_a_busy_client_are_equally_large(ends: list[int], come_back_first: bool) -> None:
    """Whichever request ends next, its callers come back in requests of about the same size."""
    coalescer, call = Coalescer(4, 64), embed(["a"])
    in_flight: list[list[Member]] = []

    def come() -> None:
        member = Member(call, ReplyCollector(call), 60.0, Future())
        if coalescer.enter("lane", member):
            in_flight.append([member])

    for _ in range(64):
        come()
    found = []
    for end in ends:
        ended = in_flight.pop(end)
        if come_back_first:
            for _ in ended:
                come()
        in_flight.append(coalescer.leave("lane", ended))
        found.append(len(in_flight[-1]))
        if not come_back_first:
            for _ in ended:
                come()

    assert min(found) > 8
    assert max(found) <= 26


def test_large_calls_and_rankings_go_alone() -> None:
    """Calls with many inputs or bytes, rankings, and calls without inputs are not sent with others."""

    def lane(texts: list[str]) -> object:
        return Coalescer(4, 64).lane(embed(texts))

    assert lane(["a"]) == lane(["b", "c"]) is not None
    assert lane(["x" * MAX_BYTES]) is not None
    assert lane([]) is lane(["a"] * (MAX_INPUTS + 1)) is lane(["x" * (MAX_BYTES + 1)]) is None
    ranking = rerank([("q", ["a"])])
    assert Coalescer(4, 64).lane(ranking) is None
    assert Coalescer(4, 1).lane(classify(["a", "b"])) is None
    many, few = zero_shot(["a"], map(str, range(600))), zero_shot(["a"], ["x"])
    assert Coalescer(4, 64).lane(zero_shot(["a", "b"], map(str, range(600)))) is None  # a request takes 1,024 pairs
    assert Coalescer(4, 64).lane(many) != Coalescer(4, 64).lane(few)


@settings(max_examples=15, deadline=None)
@given(
    works=st.lists(st.tuples(st.lists(st.sampled_from(["a", "bb", "bad", "l " * 600]), max_size=6)), max_size=30),
    num_in_flight=st.integers(1, 3),
    batch_size=st.integers(1, 8),
)
def test_any_burst_has_the_results_of_single_calls(
    works: list[tuple[list[str]]], num_in_flight: int, batch_size: int
) -> None:
    """Whatever calls come together, each ends as if it were alone."""
    with FakeServer() as server:
        server.refuse("bad")
        server.delay(0.01)
        calls: list[Work] = [("embed", work, {}) for work in works]
        if not calls:
            return
        for run in (_in_threads, _in_tasks):
            found = run(server.target, calls, num_in_flight=num_in_flight, batch_size=batch_size)
            for (texts,), item in zip(works, found, strict=True):
                if "bad" in texts or any(text.startswith("l ") for text in texts):
                    assert isinstance(item, InvalidInput), item
                elif texts:
                    assert np.array_equal(item, [vector(text) for text in texts])
