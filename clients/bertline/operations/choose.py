"""Operation `choose`: the best of several choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bertline._convert import Call, Split
from bertline._inputs import as_list, as_tuple, by_path, check_texts, read_items
from bertline.operations.base import LIST, STRING, Operation, check_finite, request_of, short
from bertline.results import Choice, Usage
from bertline.v1 import encoder_pb2 as pb


def choose(
    inputs: Iterable[tuple[str, Sequence[str]] | tuple[str, str, Sequence[str]]],
    *,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[Choice]]:
    """Return which of several choices fits best.

    Args:
        inputs: list of (question, choices) or (context, question, choices). Question and context may be empty.

    Returns:
        One result per input; `.choice` is the index of the most likely choice.
    """
    request = request_of(pb.ChooseRequest, model, version, truncate)
    return Call("Choose", Split(_read_inputs(inputs), "inputs", request), read_choices, timeout, usage)


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
    call=choose,
    task="multiple-choice",
    needed={"question": STRING, "choices": LIST},
    optional={"context": STRING},
    input=lambda columns: (columns.get("context", ""), columns["question"], columns["choices"]),
    of_text=lambda text: (text, ["Yes, it is.", "No, it is not."]),
    result=_columns,
    types={"choice": int, "score": float, "scores": [float]},
)
