"""Measure the HTTP API beside the engine in this process, gRPC and, if it runs, infinity.

    python -m benchmarks.http_serving embeddings models --texts sentences.txt
    python -m benchmarks.http_serving embeddings models --texts sentences.txt --infinity http://127.0.0.1:7997
    python -m benchmarks.http_serving rerank models --texts sentences.txt
    python -m benchmarks.http_serving idle models --texts sentences.txt
    python -m benchmarks.http_serving beside models --texts sentences.txt

`idle` compares gRPC of a server with an idle HTTP port and of one without it. `beside` sends short gRPC queries beside
HTTP requests of 32 texts, eight in flight.

All run in turns, and share the cores of this machine with their clients. Nothing else should be busy. infinity is
started as `benchmarks.serving_peers` describes.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from benchmarks.embed_load import EmbedLoad, LoadClient, percentile, read_texts
from benchmarks.engine import CHUNK, Engine
from benchmarks.fairness import ask
from benchmarks.http_load import HttpClient, HttpLoad
from benchmarks.infinity import Infinity
from benchmarks.server_process import embedding_model, running_server
from demo.server import one_line_errors
from tasks.model_directory import model_versions, read_model_directory
from tasks.ranking import RankingExample, create_ranking
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse

NUM_DOCUMENTS, DOCUMENT_TOKENS = 100, 60
"""Documents of a query, and about the tokens of each."""


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Command line."""

    measurement: Annotated[Literal["embeddings", "rerank", "idle", "beside"], tyro.conf.Positional]
    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model: of task embedding, or of task regression for rerank."""
    texts: Path
    """File with one text per line, at least 256."""
    infinity: str | None = None
    """URL of a running infinity with the same checkpoint."""
    seconds: Annotated[float, POSITIVE] = 5.0
    """Seconds of each measurement."""
    rounds: Annotated[int, COUNT] = 5
    """Rounds of all measurements."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.infinity is not None and self.measurement != "embeddings":
            raise ValueError("--infinity is measured with `embeddings` only")


def embeddings(settings: HttpSettings) -> None:
    """Compare requests of 32 texts and of one with the engine."""
    texts, engine = read_texts(settings.texts, CHUNK), Engine(embedding_model(settings.models))
    infinity = Infinity(settings.infinity, texts) if settings.infinity else None
    http, grpc = HttpClient(), LoadClient()
    with running_server(settings.models, ["--http-port=0"]) as server:
        assert server.http
        load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds)
        bulk, single = replace(load, num_texts=32, num_in_flight=8), replace(load, num_in_flight=64)

        def over_http(load: EmbedLoad, encoding: str) -> Callable[[], float]:
            bodies = [_body(part, encoding) for part in _parts(texts, load.num_texts)]
            url = f"{server.http}/v1/embeddings"
            sent = HttpLoad(
                url=url,
                bodies=bodies,
                num_items=load.num_texts,
                num_in_flight=load.num_in_flight,
                seconds=load.seconds,
            )
            return lambda: http.items_per_s(sent)

        measures = {
            "engine": lambda: engine.examples_per_s(texts, settings.seconds),
            "gRPC, 32 texts, 8 in flight": lambda: grpc.run(bulk).texts_per_s,
            "HTTP, 32 texts, 8 in flight, base64": over_http(bulk, "base64"),
            "HTTP, 32 texts, 8 in flight, float": over_http(bulk, "float"),
            "gRPC, single texts, 64 in flight": lambda: grpc.run(single).texts_per_s,
            "HTTP, single texts, 64 in flight, base64": over_http(single, "base64"),
        }
        if infinity:
            measures["infinity, 32 texts, 8 in flight, base64"] = lambda: infinity.texts_per_s(bulk)
        report(measures, settings.rounds, "texts")
    http.close()
    grpc.close()


def _parts(texts: Sequence[str], size: int) -> list[list[str]]:
    """Return 64 requests' texts, in turn."""
    source = itertools.cycle(texts)
    return [list(itertools.islice(source, size)) for _ in range(64)]


def _body(texts: Sequence[str], encoding: str) -> bytes:
    return json.dumps({"input": texts, "encoding_format": encoding}).encode()


