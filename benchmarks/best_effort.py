"""Does a ranking with best effort come within its deadline, and how good is it by then?

    python -m benchmarks.best_effort collection --model rerank --models models

The first 300 documents of BM25 for each query are ranked within deadlines of 50 ms to a second, on an idle server and
beside bulk work: eight requests of 64 texts in flight, with priority bulk. The collection is a folder in BEIR's layout.
Writes two tables as `build/best-effort.md` and `.json`, with

    in time       fraction of the rankings that the client has before its deadline
    in tolerance  the same, at most 10 ms after it
    errors        calls without a ranking: 0 documents scored, BM25's order
    p50, p99      latency of the others
    scored        documents that were scored, mean of all rankings
    nDCG@10       of the ranking, whose unscored documents follow in BM25's order
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.harness import EmbedLoad, LoadClient, percentile, random_texts, running_server
from benchmarks.report import Table, run_parts
from bertline import BertlineError, Client
from recipes.retrieval import Collection, Ranked, WordIndex, ranking_scores, read_collection
from recipes.stage import one_line_errors
from tasks.bundle.machine import describe_machine
from training.command_line.bounds import COUNT, POSITIVE, check_numbers
from training.command_line.command import command, parse

TOLERANCE_S = 0.01
"""Time that a reply needs from the server to the client and into Python's objects, at most."""
SETTLE_S = 1.0
"""Seconds of bulk work before the first ranking."""


@dataclass(frozen=True, kw_only=True)
class BestEffortSettings:
    """Command line."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/test.tsv."""
    models: Path
    """Folder of models to serve: one that ranks, and one of task embedding, which does the bulk work."""
    model: str = "rerank"
    """Model that ranks."""
    candidates: Annotated[int, COUNT] = 300
    """Documents of each query."""
    queries: Annotated[int, COUNT] = 100
    """Queries: the first of the collection."""
    deadlines_s: tuple[Annotated[float, POSITIVE], ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    """Deadlines in seconds."""
    out: Path = Path("build/best-effort")
    """Path of the report, without `.json` and `.md`."""

    def __post_init__(self) -> None:
        check_numbers(self)


def candidates(collection: Collection, count: int, num_queries: int) -> dict[str, Ranked]:
    """Return the first documents of BM25 for each query, by position."""
    index = WordIndex(list(collection.documents.values()))
    queries = list(collection.queries.items())[:num_queries]
    return {key: np.argsort(-index.scores(text), kind="stable")[:count].tolist() for key, text in queries}


def measure(
    client: Client, collection: Collection, found: dict[str, Ranked], model: str, deadline_s: float
) -> dict[str, Any]:
    """Rank the candidates of each query within a deadline; return a row of the report."""
    ids, texts = list(collection.documents), list(collection.documents.values())
    seconds, num_scored, scores = list[float](), list[int](), list[float]()
    for query, places in found.items():
        order: Sequence[int] = range(len(places))
        documents = [texts[place] for place in places]
        started = time.perf_counter()
        try:
            (ranking,) = client.rerank(
                [(collection.queries[query], documents)],
                model=model,
                truncate=True,
                best_effort=True,
                timeout=deadline_s,
            )
            seconds.append(time.perf_counter() - started)
            order = ranking.order
            num_scored.append(ranking.num_scored or 0)
        except BertlineError:
            num_scored.append(0)
        scores.append(ranking_scores([ids[places[item]] for item in order], collection.grades[query])["nDCG@10"])
    return {
        "deadline, ms": round(1e3 * deadline_s),
        "in time": sum(each <= deadline_s for each in seconds) / len(found),
        "in tolerance": sum(each <= deadline_s + TOLERANCE_S for each in seconds) / len(found),
        "errors": len(found) - len(seconds),
        "p50, ms": 1e3 * percentile(seconds, 0.5),
        "p99, ms": 1e3 * percentile(seconds, 0.99),
        "scored": float(np.mean(num_scored)),
        "nDCG@10": float(np.mean(scores)),
    }


@contextmanager
def bulk_work(target: str, folder: Path, seconds: float) -> Iterator[None]:
    """Keep requests of bulk priority in flight."""
    path = folder / "bulk.txt"
    path.write_text("\n".join(random_texts(64, 120, 120)), encoding="utf-8")
    load = EmbedLoad(target=target, texts=path, seconds=seconds, num_texts=64, num_in_flight=8, priority="bulk")
    with LoadClient() as worker:
        worker.send(load)
        time.sleep(SETTLE_S)
        yield
        worker.receive()


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    settings = parse(BestEffortSettings, "benchmarks.best_effort", __doc__)
    collection = read_collection(settings.data, "test")
    found = candidates(collection, settings.candidates, settings.queries)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(settings.models) as server,
        Client(server.target) as client,
    ):

        def table(title: str) -> Table:
            rows = [measure(client, collection, found, settings.model, each) for each in settings.deadlines_s]
            return Table(title, rows)

        def idle() -> Iterator[Table]:
            measure(client, collection, dict(list(found.items())[:5]), settings.model, 10.0)  # latencies are learnt
            yield table(f"{len(found)} queries, {settings.candidates} documents each")

        def busy() -> Iterator[Table]:
            seconds = len(found) * sum(settings.deadlines_s) + 2 * SETTLE_S
            with bulk_work(server.target, Path(folder), seconds):
                yield table("The same beside bulk work")

        run_parts({"idle": idle, "beside bulk": busy}, describe_machine(), settings.out)


if __name__ == "__main__":
    main()
