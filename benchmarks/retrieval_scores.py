"""Claim: which collections served models search better than BM25, and what that costs.

    python -m benchmarks.retrieval_scores beir/scifact --names embed rerank --models models
    python -m benchmarks.retrieval_scores beir/scifact --names embed --target 127.0.0.1:50051
    python -m benchmarks.retrieval_scores --mteb SciFact NFCorpus --names embed --models models

Each method searches all documents through the server: BM25; vectors of texts as float32, int8 and bits, both sides in
the format, by cosine (float32 by dot product where the model says so); sparse vectors; vectors of tokens (MaxSim); each
fused with BM25 by ranks; and the first of BM25 and of the fusions, reranked. Titles stand before texts. Writes a table
as `build/retrieval-scores.md` and `.json`, with

    corpus, s       seconds to make the index: the vectors of all documents, or the words
    ms a query      when all queries are asked together, with their vectors and the comparison with all documents
    cores           CPU seconds of server and client in a second of these; only of the client without --metrics-url
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.request import urlopen

import numpy as np
import tyro
from scipy.sparse import csr_array

from benchmarks.harness import running_server
from benchmarks.report import Table, run_parts
from bertline import Client, Model
from bertline.operations import OPERATIONS
from recipes.retrieval import Collection, Ranked, WordIndex, fused, ranking_scores, read_collection, read_mteb
from recipes.stage import one_line_errors
from tasks.bundle.machine import describe_machine, summarize_machine
from training.command_line.bounds import COUNT, check_numbers
from training.command_line.command import command, parse
from training.command_line.progress_bar import ProgressBar

BATCH_SIZE = 16
"""Texts in a request: few, so that long texts on a busy machine do not exceed the server's limits."""
DEPTH = 1000
"""Documents of a ranking."""
CHUNK = 1024
"""Documents whose vectors are in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings:
    """Command line."""

    data: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv, also compressed (.gz, .xz)."""
    names: tuple[str, ...]
    """Served models that make vectors or rerank."""
    mteb: tuple[str, ...] = ()
    """Retrieval tasks of MTEB to download instead of `data`."""
    models: Path | None = None
    """Folder of models to serve for this."""
    target: str = ""
    """Address of a running server instead, `host:port`; its token is in BERTLINE_TOKEN."""
    metrics_url: str = ""
    """Metrics of that server, which tell its CPU seconds."""
    split: str = "test"
    """Judgements of `data` to use."""
    num_reranked: Annotated[int, COUNT] = 30
    """Documents of each query to rerank."""
    out: Path = Path("build/retrieval-scores")
    """Path of the report, without `.json` and `.md`."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if (self.data is None) != bool(self.mteb):
            raise ValueError("give a folder of data, or tasks with --mteb")
        if (self.models is None) != bool(self.target):
            raise ValueError("give a folder of --models to serve, or the --target of a running server")


@dataclass(kw_only=True)
class Search:
    """Rankings by a method, and what they cost."""

    name: str
    rankings: Sequence[Ranked] = ()
    """One for each query."""
    corpus_s: float = 0.0
    queries_s: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of server and client."""

    def row(self, collection: Collection) -> dict[str, Any]:
        """Return the row of the report."""
        ids, judged = list(collection.documents), collection.grades
        found = [
            ranking_scores([ids[place] for place in ranking], judged[query])
            for query, ranking in zip(collection.queries, self.rankings, strict=True)
        ]
        return {
            "method": self.name,
            **{name: float(np.mean([scores[name] for scores in found])) for name in found[0]},
            "corpus, s": self.corpus_s,
            "ms a query": 1e3 * self.queries_s / len(found),
            "cores": self.cpu_s / (self.corpus_s + self.queries_s),
        }


class Best:
    """The `DEPTH` best documents of each query until now; equal ones in the order of the corpus.

    Args:
        left_out: a document of each query that it does not find, by position; -1 for none.
    """

    def __init__(self, left_out: Sequence[int]) -> None:
        self._left_out = np.array(left_out)
        self._scores = np.empty((len(left_out), 0), np.float32)
        self._places, self._first = np.empty(self._scores.shape, np.int64), 0

    def add(self, scores: np.ndarray) -> None:
        """Add the next documents of the corpus, by scores [queries, documents]; -inf for one that is not found."""
        places = np.broadcast_to(np.arange(self._first, self._first + scores.shape[1]), scores.shape)
        scores = np.where(places == self._left_out[:, None], np.float32(-np.inf), scores)
        joined = np.hstack([self._scores, scores]), np.hstack([self._places, places])
        order = np.argsort(-joined[0], axis=1, kind="stable")[:, :DEPTH]
        self._scores, self._places = (np.take_along_axis(values, order, axis=1) for values in joined)
        self._first += scores.shape[1]

    def rankings(self) -> list[Ranked]:
        """Return the positions of the documents of each query, best first."""
        rows = zip(self._places, np.isfinite(self._scores), strict=True)
        return [places[is_found].tolist() for places, is_found in rows]


