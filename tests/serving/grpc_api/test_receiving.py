"""Messages that come slowly, never, or in large numbers."""

import asyncio
import gc
import math
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.core.request_memory import Budget
from serving.grpc_api.connections import close_connections
from serving.grpc_api.interceptor import MAX_WATCHES_PER_CONNECTION
from serving.grpc_api.receiving import WINDOW_BYTES, Receiver, uncancelled
from tests.serving.attacks import CHECK, EMBED, WATCH, Sender, never_end, read_nothing, reset_rapidly
from tests.serving.conftest import serve
from tests.serving.models import write_model
from tests.serving.processes import listening
from tests.serving.reliability import check_counts, open_channel, wait_until

CAT = pb.EmbedRequest(texts=["cat"], model=pb.ModelRef(name="embedder"))
MIB = 2**20


@pytest.fixture(scope="module")
def small(embedder):
    """Server for requests of 1 MiB, with memory for four."""
    with serve(embedder, max_request_bytes=MIB, buffer_bytes=4 * MIB, receive_s=30, max_queue_s=1000) as running:
        yield running


@pytest.mark.parametrize("path", [EMBED, CHECK])
def test_messages_without_end(small, path):
    """Connections that begin many messages and complete none get bounded memory; others are answered immediately."""
    before = small.total("process_resident_memory_bytes")
    with Sender(small.target) as sender:
        body = struct.pack(">?I", False, MIB) + bytes(MIB - 10)
        for _ in range(150):
            sender.send(sender.open(path), body, timeout_s=0.005)
        started = time.monotonic()
        for _ in range(20):
            small.stub.Embed(CAT, timeout=5)

        assert time.monotonic() - started < 5
        assert sender.num_sent < 150 * 2 * WINDOW_BYTES + 16 * MIB
        assert small.total("process_resident_memory_bytes") - before < 64 * MIB
    check_counts(small)


def test_connections_with_messages_without_end(small):
    """Among connections with endless messages, those with most lose some, and a new one is answered."""
    before = small.total("bertline_refused_total", reason="receiving")
    senders = [Sender(small.target) for _ in range(6)]
    body = struct.pack(">?I", False, MIB) + bytes(MIB - 10)
    for _ in range(8):
        for sender in senders:
            sender.send(sender.open(EMBED), body, timeout_s=0.005)
    with open_channel(small.target) as channel:
        stub = channel.unary_unary(EMBED)
        started = time.monotonic()
        assert stub(CAT.SerializeToString(), timeout=5)

    assert time.monotonic() - started < 3
    small.wait_for("bertline_refused_total", before + 1, reason="receiving")
    for sender in senders:
        sender.close()
    check_counts(small)


def test_a_message_that_takes_too_long(embedder):
    """Slow messages are RESOURCE_EXHAUSTED after the time limit, and counted."""
    with serve(embedder, receive_s=0.3) as running, Sender(running.target) as sender:
        stream = sender.open(EMBED)
        sender.send(stream, struct.pack(">?I", False, 1000) + bytes(500))
        wait_until(lambda: stream in sender.ended, "the call goes on", limit_s=5)

        running.wait_for("bertline_refused_total", 1, reason="receiving")
        assert running.total("grpc_server_handled_total", grpc_code="ResourceExhausted") == 1


class Late:
    """Call whose message comes at the moment when the server gives up."""

    def __init__(self):
        self.message = asyncio.get_running_loop().create_future()
        self.aborted = grpc.aio.AbortError()
        self.num_aborts = 0

    async def read(self):
        return await self.message

    async def abort(self, *status):
        self.num_aborts += 1
        await asyncio.sleep(0)
        raise self.aborted

    def trailing_metadata(self):
        return ()


def test_message_that_arrives_during_its_abort_is_not_answered():
    """A call is aborted and not answered if its message comes when the server gives up."""

    async def run():
        call = Late()
        receiver = Receiver(MIB, MIB, 0.05, lambda error: call.message.set_result(b"late"))
        with pytest.raises(grpc.aio.AbortError) as raised:
            await receiver.message("ipv4:127.0.0.1:1", call)
        return call, raised.value

    call, error = asyncio.run(run())
    assert error is call.aborted
    assert call.num_aborts == 1


