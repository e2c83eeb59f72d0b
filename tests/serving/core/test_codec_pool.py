import asyncio
import threading
import time
import weakref
from functools import partial

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


def test_the_wait_for_a_thread_is_a_stage_of_the_call():
    """Waits are recorded in their calls, and observed for the metrics."""
    waits, release = [], threading.Event()
    pool = CodecPool("some", 1, lambda name, seconds: waits.append((name, seconds)))

    async def run(call, function):
        await pool.run(call, SMALL_BYTES + 1, function)

    async def run_both():
        first = asyncio.create_task(run(calls[0], lambda: release.wait(10)))
        second = asyncio.create_task(run(calls[1], list))
        await asyncio.sleep(0.2)
        release.set()
        await asyncio.gather(first, second)

    calls = [Call("/service/Method") for _ in range(2)]
    asyncio.run(run_both())
    pool.close()

    stages = [call.stages[0] for call in calls]

    assert [stage.name for stage in stages] == ["wait", "wait"]
    assert waits == [("some", stage.seconds) for stage in stages]
    assert stages[0].seconds < stages[1].seconds > 0.15


def test_a_call_that_would_wait_too_long_is_refused():
    """If too many bytes wait, the caller with most loses a call, and a single call of any size may wait."""
    release = threading.Event()
    pool = CodecPool("some", 1, lambda name, seconds: None, max_size=10_000)

    async def run_as(client, size):
        return await pool.run(call_of(client), size, lambda: client)

    async def run():
        first = asyncio.create_task(pool.run(None, 2000, lambda: release.wait(10)))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(run_as(*item)) for item in (("a", 20_000), ("b", 2000), ("b", 7000), ("c", 2000))]
        await asyncio.sleep(0.05)
        release.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())

    assert [type(item) for item in found] == [NoThreadError, str, NoThreadError, str]
    assert found[0].retry_s > 0
    pool.close()


def test_calls_that_were_cancelled_leave_nothing(monkeypatch):
    """Cancelled calls free their memory and their place immediately, also while all threads are busy."""
    monkeypatch.setattr(codec_pool_module, "MAX_WAITING", 5)
    release, kept = threading.Event(), []
    pool = CodecPool("some", 1, lambda name, seconds: None)

    class Request:
        pass

    async def run():
        first = asyncio.create_task(pool.run(None, 2000, lambda: release.wait(10)))
        await asyncio.sleep(0.05)
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
        await first
        return gone, await last, pool._threads._work_queue.qsize()

    assert asyncio.run(run()) == (True, "answered", 0)
    pool.close()


def call_of(client, **changes):
    return Call("/service/Method", client=client, **changes)


def in_turns(calls, function):
    """Queue `function(number)` for each call while the only thread is busy; return the results and errors."""
    release = threading.Event()
    pool = CodecPool("some", 1, lambda name, seconds: None)

    async def run(number, call):
        return await pool.run(call, SMALL_BYTES + 1, lambda: function(number))

    async def run_all():
        first = asyncio.create_task(pool.run(None, SMALL_BYTES + 1, lambda: release.wait(10)))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(run(number, call)) for number, call in enumerate(calls)]
        await asyncio.sleep(0.05)
        for task, call in zip(tasks, calls, strict=True):
            if call.method == "Left":
                task.cancel()
        await asyncio.sleep(0.1)
        release.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    try:
        return asyncio.run(run_all())
    finally:
        pool.close()


def test_callers_have_turns():
    """Callers take turns, for any number of calls."""
    order = []
    calls = [call_of("a") for _ in range(5)] + [call_of("", connection="b:1"), call_of("c"), call_of("c")]
    in_turns(calls, order.append)

    assert order == [0, 5, 6, 1, 7, 2, 3, 4]


def test_work_of_ended_calls_is_not_run():
    """The pool does not run the work of cancelled or expired calls."""
    order = []
    calls = [call_of("a"), call_of("a", deadline_s=time.monotonic() + 0.1), call_of("b"), call_of("b")]
    calls[2].path = "/service/Left"
    found = in_turns(calls, order.append)

    assert order == [0, 3]
    assert [type(item) for item in found] == [type(None), ExpiredError, asyncio.CancelledError, type(None)]


def test_closing_ends_waiting_calls():
    """Closing the pool ends the calls that wait for a thread."""
    release = threading.Event()
    pool = CodecPool("some", 1, lambda name, seconds: None)

    async def run():
        tasks = [asyncio.create_task(pool.run(None, SMALL_BYTES + 1, lambda: release.wait(10))) for _ in range(2)]
        await asyncio.sleep(0.05)
        pool.close()
        release.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(item) for item in asyncio.run(run())] == [bool, asyncio.CancelledError]
