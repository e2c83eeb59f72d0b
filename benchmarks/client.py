"""Measure the CPU time of the client: a call with one text, and a text in bulk, beside plain gRPC in the same run.

    python -m benchmarks.client

The server is a separate process that always sends the same bytes, so that only the client is measured: CPU time of this
process, all threads. Replies hold vectors of 384 dimensions; texts have 6 words. The minimum of some rounds counts,
because other programs can only add to it. "stub" sends the same request through the generated stub and the same
channel options, without the client's own code.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import grpc
import grpc.aio

from bertline import AsyncClient, Client
from bertline._connection import channel_options
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from demo.server import one_line_errors
from training.bounds import COUNT, check_numbers
from training.command import command, parse

DIM = 384
BATCH = 64
TEXT = "A text of about six words"
_SERVER = f"""
import asyncio, grpc
from bertline.v1 import encoder_pb2 as pb

def reply(count):
    model = pb.ModelRef(name="echo", version="1")
    vectors = bytes(4 * {DIM} * count)
    return pb.EmbedReply(
        model=model, dim={DIM}, vectors=vectors, num_tokens=[8] * count, num_truncated=[0] * count
    ).SerializeToString()

ONE, MANY = reply(1), reply({BATCH})

async def embed(raw, context):
    return ONE if len(raw) < 64 else MANY

async def main():
    server = grpc.aio.server()
    handlers = {{"Embed": grpc.unary_unary_rpc_method_handler(embed)}}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bertline.v1.Encoder", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Command line."""

    calls: Annotated[int, COUNT] = 2000
    """Calls with one text in each round."""
    rounds: Annotated[int, COUNT] = 5
    """Rounds of each measurement; the fastest counts."""

    def __post_init__(self) -> None:
        check_numbers(self)


@contextmanager
def echo() -> Iterator[str]:
    """Run a server that knows two replies, and yield its target."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def min_cpu_s(rounds: int, calls: int, call: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, in the fastest round."""
    seconds = []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(calls):
            call()
        seconds.append((time.process_time() - begun) / calls)
    return min(seconds)


async def min_cpu_async_s(rounds: int, calls: int, call: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU seconds of one call of a coroutine function, in the fastest round."""
    seconds = []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(calls):
            await call()
        seconds.append((time.process_time() - begun) / calls)
    return min(seconds)


def measure(target: str, rounds: int, calls: int) -> Iterator[tuple[str, float, float]]:
    """Yield name, CPU seconds of a call with one text, and CPU seconds of a text in bulk, for Client and stub."""
    options = tuple(channel_options(check_health=False).items())
    bulk = [TEXT] * (BATCH * 50)
    with Client(target, check_health=False) as client:
        client.embed(bulk)
        one = min_cpu_s(rounds, calls, lambda: client.embed([TEXT]))
        many = min_cpu_s(rounds, 1, lambda: client.embed(bulk)) / len(bulk)
        yield "Client", one, many
    with grpc.insecure_channel(target, options=options) as channel:
        stub, request, batch = EncoderStub(channel), pb.EmbedRequest(texts=[TEXT]), pb.EmbedRequest(texts=bulk[:BATCH])
        stub.Embed(request, timeout=30)
        one = min_cpu_s(rounds, calls, lambda: stub.Embed(request, timeout=30))
        yield "stub", one, min_cpu_s(rounds, 50, lambda: stub.Embed(batch, timeout=30)) / BATCH


async def measure_async(target: str, rounds: int, calls: int) -> list[tuple[str, float, float]]:
    """Return what `measure` yields, for AsyncClient and the stub of asyncio."""
    options = tuple(channel_options(check_health=False).items())
    bulk = [TEXT] * (BATCH * 50)
    async with AsyncClient(target, check_health=False) as client:
        await client.embed(bulk)
        one = await min_cpu_async_s(rounds, calls, lambda: client.embed([TEXT]))
        many = await min_cpu_async_s(rounds, 1, lambda: client.embed(bulk)) / len(bulk)
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        stub, request, batch = EncoderStub(channel), pb.EmbedRequest(texts=[TEXT]), pb.EmbedRequest(texts=bulk[:BATCH])
        await stub.Embed(request, timeout=30)
        alone = await min_cpu_async_s(rounds, calls, lambda: stub.Embed(request, timeout=30))
        alone_many = await min_cpu_async_s(rounds, 50, lambda: stub.Embed(batch, timeout=30)) / BATCH
    return [("AsyncClient", one, many), ("stub, asyncio", alone, alone_many)]


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    settings = parse(ClientSettings, "benchmarks.client", __doc__)
    with echo() as target:
        rows = list(measure(target, settings.rounds, settings.calls))
        rows += asyncio.run(measure_async(target, settings.rounds, settings.calls))
    print(f"{'':14}{'ms a call':>12}{'us a text in bulk':>20}")
    for name, one, many in rows:
        print(f"{name:14}{1e3 * one:12.3f}{1e6 * many:20.1f}")


if __name__ == "__main__":
    main()
