import asyncio
import threading
import time
import weakref
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat

import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.core import codec_pool as codec_pool_module
from serving.core.calls import Call
from serving.core.codec_pool import SMALL_BYTES, CodecPool
from serving.core.errors import ExpiredError, NoThreadError
from tasks.text.tokenizer import Tokenizer
from tests.serving.open_inference.messages import infer_request, stub

LONG = "the cat sees " * 60
SOME = ["cat"] * 20


@pytest.mark.parametrize(
    ("method", "request_", "is_beside"),
    [
        ("Embed", pb.EmbedRequest(texts=["the cat", "dog"]), False),
        ("Embed", pb.EmbedRequest(texts=SOME), True),
        (
            "Choose",
            pb.ChooseRequest(inputs=[pb.ChooseInput(context="cat", question=LONG, choices=SOME[:2])], truncate=True),
            True,
        ),
        ("Answer", pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=SOME)]), True),
        ("Tokenize", pb.TokenizeRequest(model=pb.ModelRef(name="embedder"), inputs=[pb.TextInput(text="cat")]), True),
        ("ModelInfer", infer_request("embedder", text=["the cat", "dog"]), False),
        ("ModelInfer", infer_request("chooser", choices=[SOME]), True),
        (
            "ModelInfer",
            infer_request("chooser", choices=[SOME[:2]], question=[LONG], parameters={"truncate": True}),
            True,
        ),
    ],
)
def test_much_work_in_few_bytes_is_done_beside_the_event_loop(server, monkeypatch, method, request_, is_beside):
    """Small requests with many sequences, or with texts that are tokenized repeatedly, run in threads."""
    threads = set()

    def recording(read):
        def recorded(*arguments, **options):
            threads.add(threading.current_thread().name.partition("_")[0])
            return read(*arguments, **options)

        return recorded

    for name in ("tokenize", "tokenize_blocks"):
        monkeypatch.setattr(Tokenizer, name, recording(getattr(Tokenizer, name)))
    assert request_.ByteSize() <= SMALL_BYTES
    call = stub(server, method) if method == "ModelInfer" else getattr(server.stub, method)
    call(request_, timeout=20)

    assert len(threads) == 1
    assert bool(threads & {"codec", "tokenize"}) is is_beside


@asynccontextmanager
async def busy_pool(observe=lambda name, seconds: None, **options):
    """Pool whose only thread is busy, and the event that frees it."""
    pool, release = CodecPool("some", 1, observe, **options), threading.Event()
    first = asyncio.create_task(pool.run(None, 2000, lambda: release.wait(60)))
    while not pool.is_busy:
        await asyncio.sleep(0)
    try:
        yield pool, release
    finally:
        release.set()
        await first
        pool.close()


def call_of(client, **changes):
    return Call("/service/Method", client=client, **changes)


def test_the_wait_for_a_thread_is_a_stage_of_the_call():
    """Waits are recorded in their calls, and observed for the metrics."""
    waits, call = [], call_of("a")

    async def run():
        async with busy_pool(lambda *wait: waits.append(wait)) as (pool, release):
            second = asyncio.create_task(pool.run(call, 2000, list))
            await asyncio.sleep(0.1)
            release.set()
            await second

    asyncio.run(run())
    [stage] = call.stages

    assert stage.name == "wait"
    assert waits[1] == ("some", stage.seconds)
    assert waits[0][1] < stage.seconds > 0.05


def test_a_call_that_would_wait_too_long_is_refused():
    """If too many bytes wait, the caller with most loses a call, and a single call of any size may wait."""

    async def run():
        async with busy_pool(max_size=10_000) as (pool, release):
            items = ("a", 20_000), ("b", 2000), ("b", 7000), ("c", 2000)
            tasks = [asyncio.create_task(pool.run(call_of(client), size, lambda: "")) for client, size in items]
            await asyncio.sleep(0)
            release.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())

    assert [type(item) for item in found] == [NoThreadError, str, NoThreadError, str]
    assert found[0].retry_s > 0


def test_calls_that_were_cancelled_leave_nothing(monkeypatch):
    """Cancelled calls free their memory and their place immediately, also while all threads are busy."""
    monkeypatch.setattr(codec_pool_module, "MAX_WAITING", 5)
    kept = []

    class Request:
        pass

    async def run():
        async with busy_pool() as (pool, release):
            for _ in range(20):
                request = Request()
                kept.append(weakref.ref(request))
                task = asyncio.create_task(pool.run(None, 2000, partial(id, request)))
                del request
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del task
            await asyncio.sleep(0.05)
            gone = not any(item() for item in kept)
            last = asyncio.create_task(pool.run(None, 2000, lambda: "answered"))
            await asyncio.sleep(0)
            release.set()
            return gone, await last, pool._threads._work_queue.qsize()

    assert asyncio.run(run()) == (True, "answered", 0)


def order_of(calls):
    """Queue the calls while the only thread is busy; return the order in which they run, and what they return."""
    order = []

    async def run():
        async with busy_pool() as (pool, release):
            functions = (partial(order.append, number) for number in range(len(calls)))
            tasks = [asyncio.create_task(pool.run(*item)) for item in zip(calls, repeat(2000), functions)]
            await asyncio.sleep(0.15)
            for task, call in zip(tasks, calls, strict=True):
                if call.method == "Left":
                    task.cancel()
            await asyncio.sleep(0)
            release.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run()), order


def test_callers_have_turns():
    """Callers take turns, for any number of calls."""
    _, order = order_of([call_of("a") for _ in range(5)] + [call_of("", connection="b:1"), call_of("c"), call_of("c")])

    assert order == [0, 5, 6, 1, 7, 2, 3, 4]


def test_work_of_ended_calls_is_not_run():
    """The pool does not run the work of cancelled or expired calls."""
    calls = [call_of("a"), call_of("a", deadline_s=time.monotonic() + 0.1), call_of("b"), call_of("b")]
    calls[2].path = "/service/Left"
    found, order = order_of(calls)

    assert order == [0, 3]
    assert [type(item) for item in found] == [type(None), ExpiredError, asyncio.CancelledError, type(None)]


def test_closing_ends_waiting_calls():
    """Closing the pool ends the calls that wait for a thread."""

    async def run():
        async with busy_pool() as (pool, _):
            waiting = asyncio.create_task(pool.run(None, 2000, list))
            await asyncio.sleep(0)
            pool.close()
            return await asyncio.gather(waiting, return_exceptions=True)

    assert [type(item) for item in asyncio.run(run())] == [asyncio.CancelledError]
