"""Operation `regress`: a number for each text or pair of texts."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._convert import Call, Split, join_lists
from bertline._inputs import read_texts_or_pairs
from bertline.operations.base import STRING, Operation, check_finite, request_of, short, text_or_pair
from bertline.v1 import encoder_pb2 as pb


def regress_call(
    inputs: Iterable[str | tuple[str, str]], model: str, version: str, truncate: bool | None
) -> Call[list[float]]:
    """See `Client.regress`."""
    request = request_of(pb.RegressRequest, model, version, truncate)
    return Call("Regress", Split(read_texts_or_pairs(inputs), "inputs", request), read_values, join_lists)


def read_values(reply: pb.RegressReply) -> list[float]:
    """Return one result per input."""
    check_finite(reply.values)
    return list(reply.values)


OPERATION = Operation(
    method="regress",
    task="regression",
    call=regress_call,
    optional={"text_pair": STRING},
    input=text_or_pair,
    result=lambda result: {"value": short(result)},
    types={"value": float},
)