class Silent:
    """Call whose message never comes, or only after some time."""

    def __init__(self, after_s=math.inf):
        self.after_s = after_s
        self.has_ended = asyncio.Event()

    async def read(self):
        with suppress(TimeoutError):
            await asyncio.wait_for(self.has_ended.wait(), None if math.isinf(self.after_s) else self.after_s)
        if self.has_ended.is_set():
            raise grpc.aio.AbortError
        return b"message"

    async def abort(self, *status):
        self.has_ended.set()
        raise grpc.aio.AbortError

    def trailing_metadata(self):
        return ()


@asynccontextmanager
async def asking_again(receiver, calls):
    """Begin calls repeatedly, for each (connection, seconds until its message comes)."""

    async def ask(connection, after_s):
        while True:
            with suppress(Exception):
                await receiver.message(connection, Silent(after_s))

    tasks = [asyncio.create_task(ask(*call)) for call in calls]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def seconds_to_receive(receiver, connection):
    """Return the wait of a message that is there immediately."""
    started = time.monotonic()
    await receiver.message(connection, Silent(0))
    return time.monotonic() - started


@pytest.mark.parametrize("has_called", [False, True])
def test_calls_without_a_message_keep_no_others_waiting(has_called):
    """Hundreds of connections that repeat calls without a message do not block others."""
    silent = [(f"attacker {number}", math.inf) for number in range(200)] * 2

    async def run():
        receiver = Receiver(64 * MIB, 4 * MIB, 60, lambda error: None)
        if has_called:
            await receiver.message("bystander", Silent(0))
        async with asking_again(receiver, silent):
            while len(receiver._slow_s) < 200:  # until all are known to be slow
                await asyncio.sleep(0.05)
            for _ in range(6):
                yield await seconds_to_receive(receiver, "bystander")
                await asyncio.sleep(0.05)

    assert max(asyncio.run(collect(run()))) < 0.5


def test_a_new_connection_beside_busy_and_slow_ones():
    """New, busy and slow connections all get turns."""
    slow = [(f"slow {number}", math.inf) for number in range(60)] * 2
    prompt = [(f"prompt {number}", 0.005) for number in range(12)] * 2

    async def run():
        receiver = Receiver(64 * MIB, 4 * MIB, 60, lambda error: None)
        async with asking_again(receiver, slow + prompt):
            await asyncio.sleep(1)
            for number in range(5):
                yield await seconds_to_receive(receiver, f"new {number}")

    assert max(asyncio.run(collect(run()))) < 0.5


async def collect(items):
    return [item async for item in items]


def test_a_stall_of_the_event_loop_makes_no_connection_slow():
    """Messages that came during a stall of the event loop do not count as slow."""

    async def run():
        receiver = Receiver(64 * MIB, 4 * MIB, 60, lambda error: None)
        reading = asyncio.create_task(receiver.message("bystander", Silent(0.003)))
        await asyncio.sleep(0)
        time.sleep(0.1)
        await reading
        return receiver._priority("bystander").name

    assert asyncio.run(run()) == "PROMPT"


def test_large_slow_message_is_answered(small):
    """Large slow messages within the time limit are answered."""
    request = pb.EmbedRequest(texts=["cat " * 2000] * 100, truncate=True, model=pb.ModelRef(name="embedder"))
    message = request.SerializeToString()
    before = small.total("grpc_server_handled_total", grpc_code="OK")
    with Sender(small.target) as sender:
        stream = sender.open(EMBED)
        data = struct.pack(">?I", False, len(message)) + message
        for start in range(0, len(data), 100_000):
            sender.send(stream, data[start : start + 100_000], last=start + 100_000 >= len(data))
            time.sleep(0.05)
        small.wait_for("grpc_server_handled_total", before + 1, grpc_code="OK")


def test_a_call_without_a_message(server):
    """Calls without a message are INVALID_ARGUMENT."""
    call = server.channel.stream_unary(EMBED).future(iter(()), timeout=10)

    assert (call.code(), call.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "the call has no message; send one")


