"""Measure the latency of short queries while the server loads models, against a server that loads none.

python -m benchmarks.loading models --texts sentences.txt
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import grpc
import tyro

from benchmarks.embed_load import EmbedLoad, LoadClient, percentile
from benchmarks.server_process import ServerProcess, embedding_model, running_server
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from tasks.manifest import MANIFEST_FILE
from training.bounds import POSITIVE, check_numbers
from training.command import command, parse


@dataclass(frozen=True, kw_only=True)
class LoadingSettings:
    """Command line."""

    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    texts: Path
    """File with one text per line."""
    seconds: Annotated[float, POSITIVE] = 10.0
    """Seconds of each measurement."""

    def __post_init__(self) -> None:
        check_numbers(self)


def copy_model(source: Path, models: Path, version: int) -> None:
    """Add a version of a model by a rename, as export does."""
    name = source.parent.name
    staging = models.parent / f"{name}-{version}"
    shutil.copytree(source, staging)
    fields = json.loads((staging / MANIFEST_FILE).read_text(encoding="utf-8")) | {"version": str(version)}
    (staging / MANIFEST_FILE).write_text(json.dumps(fields), encoding="utf-8")
    (models / name).mkdir(exist_ok=True)
    staging.rename(models / name / str(version))


def load_until(end: float, server: ServerProcess, add: Callable[[int], None], name: str) -> list[float]:
    """Load versions one after the other. Return the seconds that each took."""
    taken: list[float] = []
    with grpc.insecure_channel(server.target) as channel:
        stub = EncoderStub(channel)
        while time.perf_counter() < end:
            version = len(taken) + 2
            add(version)
            started = time.perf_counter()
            server.process.send_signal(signal.SIGHUP)
            while not _is_ready(stub, pb.ModelRef(name=name, version=str(version))):
                time.sleep(0.02)
            taken.append(time.perf_counter() - started)
    return taken


def _is_ready(stub: EncoderStub, model: pb.ModelRef) -> bool:
    known = stub.ListModels(pb.ListModelsRequest()).models
    return any(item.model == model and item.state == pb.MODEL_STATE_READY for item in known)


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(LoadingSettings, "benchmarks.loading", __doc__)
    source = embedding_model(settings.models)
    client = LoadClient()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        models.mkdir()
        copy_model(source, models, 1)
        with running_server(models, ["--poll-s", "0", "--max-versions", "2"]) as server:
            load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds, max_words=8)
            client.run(replace(load, seconds=1.0))
            quiet = client.run(load).latencies
            client.start(load)
            end = time.perf_counter() + settings.seconds
            taken = load_until(end, server, lambda number: copy_model(source, models, number), source.parent.name)
            loading = client.result().latencies
    client.close()
    print(f"{len(taken)} models loaded, {min(taken):.2f} to {max(taken):.2f} s each")
    for label, latencies in (("nothing is loaded", quiet), ("while loading", loading)):
        median, p99, longest = (1e3 * percentile(latencies, fraction) for fraction in (0.5, 0.99, 1.0))
        print(f"{label:20} {len(latencies):6,} calls: median {median:.1f}, p99 {p99:.1f}, longest {longest:.1f} ms")


if __name__ == "__main__":
    main()
