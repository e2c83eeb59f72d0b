"""Operation `classify`: labels of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bertline._convert import Call, Split
from bertline._inputs import read_count, read_texts_or_pairs
from bertline.operations.base import STRING, Operation, check_finite, request_of, short, sum_of_scores, text_or_pair
from bertline.results import Classification, LabelScore, Usage
from bertline.v1 import encoder_pb2 as pb


def classify(
    inputs: Iterable[str | tuple[str, str]],
    *,
    top_k: int | None = None,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[Classification]]:
    """Return labels with probabilities for each text or pair of texts.

    Args:
        inputs: list of texts, pairs of texts, or both.
        top_k: maximum number of labels per input; None for all. Selected labels of a multi-label model come in
            addition.

    Returns:
        One classification per input. `.label` and `.score` are those of the most likely label; `.selected` has all
        labels that the input has, any number of them if the model is a multi-label one.
    """
    request = request_of(pb.ClassifyRequest, model, version, truncate, top_k=read_count("top_k", top_k))
    return Call("Classify", Split(read_texts_or_pairs(inputs), "inputs", request), read_classifications, timeout, usage)


def read_classifications(reply: pb.ClassifyReply) -> list[Classification]:
    """Return one result per input."""
    check_finite(sum_of_scores(result.labels) for result in reply.results)
    return [
        Classification(
            labels=tuple(LabelScore(item.label, item.score, item.selected) for item in result.labels),
            multi_label=reply.problem_type == pb.PROBLEM_TYPE_MULTI_LABEL,
        )
        for result in reply.results
    ]


def label_columns(result: Classification) -> dict[str, Any]:
    """Return the columns of a result."""
    labels = [{"label": item.label, "score": short(item.score)} for item in result.labels]
    selected = {"selected": list(result.selected)} if result.multi_label else {}
    return {"label": result.label, "score": short(result.score), **selected, "labels": labels}


LABEL_TYPES = {"label": str, "score": float, "selected": [str], "labels": [{"label": str, "score": float}]}

OPERATION = Operation(
    call=classify,
    task="classification",
    optional={"text_pair": STRING},
    input=text_or_pair,
    result=label_columns,
    types=LABEL_TYPES,
)
