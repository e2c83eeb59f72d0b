"""Operation `choose`: the best of several choices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bertline._convert import Call, Split, join_lists
from bertline._inputs import as_list, as_tuple, by_path, check_texts, read_items
from bertline.operations.base import LIST, STRING, Operation, check_finite, request_of, short
from bertline.results import Choice
from bertline.v1 import encoder_pb2 as pb


def choose_call(
    inputs: Iterable[tuple[Any, ...]], model: str, version: str, truncate: bool | None
) -> Call[list[Choice]]:
    """See `Client.choose`."""
    request = request_of(pb.ChooseRequest, model, version, truncate)
    return Call("Choose", Split(_read_inputs(inputs), "inputs", request), read_choices, join_lists)


def _read_inputs(values: Iterable[tuple[Any, ...]]) -> list[pb.ChooseInput]:
    """Return (question, choices) or (context, question, choices) as messages."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        *texts, choices = as_tuple(index, item, (2, 3))
        rows.append((*[""] * (2 - len(texts)), *texts, as_list(index, "choices", choices)))
    check_texts([{"context": row[0], "question": row[1]} | by_path("choices", row[2]) for row in rows])
    return [pb.ChooseInput(context=context, question=question, choices=choices) for context, question, choices in rows]


def read_choices(reply: pb.ChooseReply) -> list[Choice]:
    """Return one result per input."""
    check_finite(sum(result.scores) for result in reply.results)
    return [Choice(result.choice, tuple(result.scores)) for result in reply.results]


def _columns(result: Choice) -> dict[str, Any]:
    scores = [short(score) for score in result.scores]
    return {"choice": result.choice, "score": scores[result.choice], "scores": scores}


OPERATION = Operation(
    method="choose",
    task="multiple-choice",
    call=choose_call,
    needed={"question": STRING, "choices": LIST},
    optional={"context": STRING},
    input=lambda columns: (columns.get("context", ""), columns["question"], columns["choices"]),
    of_text=lambda text: (text, ["Yes, it is.", "No, it is not."]),
    result=_columns,
    types={"choice": int, "score": float, "scores": [float]},
)
