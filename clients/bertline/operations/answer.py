"""Operation `answer`: spans of contexts that answer a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bertline._convert import Call, Split
from bertline._inputs import as_list, as_tuple, by_path, check_texts, read_count, read_items
from bertline.operations.base import (
    SPAN,
    STRING,
    STRINGS,
    Operation,
    check_finite,
    request_of,
    scored,
    short,
    sum_of_scores,
)
from bertline.results import Answer, Span, Usage
from bertline.v1 import encoder_pb2 as pb


def answer(
    inputs: Iterable[tuple[str, str | Sequence[str]]],
    *,
    top_k: int = 1,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[Answer]]:
    """Return the spans of contexts that answer a question.

    Args:
        inputs: list of (question, context) or (question, contexts). Contexts may have any length.
        top_k: maximum number of spans per input.

    Returns:
        One answer per input; `.text` is the best one, empty for "no answer".
    """
    request = request_of(pb.AnswerRequest, model, version, truncate, top_k=read_count("top_k", top_k))
    return Call("Answer", Split(_read_inputs(inputs), "inputs", request), read_answers, timeout, usage)


def _read_inputs(values: Iterable[tuple[str, str | Sequence[str]]]) -> list[pb.AnswerInput]:
    """Return questions with one or several contexts as messages."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        question, context = as_tuple(index, item, (2,))
        contexts = (
            {"context": context}
            if isinstance(context, str)
            else by_path("contexts", as_list(index, "contexts", context))
        )
        rows.append({"question": question} | contexts)
    check_texts(rows)
    return [pb.AnswerInput(question=question, contexts=texts) for question, *texts in map(dict.values, rows)]


def read_answers(reply: pb.AnswerReply) -> list[Answer]:
    """Return one result per input."""
    check_finite(sum_of_scores(result.spans) + result.no_answer_score for result in reply.results)
    return [
        Answer(
            spans=tuple(Span(span.start, span.end, span.text, span.score, span.context) for span in result.spans),
            has_answer=result.has_answer,
            no_answer_score=result.no_answer_score,
        )
        for result in reply.results
    ]


def _columns(result: Answer) -> dict[str, Any]:
    return {
        "answer": result.text,
        "score": short(result.score),
        "has_answer": result.has_answer,
        "no_answer_score": short(result.no_answer_score),
        "spans": scored(result.spans),
    }


OPERATION = Operation(
    call=answer,
    task="spans",
    needed={"question": STRING, "context": STRINGS},
    input=lambda columns: (columns["question"], columns["context"]),
    of_text=lambda text: ("What is this about?", text),
    result=_columns,
    types={
        "answer": str,
        "score": float,
        "has_answer": bool,
        "no_answer_score": float,
        "spans": [{**SPAN, "score": float, "context": int}],
    },
)