def test_burst_of_small_calls_is_answered(small):
    """A burst of a thousand calls on one connection is answered, also with little memory, on a slow machine.

    Replies wait here until the client, in the same process, has time for them.
    """
    calls = [small.stub.Embed.future(CAT, timeout=60) for _ in range(1000)]

    assert Counter(call.code() for call in calls) == {grpc.StatusCode.OK: 1000}


def test_more_calls_than_a_connection_may_have(embedder, monkeypatch):
    """Calls beyond the limit of a connection wait at the client, and none is lost."""
    monkeypatch.setattr("serving.grpc_api.listening.MAX_STREAMS", 20)
    with serve(embedder) as running:
        calls = [running.stub.Embed.future(CAT, timeout=60) for _ in range(200)]

        assert Counter(call.code() for call in calls) == {grpc.StatusCode.OK: 200}


def test_requests_of_one_connection_leave_memory_for_others(delayed):
    """A connection that fills the memory for requests is refused more, and others are answered."""
    with serve(delayed, workers=1, max_request_bytes=MIB, buffer_bytes=4 * MIB, max_queue_s=1000) as running:
        request = pb.EmbedRequest(texts=["cat " * 5000] * 20, truncate=True)
        with open_channel(running.target) as channel:
            message = request.SerializeToString()
            calls = [channel.unary_unary(EMBED).future(message, timeout=60) for _ in range(8)]
            running.wait_for("bertline_refused_total", 1, reason="no_room")
            assert running.stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=60).num_tokens == [3]
            codes = Counter(call.code() for call in calls)

        assert codes[grpc.StatusCode.OK] >= 1
        assert codes[grpc.StatusCode.RESOURCE_EXHAUSTED] >= 1
        check_counts(running)


def test_health_watches_are_limited(server, monkeypatch):
    """Watches are limited per connection and in all, but each connection may have one; so is the size of a message."""
    refused, before = grpc.StatusCode.RESOURCE_EXHAUSTED, server.total("bertline_refused_total", reason="watches")

    def watch(channel, **request):
        message = health_pb2.HealthCheckRequest(**request)
        return health_pb2_grpc.HealthStub(channel).Watch(message, timeout=10)

    with open_channel(server.target) as greedy, open_channel(server.target) as channel:
        watches = [watch(greedy) for _ in range(MAX_WATCHES_PER_CONNECTION)]
        assert all(map(next, watches))
        assert watch(greedy).code() is refused
        monkeypatch.setattr("serving.grpc_api.interceptor.MAX_WATCHES", 4)
        watches.append(watch(channel))
        assert next(watches[-1])
        assert watch(channel).code() is refused
        long = watch(server.channel, service="a" * 5000)

        assert (long.code(), "too large" in long.details()) == (refused, True)
        assert server.total("bertline_refused_total", reason="watches") == before + 2
        for item in watches:
            item.cancel()
    check_counts(server)


def test_budget_leaves_memory_for_others():
    """Budget: one connection may take all for one message, greedy ones end with equal parts, and some remains."""
    budget = Budget(1000)
    assert budget.fits("a", 1000)
    while budget.fits("a", 1):
        budget.add("a", 1)
    assert budget["a"] == 500
    while budget.fits("b", 1):
        budget.add("b", 1)
    assert budget["b"] == 250
    assert budget.fits("c", 250)
    budget.add("a", -500)

    assert budget["a"] == 0
    assert budget.reserved_bytes == 250


def test_budget_lets_small_calls_wait(monkeypatch):
    """Budget: small calls wait until memory is freed, for a limited time; large and excess ones do not."""
    monkeypatch.setattr("serving.core.request_memory.MAX_WAITING", 2)
    monkeypatch.setattr("serving.core.request_memory.WAIT_S", 60)

    async def run():
        budget, frees = Budget(100), asyncio.Event()

        async def call(num_bytes):
            return await budget.fits_soon(frees.is_set, num_bytes), frees.is_set()

        calls = [asyncio.create_task(call(num_bytes)) for num_bytes in (10**6, 1, 1, 1)]
        while sum(item.done() for item in calls) < 2:
            await asyncio.sleep(0)
        frees.set()
        found = [await item for item in calls]
        frees.clear()
        monkeypatch.setattr("serving.core.request_memory.WAIT_S", 0.05)
        return [*found, await call(1)]

    refused, admitted = (False, False), (True, True)

    assert asyncio.run(run()) == [refused, admitted, admitted, refused, refused]


