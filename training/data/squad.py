"""Questions with answers in SQuAD's format (v1.1 and v2.0), as JSON or as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.spans import SpanExample
from training.data.cells import table_rows, text_cell
from training.data.columns import Columns
from training.data.examples import Examples
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
        rows = table_rows(path, columns)
        return Examples((location, _row_example(location, row, columns)) for location, row in rows)
    text = "\n".join(read_lines(path))
    if kind_of(path) in TABLES:
        raise ValueError(f"`{path}` cannot hold lists of answers; give SQuAD's JSON, JSON lines or Parquet")
    data = parse_json(text, f"`{path}`, which should be in SQuAD's format")
    try:
        examples = [
            _example(paragraph, question if labelled else {**question, "answers": [], "is_impossible": None})
            for article in _value(data, "data", list)
            for paragraph in _value(article, "paragraphs", list)
            for question in _value(paragraph, "qas", list)
        ]
    except ValueError as error:
        raise ValueError(f"`{path}` is not in SQuAD's format: {error}") from error
    return Examples((f"`{path}`, question `{example.id}`", example) for example in examples)


def read_questions(path: Path, columns: Columns) -> Examples:
    """Read questions without their answers, which the file need not have, from the same formats or any other table.

    Raises:
        ValueError: naming the file, the question and the wrong value.
    """
    if kind_of(path) == ".json":
        return read_spans(path, labelled=False)
    return Examples(
        (
            location,
            SpanExample(
                question=text_cell(location, row, columns.question),
                context=text_cell(location, row, columns.context),
                id=str(row.get("id", "")),
            ),
        )
        for location, row in table_rows(path, columns)
    )


def _row_example(location: str, row: Mapping[str, Any], columns: Columns) -> SpanExample:
    """Read a row whose answers are an object of two lists, `text` and `answer_start`."""
    try:
        found = _NO_ANSWERS if _is_impossible(row) else _value(row, "answers", dict)
        texts, starts = (_value(found, name, list) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise ValueError(f"{len(texts)} answers, but {len(starts)} `answer_start`")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        context, question = (_value(row, name, str) for name in (columns.context, columns.question))
        return _example({"context": context}, {**row, "question": question, "answers": answers})
    except ValueError as error:
        raise ValueError(f"{location} is not in SQuAD's format: {error}") from error


def _example(paragraph: Any, question: Any) -> SpanExample:
    try:
        answers = _answers(question)
        return SpanExample(
            question=_value(question, "question", str),
            context=_value(paragraph, "context", str),
            answers=tuple(answer["text"] for answer in answers),
            answer_start=_value(answers[0], "answer_start", int) if answers else -1,
            id=str(_value(question, "id", object)),
        )
    except ValueError as error:
        raise ValueError(f"{error}, in question `{str(question)[:60]}...`") from error


_NO_ANSWERS: dict[str, list[Any]] = {"text": [], "answer_start": []}


def _answers(question: Any) -> list[Any]:
    """Return the answers; none if the question is impossible. Blank answers at -1 also mean none."""
    if _is_impossible(question):
        return []
    answers = _value(question, "answers", list)
    answers = [answer for answer in answers if _value(answer, "text", str).strip() or answer.get("answer_start") != -1]
    if not answers and question.get("is_impossible") is not None:
        raise ValueError("`is_impossible` is false, but there is no answer")
    return answers


def _is_impossible(question: Any) -> bool:
    value = question.get("is_impossible") if isinstance(question, Mapping) else None
    if value not in (None, True, False):
        raise ValueError(f"`is_impossible` must be true or false: `{str(value)[:60]}`")
    return bool(value)


_KINDS = {list: "a list", dict: "an object", str: "a string", int: "a whole number"}


def _value(record: Any, key: str, kind: type) -> Any:
    if not isinstance(record, dict):
        raise ValueError(f"expected an object with `{key}`: `{str(record)[:60]}`")
    if key not in record:
        raise ValueError(f"it lacks `{key}`")
    if not isinstance(record[key], kind):
        raise ValueError(f"`{key}` must be {_KINDS[kind]}: `{str(record[key])[:60]}`")
    return record[key]