def rerank(settings: HttpSettings) -> None:
    """Compare queries with a hundred documents with the engine."""
    (versions,) = model_versions(settings.models).values()
    engine = Engine(versions[-1], create_ranking)
    tokenizer = read_model_directory(versions[-1]).load_task().tokenizer
    words = iter(itertools.cycle(" ".join(read_texts(settings.texts, CHUNK)).split()))

    def document() -> str:
        text = ""
        while len(tokenizer.tokenize([text], ids_only=True)[0]) < DOCUMENT_TOKENS:
            text = f"{text} {next(words)}".strip()
        return text

    documents = [tuple(document() for _ in range(NUM_DOCUMENTS)) for _ in range(8)]
    examples = [RankingExample("where do owls sleep by day?", items) for items in documents]
    http = HttpClient()
    with running_server(settings.models, ["--http-port=0"]) as server:
        bodies = [json.dumps({"query": item.query, "documents": item.documents}).encode() for item in examples]
        load = HttpLoad(
            url=f"{server.http}/v1/rerank",
            bodies=bodies,
            num_items=NUM_DOCUMENTS,
            num_in_flight=4,
            seconds=settings.seconds,
        )
        measures: dict[str, Callable[[], float]] = {
            "engine": lambda: NUM_DOCUMENTS * engine.examples_per_s(examples, settings.seconds, 1),
            "HTTP, 4 queries in flight": lambda: http.items_per_s(load),
            "HTTP, one query at a time": lambda: http.items_per_s(replace(load, num_in_flight=1)),
        }
        report(measures, settings.rounds, "pairs")
    http.close()


def idle(settings: HttpSettings) -> None:
    """Compare gRPC of servers with and without an HTTP port that nobody uses."""
    client = LoadClient()
    with (
        running_server(settings.models) as without,
        running_server(settings.models, ["--http-port=0"]) as with_port,
    ):
        for name, num_texts, num_in_flight in (("32 texts, 8 in flight", 32, 8), ("single texts, 64 in flight", 1, 64)):

            def over_grpc(target: str, num_texts: int = num_texts, num_in_flight: int = num_in_flight) -> float:
                load = EmbedLoad(
                    target=target,
                    texts=settings.texts,
                    seconds=settings.seconds,
                    num_texts=num_texts,
                    num_in_flight=num_in_flight,
                )
                return client.run(load).texts_per_s

            measures = {
                f"gRPC alone, {name}": partial(over_grpc, without.target),
                f"gRPC, HTTP idle, {name}": partial(over_grpc, with_port.target),
            }
            report(measures, settings.rounds, "texts")
    client.close()


def beside(settings: HttpSettings) -> None:
    """Print the latency of short gRPC queries on an idle server, and beside a bulk client over HTTP."""
    http = HttpClient()
    with running_server(settings.models, ["--http-port=0"]) as server:
        bodies = [_body(part, "base64") for part in _parts(read_texts(settings.texts, CHUNK), 32)]
        num_queries = int(10 * settings.seconds)
        load = HttpLoad(
            url=f"{server.http}/v1/embeddings",
            bodies=bodies,
            num_items=32,
            num_in_flight=8,
            seconds=2 * settings.seconds + 2,
        )
        for number in range(settings.rounds):
            idle_s = _answered(server.target, num_queries)
            http.send(load)
            time.sleep(1)
            busy_s = _answered(server.target, num_queries)
            rate = http.receive()
            ratio = percentile(busy_s, 0.99) / statistics.median(idle_s)
            print(
                f"round {number + 1}: idle median {1e3 * statistics.median(idle_s):.1f} ms; beside {rate:,.0f} texts/s "
                f"median {1e3 * statistics.median(busy_s):.1f} ms, p99 {1e3 * percentile(busy_s, 0.99):.1f} ms, "
                f"{ratio:.1f} times the idle median"
            )
    http.close()


def _answered(target: str, count: int) -> list[float]:
    """Return the latencies of short queries.

    Raises:
        ValueError: if one is not answered.
    """
    found = ask(target, count, 0.0)
    if set(found.codes) != {"OK"}:
        raise ValueError(f"queries were not answered: {dict(found.codes)}")
    return found.seconds


def report(measures: Mapping[str, Callable[[], Any]], rounds: int, unit: str) -> None:
    """Measure in turns, and print medians with the ratio to the first, of the same round."""
    first = next(iter(measures))
    found = [{name: measure() for name, measure in measures.items()} for _ in range(rounds)]
    for name in measures:
        ratios = [item[name] / item[first] for item in found]
        rate = statistics.median(item[name] for item in found)
        spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{name:42} {rate:8,.0f} {unit}/s  {statistics.median(ratios):.2f} of {first} {spread}")


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    settings = parse(HttpSettings, "benchmarks.http_serving", __doc__)
    measurements = {"embeddings": embeddings, "rerank": rerank, "idle": idle, "beside": beside}
    measurements[settings.measurement](settings)


if __name__ == "__main__":
    main()
