"""Operation `regress`: a number for each text or pair of texts."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._convert import Call, Split
from bertline._inputs import read_texts_or_pairs
from bertline.operations.base import STRING, Operation, check_finite, request_of, short, text_or_pair
from bertline.results import Usage
from bertline.v1 import encoder_pb2 as pb


def regress(
    inputs: Iterable[str | tuple[str, str]],
    *,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[float]]:
    """Return a number for each text or pair of texts.

    Args:
        inputs: list of texts, pairs of texts, or both.

    Returns:
        One number per input, on the scale of the training data.
    """
    request = request_of(pb.RegressRequest, model, version, truncate)
    return Call("Regress", Split(read_texts_or_pairs(inputs), "inputs", request), read_values, timeout, usage)


def read_values(reply: pb.RegressReply) -> list[float]:
    """Return one result per input."""
    check_finite(reply.values)
    return list(reply.values)


OPERATION = Operation(
    call=regress,
    task="regression",
    optional={"text_pair": STRING},
    input=text_or_pair,
    result=lambda result: {"value": short(result)},
    types={"value": float},
)
