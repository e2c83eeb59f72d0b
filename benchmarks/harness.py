"""Shared parts of the benchmarks: alternate measurements, a server, and clients that load it.

Servers and clients run in separate processes, so that they are measured apart from each other.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import grpc.aio

from bertline.bench.inputs import make_calls
from bertline.bench.load import LoadGenerator
from bertline.bench.report import Load, Run
from bertline.jobs.engine import LOCAL_FLAGS, server_process
from tasks.bundle.model_directory import model_folders, read_model_directory, version_paths
from training.command_line.parent import die_with_parent

REFUSALS = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
"""Statuses of calls that a server under load refuses."""


def alternate(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure all alternatives in each round; return their values by name."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def print_rates(found: Mapping[str, list[float]], unit: str) -> None:
    """Print the median rate of each alternative, and its ratio to the first one in the same round."""
    first = next(iter(found))
    for name, rates in found.items():
        ratios = [rate / base for rate, base in zip(rates, found[first], strict=True)]
        spread = f"{statistics.median(ratios):.2f} of {first} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{name:44} {statistics.median(rates):10,.0f} {unit}/s  {spread}")


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which a fraction of the values lies; NaN for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else float("nan")


def read_texts(path: Path, at_least: int = 1) -> list[str]:
    """Read a file with one text per line.

    Raises:
        ValueError: if it has fewer texts than `at_least`.
    """
    texts = path.read_text(encoding="utf-8").splitlines()
    if len(texts) < at_least:
        raise ValueError(f"`{path}` has {len(texts)} texts, one per line; at least {at_least} are needed")
    return texts


def random_texts(count: int, shortest: int, longest: int) -> list[str]:
    """Return texts of random words, with a random number of words between two bounds."""
    source = random.Random(0)
    return [" ".join(source.choices(_WORDS, k=source.randint(shortest, longest))) for _ in range(count)]


_WORDS = (
    "a server that no request can stall answers short queries while it computes long ones for somebody else".split()
)


class Worker:
    """Process that runs a function; a context that ends it. It ends with this process at the latest.

    Args:
        work: function of a connection, for messages from and to this process, and of `arguments`.
        *arguments: of the function.
    """

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        context = get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(os.getpid(), other, work, *arguments), daemon=True)
        self._process.start()
        other.close()  # only the worker holds this end now, so its end is noticed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self._process.terminate()
        self._process.join()

    def send(self, message: object) -> None:
        """Send a message to the worker.

        Raises:
            ChildProcessError: if it has ended.
        """
        with self._noticed_end():
            self._connection.send(message)

    def receive(self) -> Any:
        """Wait for a message of the worker.

        Raises:
            ValueError, OSError: if its work ended with one.
            ChildProcessError: if it ended otherwise.
        """
        with self._noticed_end():
            answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextmanager
    def _noticed_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            message = f"a process of this benchmark has ended (exit code {code}); its output, if any, is above"
            raise ChildProcessError(message) from None


def _work(parent: int, connection: Connection, work: Callable[..., None], *arguments: object) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    try:
        work(connection, *arguments)
    except (ValueError, OSError, EOFError) as error:
        with suppress(ConnectionError):  # the parent has failed, and does not wait
            connection.send(error)


@dataclass(frozen=True)
class ServerProcess:
    """Server that runs in a separate process."""

    target: str
    process: subprocess.Popen[bytes]
    ready_s: float
    """Seconds from the start of the process to its ready line."""
    http: str = ""
    """URL of its HTTP API; empty without one."""
    metrics: str = ""
    """URL of its metrics."""

    @property
    def resident_mb(self) -> float:
        """Resident memory in MiB."""
        return resident_mb(self.process.pid)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it and its processes have taken until now."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        stats = [Path(f"/proc/{each}/stat").read_text(encoding="ascii") for each in (pid, *children)]
        fields = [stat.rpartition(")")[2].split() for stat in stats]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) / 1024


@contextmanager
def running_server(
    models: Path, flags: Sequence[str] = (), *, prefix: Sequence[str] = (), module: str = "serving"
) -> Iterator[ServerProcess]:
    """Run a server, and yield it when it is ready.

    Args:
        models: folder of models.
        flags: of the server.
        prefix: command that runs the server in the same process, as `taskset` does.
        module: Python module that serves.

    Raises:
        ValueError: if the server does not start.
    """
    command = [*prefix, sys.executable, "-m", module, str(models), *LOCAL_FLAGS, *flags]
    started_s = time.perf_counter()
    with server_process(command) as (process, ready):
        if ready is None:
            raise ValueError("the server did not start; its error is above")
        ready_s = time.perf_counter() - started_s
        yield ServerProcess(ready["target"], process, ready_s, ready["http_url"], ready["metrics_url"])


def embedding_model(models: Path) -> Path:
    """Return the highest version of the only embedding model in a folder."""
    highest = [read_model_directory(paths[-1]) for folder in model_folders(models) if (paths := version_paths(folder))]
    found = [directory for directory in highest if directory.manifest.task == "embedding"]
    if len(found) != 1:
        raise ValueError(f"`{models}` has {len(found)} models of task `embedding`; give a folder with one")
    return found[0].path


@dataclass
class LoadResult:
    """Results of a load."""

    texts_per_s: float
    """Throughput of answered calls."""
    latencies: Sequence[float] = ()
    """Seconds of each answered call."""
    codes: Counter[str] = field(default_factory=Counter)
    """Number of calls by status."""


@dataclass(frozen=True, kw_only=True)
class EmbedLoad:
    """Embed calls to send."""

    target: str
    texts: Path
    """File with one text per line."""
    seconds: float
    num_texts: int = 1
    """Texts in each call."""
    connections: int = 1
    """Connections, each with `num_in_flight` calls."""
    num_in_flight: int = 1
    """Calls in flight: the next one starts when one has ended."""
    calls_per_s: float | None = None
    """Calls that start per second, even if earlier ones have not ended. Replaces `num_in_flight`."""
    pause_s: float = 0.0
    """Mean pause between the end of a call and the next call; counts as latency."""
    timeout_s: float | None = None
    priority: str = ""
    """Metadata `priority` of the calls."""
    max_words: int | None = None
    """Longer texts are cut to this."""

    async def run(self) -> LoadResult:
        """Send the calls.

        Raises:
            ValueError: if a call failed, or none was answered.
        """
        texts = [" ".join(text.split()[: self.max_words]) for text in read_texts(self.texts)]
        calls = make_calls("embedding", texts, self.num_texts)
        schedule = Load(
            concurrency=self.num_in_flight, rate=self.calls_per_s, duration_s=self.seconds, timeout_s=self.timeout_s
        )
        metadata = (("priority", self.priority),) if self.priority else ()
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(self.target, options=_OPTIONS))
                for _ in range(self.connections)
            ]
            rpcs = [partial(channel.unary_unary(calls.path), metadata=metadata) for channel in channels]
            try:
                await rpcs[0](calls.bodies[0])  # opens the connection
            except grpc.aio.AioRpcError as error:
                raise ValueError(f"the server does not embed: {error.details()}") from None
            runs = [Run(schedule, self.num_texts) for _ in rpcs]
            await asyncio.gather(
                *(
                    LoadGenerator(run, _with_pauses(rpc, self.pause_s), calls.reply_class, cycle(calls.bodies)).send()
                    for run, rpc in zip(runs, rpcs, strict=True)
                )
            )
        codes = sum((each.statuses for each in runs), Counter[str]())
        if failures := {code: count for code, count in codes.items() if code not in ("OK", *REFUSALS)}:
            raise ValueError(f"calls failed: {failures}; see the log of the server")
        if not codes["OK"]:
            raise ValueError(f"no call was answered within {self.seconds:g} s ({dict(codes)}); give more time")
        seconds = max(each.seconds for each in runs)
        latencies = [value for each in runs for value in each.latency_s]
        return LoadResult(codes["OK"] * self.num_texts / seconds, latencies, codes)


_OPTIONS = (
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),  # calls go to all servers of a target
    ("grpc.use_local_subchannel_pool", 1),  # each channel has separate connections
    ("grpc.enable_retries", 0),  # refused calls are counted, not sent again
)


def _with_pauses(rpc: Any, mean_s: float) -> Any:
    async def call(body: bytes, **options: Any) -> bytes:
        try:
            reply: bytes = await rpc(body, **options)
            return reply
        finally:
            await asyncio.sleep(random.random() * 2 * mean_s)

    return call if mean_s else rpc


@dataclass(frozen=True, kw_only=True)
class HttpLoad:
    """POST requests to send on connections that are kept. Replies are received, not parsed."""

    url: str
    bodies: Sequence[bytes]
    """JSON bodies, sent one after the other."""
    num_items: int
    """Texts or documents in each body."""
    num_in_flight: int
    """Connections; each sends its next request when it has the reply."""
    seconds: float

    async def run(self) -> LoadResult:
        """Send the requests; replies that arrive in time count.

        Raises:
            ValueError: if a request is refused.
        """
        parts, end, num_items = urlsplit(self.url), time.perf_counter() + self.seconds, 0
        head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        requests = [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in self.bodies]
        source = cycle(requests)

        async def caller() -> None:
            nonlocal num_items
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            while time.perf_counter() < end:
                writer.write(next(source))
                reply = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"\r\ncontent-length: (\d+)\r\n", reply, re.IGNORECASE)
                assert length
                data = await reader.readexactly(int(length[1]))
                if not reply.startswith(b"HTTP/1.1 200"):
                    raise ValueError(f"the server refuses: {data[:300].decode()}")
                if time.perf_counter() <= end:
                    num_items += self.num_items
            writer.close()

        await asyncio.gather(*(caller() for _ in range(self.num_in_flight)))
        return LoadResult(num_items / self.seconds)


class LoadClient(Worker):
    """Process that loads a server."""

    def __init__(self) -> None:
        super().__init__(_send_loads)

    def run(self, load: EmbedLoad | HttpLoad) -> LoadResult:
        """Run a load, and return its result. `send` and `receive` do it in two steps."""
        self.send(load)
        found: LoadResult = self.receive()
        return found


def _send_loads(connection: Connection) -> None:
    while True:
        connection.send(asyncio.run(connection.recv().run()))