@pytest.mark.parametrize("text", ["cat", ""])
def test_memory_of_refused_messages(small, text):
    """Memory of refused messages is free immediately, without the garbage collector."""
    message = pb.EmbedRequest(texts=[text, "x" * (MIB - 100 if text == "" else MIB)]).SerializeToString()
    ask = small.channel.unary_unary(EMBED)
    assert ask.future(message, timeout=20).code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    before = small.total("process_resident_memory_bytes")
    gc.disable()
    try:
        for _ in range(40):
            assert ask.future(message, timeout=20).code() is not grpc.StatusCode.OK
        grown = small.total("process_resident_memory_bytes") - before
    finally:
        gc.enable()

    assert grown < 20 * MIB


def test_replies_that_many_connections_do_not_read(tmp_path):
    """Unread replies of many connections stay within the budget; a client that reads is answered."""
    write_model(tmp_path, hidden_size=512)
    message = pb.EmbedRequest(texts=["cat"] * 2000).SerializeToString()  # the reply has 4 MB
    settings = {"max_request_bytes": MIB, "buffer_bytes": 32 * MIB, "cache_bytes": 10**7, "max_queue_s": 1000}
    with serve(tmp_path, **settings) as running:
        running.stub.Embed(pb.EmbedRequest(texts=["cat"]))
        before = running.total("process_resident_memory_bytes")
        senders = [Sender(running.target, reads=False) for _ in range(6)]
        for _ in range(6):
            for sender in senders:
                sender.send(sender.open(EMBED), struct.pack(">?I", False, len(message)) + message, last=True)
        running.wait_for("bertline_refused_total", 1, reason="no_room")

        assert running.stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=10).num_tokens == [3]
        running.wait_for("grpc_server_handled_total", 2 + 36)
        assert running.total("process_resident_memory_bytes") - before < 100 * MIB
        for sender in senders:
            sender.close()
        check_counts(running)


def test_connection_that_never_reads_is_closed(tmp_path, caplog):
    """Connections that read nothing for long are closed when others need the memory."""
    write_model(tmp_path, hidden_size=512)
    message = pb.EmbedRequest(texts=["cat"] * 2000).SerializeToString()
    settings = {"max_request_bytes": MIB, "buffer_bytes": 12 * MIB, "keepalive_timeout_s": 0.2, "max_queue_s": 1000}
    with serve(tmp_path, **settings) as running, Sender(running.target, reads=False) as sender:
        sender.send(sender.open(EMBED), struct.pack(">?I", False, len(message)) + message, last=True)
        running.wait_for("grpc_server_handled_total", 1)
        time.sleep(0.3)
        with open_channel(running.target) as channel:
            for _ in range(20):
                channel.unary_unary(EMBED).future(message, timeout=20).code()
                if sender.is_closed:
                    break

            assert sender.is_closed
            wait_until(lambda: channel.unary_unary(EMBED).future(message).code() is grpc.StatusCode.OK, "no room")
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # the log line of the connection


def test_rapid_reset(server, caplog, monkeypatch):
    """Connections that begin and cancel calls rapidly are closed with a log line; others are answered."""
    monkeypatch.setattr("serving.grpc_api.connections.MAX_RESETS", 100)
    monkeypatch.setattr("serving.grpc_api.connections.RESETS_PER_S", 1)
    with ThreadPoolExecutor() as threads:
        resetting = threads.submit(reset_rapidly, server.target, seconds=60)
        codes = Counter[grpc.StatusCode]()
        while not resetting.done():
            codes[server.stub.Embed.future(CAT, timeout=10).code()] += 1
    _, is_closed, _ = resetting.result()

    assert codes.keys() == {grpc.StatusCode.OK}
    assert is_closed
    assert server.stub.Embed(CAT, timeout=5).num_tokens == [3]
    assert [record.levelname for record in caplog.records if "cancelled more than" in record.getMessage()] == [
        "WARNING"
    ]
    check_counts(server)


