"""Claim: 8 times the texts per second of infinity (engine torch), over gRPC and over HTTP, with the same checkpoint.

    python -m benchmarks.peers models --texts sentences.txt
    python -m benchmarks.peers models --texts sentences.txt --infinity http://127.0.0.1:7997

Requests of 32 texts, 8 in flight, and single texts, 64 in flight, measured alternately with the engine in this process.
Servers share the cores of this machine with their clients; nothing else should be busy. infinity is optional; it needs
a separate virtual environment and must run before this starts:

    pip install 'infinity-emb[torch,server]'
    infinity_emb v2 --model-id CHECKPOINT --engine torch --device cpu --port 7997
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request, urlopen

import numpy as np
import tyro

from benchmarks.engine import CHUNK, engine_rate
from benchmarks.harness import (
    EmbedLoad,
    HttpLoad,
    LoadClient,
    alternate,
    embedding_model,
    print_rates,
    read_texts,
    running_server,
)
from bertline import Client
from recipes.stage import one_line_errors
from training.command_line.bounds import COUNT, POSITIVE, check_numbers
from training.command_line.command import command, parse

NUM_COMPARED = 64
"""Texts whose vectors are compared."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Command line."""

    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    texts: Path
    """File with one text per line, at least 256."""
    infinity: str | None = None
    """URL of a running infinity with the same checkpoint."""
    seconds: Annotated[float, POSITIVE] = 5.0
    """Seconds of each measurement."""
    rounds: Annotated[int, COUNT] = 5
    """Rounds of all measurements."""
    flags: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Server flag; repeat for several: `--flags=--poll-s=0 --flags=--max-queue-s=2`."""

    def __post_init__(self) -> None:
        check_numbers(self)


def ask(url: str, body: bytes | None = None) -> Any:
    """Return the JSON reply of a server.

    Raises:
        ValueError: if it does not answer.
    """
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as reply:
            return json.loads(reply.read())
    except OSError as error:
        raise ValueError(f"no server at `{url}` ({error}); `--help` says how to start infinity") from error


def bodies(texts: Sequence[str], size: int, model: str, encoding: str = "base64") -> list[bytes]:
    """Return the bodies of 64 requests."""
    source = itertools.cycle(texts)
    parts = [list(itertools.islice(source, size)) for _ in range(64)]
    return [json.dumps({"model": model, "input": part, "encoding_format": encoding}).encode() for part in parts]


def mean_cosine(target: str, url: str, model: str, texts: Sequence[str]) -> float:
    """Return the mean cosine of the vectors of a Bertline server and of infinity."""
    reply = ask(f"{url}/embeddings", bodies(texts, len(texts), model, "float")[0])
    theirs = np.array([item["embedding"] for item in reply["data"]], np.float32)
    with Client(target) as client:
        ours = client.embed(texts, truncate=True)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(1) / norms).mean())


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    settings = parse(PeerSettings, "benchmarks.peers", __doc__)
    texts = read_texts(settings.texts, CHUNK)
    path = embedding_model(settings.models)
    with LoadClient() as client, running_server(settings.models, ["--http-port=0", *settings.flags]) as server:
        load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds)
        kinds = {
            "32 texts, 8 in flight": replace(load, num_texts=32, num_in_flight=8),
            "single texts, 64 in flight": replace(load, num_in_flight=64),
        }

        def over_http(url: str, load: EmbedLoad, model: str) -> HttpLoad:
            return HttpLoad(
                url=url,
                bodies=bodies(texts, load.num_texts, model),
                num_items=load.num_texts,
                num_in_flight=load.num_in_flight,
                seconds=load.seconds,
            )

        loads: dict[str, EmbedLoad | HttpLoad] = {}
        for name, each in kinds.items():
            loads[f"gRPC, {name}"] = each
            loads[f"HTTP, {name}"] = over_http(f"{server.http}/v1/embeddings", each, path.parent.name)
        if settings.infinity:
            url = settings.infinity.rstrip("/")
            model = ask(f"{url}/models")["data"][0]["id"]
            print(f"mean cosine to infinity: {mean_cosine(server.target, url, model, texts[:NUM_COMPARED]):.4f}")
            loads |= {f"infinity, {name}": over_http(f"{url}/embeddings", each, model) for name, each in kinds.items()}
        measures: dict[str, Callable[[], float]] = {"engine": partial(engine_rate, path, texts, settings.seconds)}
        for name, sent in loads.items():
            measures[name] = lambda sent=sent: client.run(sent).texts_per_s  # type: ignore[misc]
        print_rates(alternate(measures, settings.rounds), "texts")


if __name__ == "__main__":
    main()