@dataclass(frozen=True)
class Searcher:
    """All methods on one collection."""

    client: Client
    collection: Collection
    metrics_url: str

    @property
    def queries(self) -> list[str]:
        """Texts of the queries."""
        return list(self.collection.queries.values())

    @property
    def documents(self) -> list[str]:
        """Texts of the documents."""
        return list(self.collection.documents.values())

    @cached_property
    def left_out(self) -> list[int]:
        """Position of each query among the documents; -1 if it is none."""
        places = {key: place for place, key in enumerate(self.collection.documents)}
        return [places[key] if key in self.collection.copies else -1 for key in self.collection.queries]

    @contextmanager
    def timed(self, search: Search, step: Literal["corpus_s", "queries_s"]) -> Iterator[None]:
        """Add the seconds and CPU seconds of a part of a step to a search."""
        cpu_s, started = self._cpu_s(), time.perf_counter()
        yield
        setattr(search, step, getattr(search, step) + time.perf_counter() - started)
        search.cpu_s += self._cpu_s() - cpu_s

    def _cpu_s(self) -> float:
        if not self.metrics_url:
            return time.process_time()
        try:
            with urlopen(self.metrics_url, timeout=60) as reply:
                found = re.search(rb"^process_cpu_seconds_total (\S+)", reply.read(), re.MULTILINE)
        except (OSError, ValueError) as error:
            raise ValueError(f"no metrics at `{self.metrics_url}` ({error})") from error
        if not found:
            raise ValueError(f"`{self.metrics_url}` has no process_cpu_seconds_total; give the metrics of the server")
        return time.process_time() + float(found[1])

    def by_words(self) -> Search:
        """Search by BM25."""
        search, rankings = Search(name="BM25"), []
        with self.timed(search, "corpus_s"):
            index = WordIndex(self.documents)
        with self.timed(search, "queries_s"):
            for query, left_out in zip(self.queries, self.left_out, strict=True):
                best = Best([left_out])
                best.add(_found_only(index.scores(query)[None]))
                rankings += best.rankings()
        search.rankings = rankings
        return search

    def by_model(self, model: Model) -> Iterator[Search]:
        """Search by each kind of vectors that a model makes."""
        if OPERATIONS["embed_sparse"].fits(model, is_named=True):
            embed: Any = self._method(self.client.embed_sparse, model)
            yield self._by_vectors(f"{model.name}, sparse", embed, _sparse_matrix, _common_words)
        elif OPERATIONS["embed_tokens"].fits(model, is_named=True):
            embed = self._method(self.client.embed_tokens, model)
            yield self._by_vectors(f"{model.name}, tokens", embed, list, max_sim)
        elif OPERATIONS["embed"].fits(model, is_named=True):
            by_dot = model.manifest["settings"].get("similarity_fn_name") == "dot"
            scales = np.array(model.int8_scales(), np.float32) if model.manifest.get("small_vectors") else None
            for kind in ("float32", "int8", "binary") if scales is not None else ("float32", "binary"):
                normalize = None if by_dot and kind == "float32" else True
                embed = self._method(partial(self.client.embed, format=kind, normalize=normalize), model)
                numbers = partial(_numbers, kind=kind, dim=model.dim, scales=scales)
                yield self._by_vectors(f"{model.name}, {kind}", embed, numbers, lambda queries, part: queries @ part.T)

    def _method(self, call: Any, model: Model) -> Any:
        """Return a method of the client for a version of a model."""
        return partial(call, model=model.name, version=model.version, truncate=True)

    def _by_vectors(
        self, name: str, embed: Any, read: Callable[[Any], Any], compare: Callable[[Any, Any], np.ndarray]
    ) -> Search:
        """Search by vectors, a chunk of documents at a time.

        Args:
            embed: the client's method for texts.
            read: converts its result to vectors.
            compare: returns the scores of vectors of queries and documents, [queries, documents].
        """
        search, documents, best = Search(name=name), self.documents, Best(self.left_out)
        with self.timed(search, "queries_s"):
            queries = read(embed(self.queries, input_type="query"))
        with ProgressBar(name, unit="document", total=len(documents), lasting=False) as bar:
            for first in range(0, len(documents), CHUNK):
                texts = documents[first : first + CHUNK]
                with self.timed(search, "corpus_s"):
                    vectors = read(embed(texts, input_type="document"))
                with self.timed(search, "queries_s"):
                    best.add(compare(queries, vectors))
                bar.update(len(texts))
        search.rankings = best.rankings()
        return search

    def fuse(self, first: Search, second: Search) -> Search:
        """Fuse two rankings of each query."""
        rankings = [fused(both)[:DEPTH] for both in zip(first.rankings, second.rankings, strict=True)]
        costs = {name: getattr(first, name) + getattr(second, name) for name in ("corpus_s", "queries_s", "cpu_s")}
        return Search(name=f"{first.name} + {second.name}", rankings=rankings, **costs)

    def rerank(self, model: Model, search: Search, count: int) -> Search:
        """Rank the first documents of each query anew."""
        documents, firsts = self.documents, [ranking[:count] for ranking in search.rankings]
        inputs = [
            (query, [documents[place] for place in first])
            for query, first in zip(self.queries, firsts, strict=True)
            if first
        ]
        found = replace(search, name=f"{search.name}: first {count} by {model.name}")
        step, orders = max(1, CHUNK // count), []
        with ProgressBar(found.name, unit="query", total=len(inputs), lasting=False) as bar:
            for part in (inputs[start : start + step] for start in range(0, len(inputs), step)):
                with self.timed(found, "queries_s"):
                    orders += [ranking.order for ranking in self._method(self.client.rerank, model)(part)]
                bar.update(len(part))
        next_order = iter(orders)
        found.rankings = [
            [*(first[place] for place in next(next_order)), *ranking[count:]] if first else []
            for first, ranking in zip(firsts, search.rankings, strict=True)
        ]
        return found


def _found_only(scores: np.ndarray) -> np.ndarray:
    """Return scores with -inf in place of 0: the document has no word of the query."""
    return np.where(scores > 0, scores, np.float32(-np.inf))


def _sparse_matrix(vectors: Sequence[Any]) -> csr_array:
    ends = np.cumsum([0, *(len(vector.indices) for vector in vectors)])
    indices, values = (np.concatenate([getattr(vector, name) for vector in vectors]) for name in ("indices", "values"))
    return csr_array((values, indices.astype(np.int64), ends), shape=(len(vectors), vectors[0].dim))


def _common_words(queries: csr_array, documents: csr_array) -> np.ndarray:
    return _found_only((queries @ documents.T).toarray())


def _numbers(vectors: np.ndarray, *, kind: str, dim: int, scales: np.ndarray | None) -> np.ndarray:
    """Return served vectors as float32; bits as -1 and 1, whose dot products order as Hamming distances do."""
    if kind == "binary":
        return 2 * np.unpackbits(vectors, axis=1, count=dim).astype(np.float32) - 1
    return vectors if scales is None or kind == "float32" else vectors * scales


def max_sim(queries: Sequence[Any], documents: Sequence[Any]) -> np.ndarray:
    """Return the sum over a query's vectors of the largest dot product with a document's, [queries, documents].

    Source: Khattab and Zaharia 2020 (ColBERT), section 3.3.
    """
    vectors = np.concatenate([document.vectors for document in documents])
    starts = np.cumsum([0, *(len(document.vectors) for document in documents[:-1])])
    return np.stack([np.maximum.reduceat(vectors @ query.vectors.T, starts, axis=0).sum(axis=1) for query in queries])


def choose_models(client: Client, names: Sequence[str]) -> list[Model]:
    """Return the named models of a server.

    Raises:
        ValueError: for one that neither makes vectors nor reranks.
    """
    models = [client.model(name) for name in names]
    usable = ("embed", "embed_sparse", "embed_tokens", "rerank")
    for model in models:
        if not any(OPERATIONS[name].fits(model, is_named=True) for name in usable):
            raise ValueError(f"`{model.name}` of task `{model.task}` makes no vectors and does not rerank")
    return models


def measure(searcher: Searcher, models: Sequence[Model], num_reranked: int) -> Iterator[Table]:
    """Yield a table of all methods as soon as it has a row; the others follow while it is written."""
    collection = searcher.collection
    rows: list[dict[str, Any]] = []

    def note(search: Search) -> Search:
        rows.append(search.row(collection))
        return search

    words = note(searcher.by_words())
    title = f"{len(collection.documents):,} documents, {len(collection.queries):,} queries"
    yield Table(title, rows, " ".join(collection.notes))
    searches = [[note(search) for search in searcher.by_model(model)] for model in models]
    joined = [[note(searcher.fuse(words, search)) for search in found] for found in searches]
    for model in models:
        if OPERATIONS["rerank"].fits(model, is_named=True):
            for search in (words, *(found[0] for found in joined if found)):
                note(searcher.rerank(model, search, num_reranked))


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    settings = parse(RetrievalSettings, "benchmarks.retrieval_scores", __doc__)
    given = [read_collection(settings.data, settings.split)] if settings.data else []
    running = running_server(settings.models, ["--log-level=error"]) if settings.models else nullcontext()
    with running as server:
        target, metrics_url = (server.target, server.metrics) if server else (settings.target, settings.metrics_url)
        with Client(
            target, timeout=600, batch_size=BATCH_SIZE, token=os.environ.get("BERTLINE_TOKEN") or None
        ) as client:
            models = choose_models(client, settings.names)

            def tables(collections: Iterable[Collection]) -> Iterator[Table]:
                with one_line_errors():
                    for collection in collections:
                        yield from measure(Searcher(client, collection, metrics_url), models, settings.num_reranked)

            parts: dict[Any, Any] = {collection.name: partial(tables, [collection]) for collection in given}
            parts |= {name: lambda name=name: tables(read_mteb(name)) for name in settings.mteb}
            machine = {"machine": summarize_machine(describe_machine()), "server": settings.target or "this machine"}
            run_parts(parts, machine, settings.out)


if __name__ == "__main__":
    main()
