"""Measure how far one server goes: models, texts of a request, connections, one Python process, several processes.

    python -m benchmarks.scaling
    python -m benchmarks.scaling models connections --models models/embed

Prints the tables and writes them as `build/scaling.md` and `.json`. Leave the machine idle meanwhile.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import grpc
import tyro

from benchmarks.engine import engine_rate
from benchmarks.harness import EmbedLoad, LoadClient, ServerProcess, random_texts, running_server
from benchmarks.nginx import running_nginx
from benchmarks.report import Table, run_parts
from benchmarks.samples import tiny_model
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from tasks.bundle.machine import available_cpus, describe_machine, summarize_machine
from tasks.bundle.manifest import MANIFEST_FILE
from tasks.bundle.model_directory import read_model_directory, version_paths
from training.command_line.bounds import COUNT, POSITIVE, check_numbers
from training.command_line.command import command, parse

PartName = Literal["models", "texts", "connections", "process", "processes"]
Counts = tuple[Annotated[int, COUNT], ...]
QUIET = ("--log-level=error",)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Begin of an HTTP/2 connection with an empty SETTINGS frame."""


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """Measure how far one server goes."""

    parts: Annotated[tuple[PartName, ...], tyro.conf.Positional] = get_args(PartName)
    """Parts to run, in this order."""
    models: Path = Path("models/embed")
    """Folder of an embedding model, with its versions."""
    out: Path = Path("build/scaling")
    """Path of the report, without `.json` and `.md`."""
    seconds: Annotated[float, POSITIVE] = 3.0
    """Seconds of each load."""
    num_models: Counts = (1, 10, 100)
    """Models in one server."""
    num_texts: Counts = (1, 8, 64, 512, 4096, 8192)
    """Texts in a request."""
    num_connections: Counts = (1, 10, 100, 500, 2000)
    """Connections of a server, idle except one."""

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def version(self) -> Path:
        """Highest version of the embedding model."""
        versions = version_paths(self.models)
        if not versions or read_model_directory(versions[-1]).manifest.task != "embedding":
            raise ValueError(
                f"`{self.models}` is not the folder of an embedding model with its versions; give one as --models"
            )
        return versions[-1]


