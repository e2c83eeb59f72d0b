"""Operation `classify`: labels of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._convert import Call, Split, join_lists
from bertline._inputs import read_count, read_texts_or_pairs
from bertline.errors import ServerError
from bertline.operations.base import BenchRow, check_finite, request_of, sum_of_scores
from bertline.results import Classification, LabelScore
from bertline.v1 import encoder_pb2 as pb


def classify_call(
    inputs: Iterable[str | tuple[str, str]],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int | None = None,
) -> Call[list[Classification]]:
    """See `Client.classify`."""
    request = request_of(pb.ClassifyRequest, model, version, truncate, top_k=read_count("top_k", top_k))
    return Call("Classify", Split(read_texts_or_pairs(inputs), "inputs", request), read_classifications, join_lists)


def read_classifications(reply: pb.ClassifyReply) -> list[Classification]:
    """Return one result per input."""
    if not all(result.labels for result in reply.results):
        raise ServerError("the server sent a classification without labels")
    check_finite(sum_of_scores(result.labels) for result in reply.results)
    is_old = reply.problem_type == pb.PROBLEM_TYPE_UNSPECIFIED  # single-label models only, and no `selected`
    return [
        Classification(
            labels=tuple(
                LabelScore(item.label, item.score, item.selected or (is_old and not rank))
                for rank, item in enumerate(result.labels)
            ),
            multi_label=reply.problem_type == pb.PROBLEM_TYPE_MULTI_LABEL,
        )
        for result in reply.results
    ]


BENCH = BenchRow(task="classification", method="classify", call=classify_call)