def test_calls_that_are_cancelled_leave_room_for_others(server):
    """Cancelled calls that wait for a busy event loop leave room for those of other connections."""
    senders, release = [Sender(server.target) for _ in range(3)], threading.Event()
    server.loop.call_soon_threadsafe(release.wait, 60)
    for sender in senders:
        for _ in range(1800):
            sender.reset(sender.open(EMBED))
    release.set()

    assert server.stub.Embed(CAT, timeout=60).num_tokens == [3]
    for sender in senders:
        sender.close()
    check_counts(server)


def test_cancelled_calls_keep_the_connection(embedder, held):
    """Clients that cancel their running calls keep their connection."""
    with serve(embedder) as running:
        calls = [running.stub.Embed.future(pb.EmbedRequest(texts=["cat " * 30])) for _ in range(150)]
        running.wait_for("grpc_server_started_total", 150)
        for call in calls:
            call.cancel()
        running.wait_for("grpc_server_handled_total", 150, grpc_code="Cancelled")
        held.set()

        assert running.stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=10).num_tokens == [3]
        check_counts(running)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_closing_a_connection(host, tmp_path):
    """`close_connections` closes the connection of a peer, and no other; no descriptor leaks, with pipes and files."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener, (tmp_path / "file").open("w"):
        clients = [socket.create_connection(listener.getsockname()[:2]) for _ in range(2)]
        servers = [listener.accept()[0] for _ in range(2)]
        pipe = os.pipe()
        port = clients[0].getsockname()[1]
        peer = f"ipv6:[::1]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        before = os.listdir("/proc/self/fd")

        close_connections({peer: "a test", "ipv4:192.0.2.1:1": "another", "unix:/tmp/nowhere": "a third"})
        assert clients[0].recv(1) == b""
        servers[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        assert len(os.listdir("/proc/self/fd")) == len(before)
        for item in (*clients, *servers):
            item.close()
        for descriptor in pipe:
            os.close(descriptor)


@pytest.mark.parametrize("outcome", ["result", "error"])
def test_reads_go_on_when_their_caller_is_cancelled(outcome):
    """Cancelling ends the caller immediately, while the future and the coroutine end by themselves."""

    async def read(future, log):
        await future  # as gRPC's reads: the result comes from elsewhere
        log.append("read")

    async def run():
        future, log = asyncio.get_running_loop().create_future(), []
        waiting = asyncio.create_task(uncancelled(read(future, log)))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert waiting.cancelled()
        assert not future.done()
        future.set_exception(OSError()) if outcome == "error" else future.set_result(1)
        await asyncio.sleep(0.01)
        return log

    assert asyncio.run(run()) == (["read"] if outcome == "result" else [])


def resident_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read as Linux tells it")
def test_three_attacks_at_the_same_time_are_bounded(tmp_path):
    """Three attacks at the same time add at most 128 MiB and the budget, which are freed; others are answered."""
    write_model(tmp_path, hidden_size=256)
    message = pb.EmbedRequest(texts=["cat"] * 8000).SerializeToString()  # the reply has 8 MB
    attacks = [
        [partial(never_end, num_streams=1000, size=4_000_000, path=path) for path in (EMBED, CHECK, WATCH)],
        [partial(read_nothing, path=EMBED, message=message, num_calls=30) for _ in range(12)]
        + [partial(never_end, num_streams=1000, size=8_000_000), reset_rapidly],
    ]
    flags = ("--buffer-bytes", 64 * MIB, "--max-queue-s", 1000)
    with listening(tmp_path, *flags, log=subprocess.DEVNULL) as (process, target, _), open_channel(target) as channel:
        stub = encoder_pb2_grpc.EncoderStub(channel)
        stub.Embed(pb.EmbedRequest(texts=["cat"] * 4000), timeout=60)
        time.sleep(30)  # until the memory of the first request is freed
        before = most = resident_mib(process.pid)
        for together in attacks:
            threads = [threading.Thread(target=attack, args=(target,), kwargs={"seconds": 8}) for attack in together]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                assert stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=10).num_tokens == [3]
                most = max(most, resident_mib(process.pid))
                time.sleep(0.05)

        assert most - before < 128 + 64
        wait_until(lambda: resident_mib(process.pid) < before + 48, "memory does not come back", limit_s=30)
