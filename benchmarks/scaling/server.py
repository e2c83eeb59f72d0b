"""Growth of the server's cost: models, texts of a request, connections, and where one Python process ends."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from benchmarks.embed_load import EmbedLoad, LoadClient
from benchmarks.engine import Engine
from benchmarks.nginx import running_nginx
from benchmarks.report import Table
from benchmarks.samples import tiny_model
from benchmarks.scaling.growth import table
from benchmarks.scaling.settings import ScalingSettings
from benchmarks.server_process import ServerProcess, running_server
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from serving.core.scheduler import BatchStats, Scheduler
from tasks.machine import available_cpus
from tasks.manifest import MANIFEST_FILE
from tasks.model_directory import read_model_directory, version_directories

REPEATS = 20
QUIET = ("--log-level=error",)
TICKS = os.sysconf("SC_CLK_TCK")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Begin of an HTTP/2 connection with an empty SETTINGS frame."""


def models(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: start, memory, list of models, and metrics page by number of models."""
    source, rows = _version(settings.models), []
    for count in settings.num_models:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "models"
            for number in range(count):
                _copy_as(source, target / f"m{number}" / "1")
            with (
                running_server(target, QUIET) as server,
                grpc.insecure_channel(server.target) as opened,
            ):
                stub = EncoderStub(opened)
                list_s = _median_s(lambda stub=stub: stub.ListModels(pb.ListModelsRequest()))  # type: ignore[misc]
                page, page_s = _page(server.metrics)
                idle_s = _cpu_s_while(server, lambda: time.sleep(settings.seconds)) / settings.seconds
                rows.append(
                    {
                        "models": count,
                        "memory, MB": server.resident_mb,
                        "ready, s": server.ready_s,
                        "list, ms": 1e3 * list_s,
                        "metrics page, ms": 1e3 * page_s,
                        "metrics page, kB": len(page) / 1e3,
                        "idle CPU, ms/s": 1e3 * idle_s,
                    }
                )
    note = f"Model: {source.parent.name}, {_size_mb(source):.0f} MB."
    yield table("Models in one server", rows, ("memory, MB", "ready, s", "list, ms", "metrics page, ms"), note)


def texts(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: milliseconds of a request by number of texts, one request at a time."""
    rows = []
    with _server(settings.models) as server, grpc.insecure_channel(server.target, options=_UNLIMITED) as channel:
        stub, lines = EncoderStub(channel), _english(max(settings.num_texts))
        for count in settings.num_texts:
            request = pb.EmbedRequest(texts=lines[:count], truncate=True)
            repeats = max(3, min(REPEATS, 4096 // count))
            seconds = _median_s(lambda request=request: stub.Embed(request), repeats)  # type: ignore[misc]
            rows.append({"texts": count, "ms": 1e3 * seconds, "texts/s": count / seconds})
    yield table("Texts in a request", rows, ("ms",))


def connections(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: memory of the server and latency of a query by number of connections."""
    rows = []
    with _server(settings.models) as server, grpc.insecure_channel(server.target) as channel, ExitStack() as stack:
        stub, request, opened = EncoderStub(channel), pb.EmbedRequest(texts=["a short query"]), 1
        stub.Embed(request)
        host, _, port = server.target.rpartition(":")
        for count in sorted(settings.num_connections):  # connections stay open
            for _ in range(count - opened):
                other = stack.enter_context(socket.create_connection((host, int(port))))
                other.sendall(PREFACE)
            opened = count
            time.sleep(0.5)
            seconds = _median_s(lambda: stub.Embed(request))
            rows.append({"connections": count, "memory, MB": server.resident_mb, "query, ms": 1e3 * seconds})
    yield table("Connections, idle except one", rows, ("memory, MB", "query, ms"))


def process(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: CPU time that the server's process takes for a text, without the model, and cores it can feed."""
    with tempfile.TemporaryDirectory() as folder:
        tiny, lines = tiny_model(Path(folder)), Path(folder) / "texts.txt"
        engine = Engine(_version(settings.models))
        core_s = available_cpus() / engine.examples_per_s(_english(2000), settings.seconds)
        rows, client = [], LoadClient()
        with running_server(tiny, QUIET) as server:
            load = EmbedLoad(target=server.target, texts=lines, seconds=settings.seconds)
            for count in (1, 8, 32, 128, 512):
                each = replace(load, num_texts=count, num_in_flight=max(4, 64 // count))
                found: list[Any] = []
                cpu_s = _cpu_s_while(server, lambda each=each, found=found: found.append(client.run(each)))  # type: ignore[misc]
                text_s = cpu_s / found[0].num_texts
                rows.append(
                    {
                        "texts a request": count,
                        "CPU of the server, us a text": 1e6 * text_s,
                        "texts/s of one process": 1 / text_s,
                        "cores that it can feed": core_s / text_s,
                    }
                )
        client.close()
    note = (
        f"A tiny network: the process does nearly all. The last column is for {settings.models.name}, which takes "
        f"{1e6 * core_s:.0f} us of a core for a text."
    )
    yield table("Texts a request, and where one Python process ends", rows, ("CPU of the server, us a text",), note)


def processes(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: texts/s of one server on all cores, and of one server a core, at several addresses or one port."""
    rows, cores = [], available_cpus()
    set_ups = [("one server", 1, False), (f"{cores} servers, one core each, several addresses", cores, False)]
    if shutil.which("nginx"):
        set_ups += [("one server behind nginx", 1, True), (f"{cores} servers behind nginx, one port", cores, True)]
    with tempfile.TemporaryDirectory() as folder:
        tiny, lines = tiny_model(Path(folder)), Path(folder) / "texts.txt"
        for name, count, has_proxy in set_ups:
            with ExitStack() as stack:
                flags = (*QUIET, f"--workers={cores // count}")
                servers = [stack.enter_context(running_server(tiny, flags)) for _ in range(count)]
                target = "ipv4:" + ",".join(server.target for server in servers)
                if has_proxy:
                    target = stack.enter_context(running_nginx(Path(folder), [server.target for server in servers]))
                client = LoadClient()
                stack.callback(client.close)
                load = EmbedLoad(target=target, texts=lines, seconds=settings.seconds, num_in_flight=64)
                bulk = client.run(replace(load, num_texts=32, num_in_flight=8 * count)).texts_per_s
                rows.append({"set-up": name, "single texts/s": client.run(load).texts_per_s, "bulk texts/s": bulk})
    note = "Several addresses: the client takes turns. One port: nginx does, as in deploy/nginx.conf."
    yield Table("Processes behind one name, a tiny network", rows, note)


def workers(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: sequences/s of the scheduler with batches that sleep, by number of cores."""
    rows = []
    for count in settings.num_workers:
        rate = _scheduled_per_s(count, settings.seconds)
        rows.append({"cores": count, "sequences/s": rate, "of the ideal": rate / (count * 10 / _Sleeper.batch_s)})
    note = f"Batches of 10 sequences that take {1e3 * _Sleeper.batch_s:.0f} ms without a core; jobs of 32."
    yield table("Cores of one scheduler", rows, ("sequences/s",), note)


class _Sleeper:
    """Model whose batches take time, but no core."""

    max_batch_tokens, num_threads, run_tokens = 250, 1, 0.0
    batch_s = 0.006
    measured_batches = ((250, 0.006), (6, 0.0002))

    def new_run(self) -> _Sleeper:
        return self

    def abort(self) -> None:
        pass

    def compute(self, sequences: Sequence[Any], run: Any) -> Sequence[Any]:
        time.sleep(self.batch_s)
        return sequences


class _NoObserver:
    def batch_done(self, model: Any, batch: BatchStats) -> None:
        pass

    def sequences_dropped(self, model: Any, count: int) -> None:
        pass


def _scheduled_per_s(num_workers: int, seconds: float) -> float:
    scheduler, model, count = Scheduler(workers=num_workers, observer=_NoObserver()), _Sleeper(), [0]
    ends, room = time.perf_counter() + seconds, threading.Semaphore(8 * num_workers)

    def done(future: Future[Any]) -> None:
        count[0] += 32
        room.release()

    while time.perf_counter() < ends:
        room.acquire()
        scheduler.submit(model, [[range(25)]] * 32, lambda group, outputs: None).add_done_callback(done)
    found = count[0] / seconds
    scheduler.close()
    return found


_UNLIMITED = (("grpc.max_receive_message_length", -1),)


@contextmanager
def _server(folder: Path) -> Iterator[ServerProcess]:
    """Run a server of one model."""
    _version(folder)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / folder.resolve().name).symlink_to(folder.resolve())
        with running_server(Path(name), QUIET) as found:
            yield found


def _version(folder: Path) -> Path:
    """Return the highest version of an embedding model.

    Raises:
        ValueError: if the folder has none.
    """
    versions = version_directories(folder)
    if not versions or read_model_directory(versions[-1]).manifest.task != "embedding":
        raise ValueError(f"`{folder}` is not the folder of an embedding model with its versions; give one as --models")
    return versions[-1]


def _copy_as(source: Path, target: Path) -> None:
    """Copy a version of a model as the first version of another one."""
    shutil.copytree(source, target)
    manifest = target / MANIFEST_FILE
    fields = json.loads(manifest.read_text(encoding="utf-8")) | {"name": target.parent.name, "version": target.name}
    manifest.write_text(json.dumps(fields), encoding="utf-8")


def _english(count: int) -> list[str]:
    """Return texts of 5 to 40 words of this project's README, as long as sentences."""
    words = re.findall(r"[A-Za-z]+", (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"))
    source = random.Random(0)
    return [" ".join(source.choices(words, k=source.randint(5, 40))) for _ in range(count)]


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def _page(url: str) -> tuple[bytes, float]:
    def read() -> bytes:
        with urllib.request.urlopen(url) as reply:
            found: bytes = reply.read()
            return found

    return read(), _median_s(read)


def _median_s(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median seconds of a call, after one that does not count."""
    call()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _cpu_s_while(server: ServerProcess, work: Callable[[], object]) -> float:
    """Return the CPU seconds that the server takes during some work."""

    def cpu_s() -> float:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    before = cpu_s()
    work()
    return cpu_s() - before
