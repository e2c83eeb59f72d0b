"""Operation `rerank`: documents in the order in which they fit a query."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any

from bertline._batches import batches
from bertline._convert import MAX_REQUEST_BYTES, Call, Request, num_bytes
from bertline._inputs import as_list, as_tuple, by_path, check_texts, read_count, read_flag, read_items, read_option
from bertline._models import can_rerank
from bertline.operations.base import LIST, STRING, Operation, check_finite, request_of, scored, sum_of_scores
from bertline.results import RankedDocument, Ranking, Usage
from bertline.v1 import encoder_pb2 as pb


def rerank(
    inputs: Iterable[tuple[str, Sequence[str]]],
    *,
    top_n: int | None = None,
    label: str = "",
    raw_scores: bool = False,
    best_effort: bool = False,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[Ranking]]:
    """Return the documents of each query in the order in which they fit it.

    Args:
        inputs: list of (query, documents). Documents may have any length. `batch_size` is the maximum number of
            documents in one request.
        top_n: maximum number of documents per query; None for all.
        label: label of a classification model that means that a document fits; may be empty for the labels 0 and 1,
            and LABEL_0 and LABEL_1.
        raw_scores: return scores before the model's activation function.
        best_effort: return the best order that the server finds before the timeout: documents are scored in about their
            order until it nears, and the others follow in their order, with a score of minus infinity. All documents
            of a query are then in one request, whatever `batch_size` is, as two could not share the time.
        model: name of the model; empty for the default one for regression or vectors of tokens.

    Returns:
        One ranking per query; `.documents` has position and score of each document, best first.
    """
    count = read_count("top_n", top_n)
    request = request_of(
        pb.RerankRequest,
        model,
        version,
        truncate,
        top_n=count,
        label=read_option("label", label),
        raw_scores=read_flag("raw_scores", raw_scores),
        best_effort=read_flag("best_effort", best_effort),
    )
    requests = _split(_read_inputs(inputs), request, whole=best_effort)
    read = partial(read_rankings, best_effort=best_effort)
    return Call("Rerank", requests, read, timeout, usage, merge=partial(merge_rankings, top_n=count))


def _read_inputs(values: Iterable[tuple[str, Sequence[str]]]) -> list[pb.RerankInput]:
    """Return queries with documents as messages."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        query, documents = as_tuple(index, item, (2,))
        rows.append((query, as_list(index, "documents", documents)))
    check_texts([{"query": query} | by_path("documents", documents) for query, documents in rows])
    return [pb.RerankInput(query=query, documents=documents) for query, documents in rows]


def _split(
    items: Sequence[pb.RerankInput], request: Callable[..., Any], *, whole: bool
) -> Callable[[int], Iterator[Request]]:
    """Return a function that splits queries with documents into requests lazily, by their number of documents.

    Args:
        items: inputs. Documents of the same one may be in several requests.
        request: returns the message.
        whole: True for a request of its own for each input.
    """

    def size(place: tuple[int, int]) -> int:
        item, document = items[place[0]], place[1]
        query = 0 if document else num_bytes(item.query)
        return query + sum(map(num_bytes, item.documents[document : document + 1]))

    def requests(batch_size: int) -> Iterator[Request]:
        if whole:
            for index, item in enumerate(items):
                yield Request(request(inputs=[item]), index, 1)
            return
        places = ((index, number) for index, item in enumerate(items) for number in range(len(item.documents) or 1))
        longest = max((num_bytes(item.query) for item in items), default=0)  # which goes on in a further request
        max_bytes = max(0, MAX_REQUEST_BYTES - longest)
        for part in batches(places, size, max_items=batch_size, max_bytes=max_bytes):
            inputs = []
            for index, group in groupby(part, key=itemgetter(0)):
                numbers = [number for _, number in group]
                documents = items[index].documents[numbers[0] : numbers[-1] + 1]
                inputs.append(pb.RerankInput(query=items[index].query, documents=documents))
            first, first_document = part[0]
            yield Request(request(inputs=inputs), first, len(inputs), first_document, len(part))

    return requests


def read_rankings(reply: pb.RerankReply, *, best_effort: bool = False) -> list[Ranking]:
    """Return one result per input."""
    check_finite(sum_of_scores(result.documents) for result in reply.results)

    def ranking(result: pb.RerankResult) -> Ranking:
        num_scored = result.num_scored if best_effort else len(result.documents)
        documents = enumerate(result.documents)
        scores = ((item.document, item.score if place < num_scored else -math.inf) for place, item in documents)
        return Ranking(tuple(starmap(RankedDocument, scores)), num_scored if best_effort else None)

    return [ranking(result) for result in reply.results]


def merge_rankings(before: Ranking, further: Ranking, first: int, *, top_n: int) -> Ranking:
    """Return one ranking of documents that two requests hold.

    Args:
        before: ranking of the documents before `first`.
        further: ranking of the documents from there on, counted from 0.
        first: position of the first of them.
        top_n: maximum number of documents; 0 for all.
    """
    moved = (RankedDocument(item.document + first, item.score) for item in further.documents)
    ranked = sorted([*before.documents, *moved], key=lambda item: (-item.score, item.document))
    return Ranking(tuple(ranked[: top_n or None]))


OPERATION = Operation(
    call=rerank,
    task="rerank",
    needed={"query": STRING, "documents": LIST},
    input=lambda columns: (columns["query"], columns["documents"]),
    result=lambda result: {"ranking": scored(result.documents)},
    types={"ranking": [{"document": int, "score": float}]},
    can_do=can_rerank,
)
