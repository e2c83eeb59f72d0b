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
        examples = Examples()
        for location, row in table_rows(path, columns):
            context, question = row.get(columns.context), {**row, "question": row.get(columns.question)}
            examples.add(location, _example(location, context, question))
        return examples
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
    found = [_example(f"`{path}`", context, question | changes) for context, question in questions]
    return Examples((f"`{path}`, question `{example.id}`", example) for example in found)


def read_questions(path: Path, columns: Columns) -> Examples:
    """Read questions without their answers, which the file need not have, from the same formats or any other table.

    Raises:
        ValueError: naming the file, the question and the wrong value.
    """
    if kind_of(path) == ".json":
        return read_spans(path, labelled=False)
    examples = Examples()
    for location, row in table_rows(path, columns):
        question, context = (text_cell(location, row, name) for name in (columns.question, columns.context))
        examples.add(location, SpanExample(question=question, context=context, id=str(row.get("id", ""))))
    return examples


def _example(location: str, context: Any, question: Mapping[str, Any]) -> SpanExample:
    """Read a question, whose answers are objects or, in tables, an object of lists. Blank ones at -1 mean none."""
    try:
        is_impossible = question.get("is_impossible")
        if is_impossible not in (None, True, False):
            raise ValueError(f"`is_impossible` must be true or false: `{is_impossible}`")
        found = [] if is_impossible else question["answers"]
        if isinstance(found, Mapping):
            pairs = zip(found["text"], found["answer_start"], strict=True)
            found = [{"text": text, "answer_start": start} for text, start in pairs]
        answers = [answer for answer in found if answer["text"].strip() or answer["answer_start"] != -1]
        if not answers and is_impossible is not None and not is_impossible:
            raise ValueError("`is_impossible` is false, but there is no answer")
        values: dict[str, Any] = {
            "question": question["question"],
            "context": context,
            "answers": tuple(answer["text"] for answer in answers),
            "answer_start": answers[0]["answer_start"] if answers else -1,
            "id": str(question["id"]),
        }
        for name, kind in (("question", str), ("context", str), ("answer_start", int)):
            if not isinstance(values[name], kind):
                raise ValueError(f"`{name}` must have type {kind.__name__}: `{values[name]}`")
        return SpanExample(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{location} is not in SQuAD's format: {_reason(error)}, in question `{str(question)[:60]}...`"
        ) from error


def _reason(error: Exception) -> str:
    return f"it lacks `{error.args[0]}`" if isinstance(error, KeyError) else str(error)
