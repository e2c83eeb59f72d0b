"""Questions with answers in SQuAD's format (v1.1 and v2.0), as JSON or as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.spans import SpanExample
from training.data.cells import read_table, text_cell
from training.data.columns import Columns
from training.data.examples import BadRows, Examples, RowError
from training.data.tables import TABLES, WITH_LISTS, kind_of
from training.text.documents import parse_json, read_lines


def read_spans(path: Path, columns: Columns | None = None, *, labelled: bool = True) -> Examples:
    """Read questions from SQuAD's JSON, or from a table with SQuAD's columns as on the Hugging Face hub.

    Args:
        labelled: False to leave out the answers of SQuAD's JSON, which then need not be there.

    Raises:
        ValueError: naming the file, the question and the wrong value.
    """
    columns = columns or Columns()
    if kind_of(path) in WITH_LISTS:

        def example_of(location: str, row: dict[str, Any]) -> SpanExample:
            return _example(location, row.get(columns.context), {**row, "question": row.get(columns.question)})

        return read_table(path, columns, example_of, (columns.context, columns.question, "answers", "is_impossible"))
    text = "\n".join(read_lines(path))
    if kind_of(path) in TABLES:
        raise ValueError(f"`{path}` cannot hold lists of answers; give SQuAD's JSON, JSON lines or Parquet")
    data = parse_json(text, f"`{path}`, which should be in SQuAD's format")
    try:
        paragraphs = [paragraph for article in data["data"] for paragraph in article["paragraphs"]]
        questions = [(paragraph["context"], {**item}) for paragraph in paragraphs for item in paragraph["qas"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"`{path}` is not in SQuAD's format: {_reason(error)}") from error
    changes: dict[str, Any] = {} if labelled else {"answers": [], "is_impossible": None}
    examples, bad = Examples(), BadRows()
    for number, (context, question) in enumerate(questions, start=1):
        try:
            example = _example(f"`{path}`, question {number}", context, question | changes)
            examples.add(f"`{path}`, question `{example.id}`", example)
        except RowError as error:
            bad.add(error)
    if bad:
        raise ValueError(str(bad))
    return examples


def read_questions(path: Path, columns: Columns) -> Examples:
    """Read questions without their answers, which the file need not have, from the same formats or any other table.

    Raises:
        ValueError: naming the file, the question and the wrong value.
    """
    if kind_of(path) == ".json":
        return read_spans(path, labelled=False)

    def example_of(location: str, row: dict[str, Any]) -> SpanExample:
        question, context = (text_cell(location, row, name) for name in (columns.question, columns.context))
        return SpanExample(question=question, context=context, id=str(row.get("id", "")))

    return read_table(path, columns, example_of)


def _example(location: str, context: Any, question: Mapping[str, Any]) -> SpanExample:
    """Read a question, whose answers are objects or, in tables, an object of lists. Blank ones at -1 mean none.

    The first answer that is at its `answer_start` comes first, as training learns that one.
    """
    try:
        is_impossible = question.get("is_impossible")
        if is_impossible not in (None, True, False):
            raise ValueError(f"`is_impossible` must be true or false: `{is_impossible}`")
        found = [] if is_impossible else question.get("answers") or []
        if isinstance(found, Mapping):
            pairs = zip(found["text"], found["answer_start"], strict=True)
            found = [{"text": text, "answer_start": start} for text, start in pairs]
        answers = [
            (answer["text"], answer["answer_start"])
            for answer in found
            if answer["text"].strip() or answer["answer_start"] != -1
        ]
        if not answers and is_impossible is not None and not is_impossible:
            raise ValueError("`is_impossible` is false, but there is no answer")
        for name, kind, value in (
            ("question", str, question["question"]),
            ("context", str, context),
            *(("answer_start", int, start) for _, start in answers),
        ):
            if not isinstance(value, kind):
                raise ValueError(f"`{name}` must have type {kind.__name__}: `{value}`")
        answers.sort(key=lambda answer: not is_at(context, *answer))
        return SpanExample(
            question=question["question"],
            context=context,
            answers=tuple(text for text, _ in answers),
            answer_start=answers[0][1] if answers else -1,
            id=str(question["id"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = _reason(error)
        message = f"{location} is not in SQuAD's format: {reason}, in question `{str(question)[:60]}...`"
        raise RowError(location, reason, message=message) from error


def is_at(context: str, answer: str, start: int) -> bool:
    """Return whether an answer is at its answer_start."""
    return bool(answer.strip()) and start >= 0 and context.startswith(answer, start)


def counted_in(context: str, answer: str, start: int) -> str:
    """Return the unit in which an answer is at its answer_start, if that is not characters; "" if there is none."""
    if start < 1:
        return ""
    utf_16, utf_8 = (context.encode(name, "replace") for name in ("utf-16-le", "utf-8"))
    offsets = {
        "UTF-16 code units": len(utf_16[: 2 * start].decode("utf-16-le", "ignore")),
        "bytes": len(utf_8[:start].decode("utf-8", "ignore")),
        "characters from 1": start - 1,
    }
    return next((unit for unit, offset in offsets.items() if is_at(context, answer, offset)), "")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks `{error.args[0]}`"
    is_other_type = isinstance(error, TypeError | AttributeError)
    return "a list, an object or a text is where SQuAD has another of them" if is_other_type else str(error)