def models(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: memory, start and list of models by number of models."""
    source, rows = settings.version, []
    for count in settings.num_models:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                target = Path(folder, f"m{number}", "1")
                shutil.copytree(source, target)
                fields = json.loads((target / MANIFEST_FILE).read_bytes()) | {"name": f"m{number}", "version": "1"}
                (target / MANIFEST_FILE).write_text(json.dumps(fields), encoding="utf-8")
            with running_server(Path(folder), QUIET) as server, grpc.insecure_channel(server.target) as opened:
                seconds = _median_s(partial(EncoderStub(opened).ListModels, pb.ListModelsRequest()))
                row = {"models": count, "memory, MiB": server.resident_mb, "ready, s": server.ready_s}
                rows.append(row | {"list, ms": 1e3 * seconds})
    yield Table(f"Models in one server, {source.parent.name}", rows)


def texts(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: milliseconds of a request by number of texts, one request at a time."""
    rows, unlimited = [], (("grpc.max_receive_message_length", -1),)
    with _server(settings) as server, grpc.insecure_channel(server.target, options=unlimited) as channel:
        stub, lines = EncoderStub(channel), random_texts(max(settings.num_texts), 5, 40)
        for count in settings.num_texts:
            request = pb.EmbedRequest(texts=lines[:count], truncate=True)
            seconds = _median_s(partial(stub.Embed, request), max(3, min(20, 4096 // count)))
            rows.append({"texts": count, "ms": 1e3 * seconds, "texts/s": count / seconds})
    yield Table("Texts in a request", rows)


def connections(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: memory of the server and latency of a query by number of connections."""
    rows, opened = [], 1
    with _server(settings) as server, grpc.insecure_channel(server.target) as channel, ExitStack() as stack:
        query = partial(EncoderStub(channel).Embed, pb.EmbedRequest(texts=["a short query"]))
        query()
        host, _, port = server.target.rpartition(":")
        for count in sorted(settings.num_connections):  # connections stay open
            for _ in range(count - opened):
                other = stack.enter_context(socket.create_connection((host, int(port))))
                other.sendall(PREFACE)
            opened = count
            time.sleep(0.5)
            seconds = _median_s(query)
            rows.append({"connections": count, "memory, MiB": server.resident_mb, "query, ms": 1e3 * seconds})
    yield Table("Connections, idle except one", rows)


def process(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: CPU time that the server takes for a text, without the model, and cores that it can feed."""
    lines = random_texts(2000, 5, 40)
    core_s, rows = available_cpus() / engine_rate(settings.version, lines, settings.seconds), []
    with tempfile.TemporaryDirectory() as name, LoadClient() as client:
        texts = Path(name) / "texts.txt"
        texts.write_text("\n".join(lines), encoding="utf-8")
        for count in (1, 2):
            with _server(settings, f"--processes={count}", module="benchmarks.simulated") as server:
                load = EmbedLoad(target=server.target, texts=texts, seconds=settings.seconds, connections=8 * count)
                for num_texts in (1, 8, 32, 128, 512):
                    before_s = server.cpu_s
                    found = client.run(replace(load, num_texts=num_texts, num_in_flight=max(1, 8 // num_texts)))
                    text_s = (server.cpu_s - before_s) / (num_texts * found.codes["OK"])
                    row = {"processes": count, "texts a request": num_texts, "texts/s": found.texts_per_s}
                    row |= {"CPU, us a text": 1e6 * text_s, "texts/s of one core": 1 / text_s}
                    rows.append(row | {"cores that it can feed": core_s / text_s})
    note = (
        f"Client and server share {available_cpus()} cores. The last column: how many cores that compute "
        f"{settings.models.name} one core of the server keeps busy."
    )
    yield Table("A simulated accelerator: where one Python process ends", rows, note)


def processes(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: texts/s of one process on all cores, and of one process a core in several ways."""
    rows, cores = [], available_cpus()
    set_ups = [("one process", 1, 1, False), (f"--processes {cores}", 1, cores, False)]
    set_ups += [(f"{cores} servers, several addresses", cores, 1, False)]
    if shutil.which("nginx"):
        set_ups += [
            ("one process behind nginx", 1, 1, True),
            (f"--processes {cores} behind nginx", 1, cores, True),
            (f"{cores} servers behind nginx, one port", cores, 1, True),
        ]
    with tempfile.TemporaryDirectory() as folder:
        tiny, lines = tiny_model(Path(folder)), Path(folder) / "texts.txt"
        for name, num_servers, num_processes, has_proxy in set_ups:
            with ExitStack() as stack:
                flags = (*QUIET, f"--workers={cores // num_servers}", f"--processes={num_processes}")
                targets = [stack.enter_context(running_server(tiny, flags)).target for _ in range(num_servers)]
                target = "ipv4:" + ",".join(targets)
                if has_proxy:
                    target = stack.enter_context(running_nginx(Path(folder), targets)).grpc
                client = stack.enter_context(LoadClient())
                load = EmbedLoad(target=target, texts=lines, seconds=settings.seconds, connections=8, num_in_flight=8)
                bulk = client.run(replace(load, num_texts=32, num_in_flight=2)).texts_per_s
                rows.append({"set-up": name, "single texts/s": client.run(load).texts_per_s, "bulk texts/s": bulk})
    yield Table("Servers with one core a process, a tiny network", rows)


@contextmanager
def _server(settings: ScalingSettings, *flags: str, module: str = "serving") -> Iterator[ServerProcess]:
    """Run a server of one model."""
    folder = settings.version.parent.resolve()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / folder.name).symlink_to(folder)
        with running_server(Path(name), (*QUIET, *flags), module=module) as found:
            yield found


def _median_s(call: Callable[[], object], repeats: int = 20) -> float:
    """Return the median seconds of a call, after one that does not count."""
    call()
    return statistics.median(timeit.repeat(call, number=1, repeat=repeats))


PARTS: dict[PartName, Callable[[ScalingSettings], Iterator[Table]]]
PARTS = dict(zip(get_args(PartName), (models, texts, connections, process, processes), strict=True))


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(ScalingSettings, "benchmarks.scaling", __doc__)
    chosen: dict[Any, Any] = {name: partial(PARTS[name], settings) for name in settings.parts}
    run_parts(chosen, {"machine": summarize_machine(describe_machine())}, settings.out)


if __name__ == "__main__":
    main()
