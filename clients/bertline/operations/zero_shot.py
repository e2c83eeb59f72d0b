"""Operation `zero_shot`: which of the labels of a request fit a text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bertline._convert import Call, Split
from bertline._inputs import read_count, read_flag, read_items, read_option, read_texts
from bertline._models import can_zero_shot
from bertline.operations.base import Operation, request_of
from bertline.operations.classify import LABEL_TYPES, label_columns, read_classifications
from bertline.results import Classification, Usage
from bertline.v1 import encoder_pb2 as pb

MAX_PAIRS = 1024
"""Maximum number of pairs of text and label in one request."""


def zero_shot(
    texts: Iterable[str],
    labels: Iterable[str],
    *,
    template: str = "",
    multi_label: bool = False,
    top_k: int | None = None,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[Classification]]:
    """Return which of the given labels fit each text, by a model for natural language inference.

    Args:
        texts: list of texts. A single string raises TypeError.
        labels: labels to choose from, each once; at least two, or one with `multi_label`.
        template: sentence with `{}`, which stands for the label; empty for `This example is {}.`
        multi_label: let a text have any number of labels: each is judged on its own.
        top_k: maximum number of labels per text; None for all. With `multi_label`, selected ones come in addition.
        model: name of the model; empty for the default one with a label `entailment`.

    Returns:
        One classification per text, as `classify` returns them.
    """
    names = [read_option("labels", label) for label in read_items(labels, "labels")]
    request = request_of(
        pb.ZeroShotRequest,
        model,
        version,
        truncate,
        labels=names,
        template=read_option("template", template),
        multi_label=read_flag("multi_label", multi_label),
        top_k=read_count("top_k", top_k),
    )
    max_texts, label_bytes = max(1, MAX_PAIRS // (len(names) or 1)), request().ByteSize()
    requests = Split(read_texts(texts), "texts", request, max_texts, label_bytes)
    return Call("ZeroShot", requests, partial(read_zero_shot, multi_label=bool(multi_label)), timeout, usage)


def read_zero_shot(reply: pb.ZeroShotReply, *, multi_label: bool) -> list[Classification]:
    """Return one result per text."""
    kind = pb.PROBLEM_TYPE_MULTI_LABEL if multi_label else pb.PROBLEM_TYPE_SINGLE_LABEL
    return read_classifications(pb.ClassifyReply(results=reply.results, problem_type=kind))


OPERATION = Operation(
    call=zero_shot,
    task="zero-shot",
    result=label_columns,
    types=LABEL_TYPES,
    can_do=lambda model, is_named: can_zero_shot(model),
)
