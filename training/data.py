"""Examples out of the files that people have: SQuAD JSON; TSV, CSV and JSONL; text for masked LM.

Each may be packed with gzip or xz.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.spans import SpanExample
from tasks.tokenizer import Tokenizer, Tokens
from training.documents import parse_json, read_documents, read_lines
from training.pretraining_examples import random_generator


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a table (TSV, CSV, JSONL) holds what."""

    text: str = "text"
    text_pair: str = "text_pair"
    """Left out where the table has no such column."""
    label: str = "label"


def read_examples(task: str, paths: Sequence[Path], *, columns: Columns, tokenizer: Tokenizer) -> list[Any]:
    """The examples of one task in some files.

    Raises:
        ValueError: naming file, line and key of what is missing or malformed, or files without examples.
    """
    examples: list[Any] = []
    for path in paths:
        if task == "classification":
            examples += read_classification(path, columns)
        elif task == "spans":
            examples += read_spans(path)
        elif task == "masked-lm":
            if {".tsv", ".csv", ".json"} & set(path.suffixes):
                raise ValueError(f"`{path}` is a table; the checkpoint is a masked-lm, whose data are running text")
            examples += read_cloze(path, tokenizer)
        else:
            raise ValueError(f"task `{task}` has no labelled data")
    if not examples:
        raise ValueError(f"no examples in {', '.join(f'`{path}`' for path in paths)}")
    return examples


def read_classification(path: Path, columns: Columns) -> list[ClassificationExample]:
    """Texts or pairs with labels out of .tsv (header, no quoting), .csv (header) or .jsonl."""
    examples = []
    for number, row in _rows(path):
        text, pair, label = (row.get(name) for name in (columns.text, columns.text_pair, columns.label))
        for name, value in ((columns.text, text), (columns.label, label)):
            if value is None or not str(value).strip():
                raise ValueError(f"`{path}`, line {number}: no `{name}` (there: {', '.join(map(str, row))})")
        for name, value in ((columns.text, text), (columns.text_pair, pair)):
            if not isinstance(value, str | None):
                raise ValueError(f"`{path}`, line {number}: `{name}` must be a string: `{value}`")
        if not isinstance(label, str | int | float):
            raise ValueError(f"`{path}`, line {number}: `{columns.label}` must be a string or a number: `{label}`")
        examples.append(ClassificationExample(text=str(text), text_pair=pair, label=str(label)))
    return examples


def read_spans(path: Path) -> list[SpanExample]:
    """Questions of a SQuAD v1.1 or v2.0 JSON file."""
    data = parse_json("\n".join(read_lines(path)), f"`{path}`, which should be in SQuAD's format")
    try:
        return [
            _span_example(paragraph, question)
            for article in _value(data, "data", list)
            for paragraph in _value(article, "paragraphs", list)
            for question in _value(paragraph, "qas", list)
        ]
    except ValueError as error:
        raise ValueError(f"`{path}` is not in SQuAD's format: {error}") from error


def _span_example(paragraph: Any, question: Any) -> SpanExample:
    try:
        answers = _value(question, "answers", list)
        return SpanExample(
            question=_value(question, "question", str),
            context=_value(paragraph, "context", str),
            answers=tuple(_value(answer, "text", str) for answer in answers),
            answer_start=_value(answers[0], "answer_start", int) if answers else -1,
            id=str(_value(question, "id", object)),
        )
    except ValueError as error:
        raise ValueError(f"{error}, in question `{str(question)[:60]}...`") from error


_KINDS = {list: "a list", str: "a string", int: "a whole number"}


def _value(record: Any, key: str, kind: type) -> Any:
    if not isinstance(record, dict):
        raise ValueError(f"expected an object with {key!r}, not `{str(record)[:60]}`")
    if key not in record:
        raise ValueError(f"it lacks {key!r}")
    if not isinstance(record[key], kind):
        raise ValueError(f"{key!r} must be {_KINDS[kind]}, not `{str(record[key])[:60]}`")
    return record[key]


def read_cloze(
    path: Path, tokenizer: Tokenizer, *, max_tokens: int = 96, max_examples: int = 1000
) -> list[ClozeExample]:
    """Passages of a text file as `cloze_examples`."""
    return list(islice(cloze_examples(_passages(path, tokenizer, max_tokens), tokenizer), max_examples))


def cloze_examples(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[ClozeExample]:
    """Texts with 15% of their tokens masked, the same at each reading; those that have none to mask are left out.

    Only words and signs that are one token each are masked, so that the text with [MASK] in their places says it all.
    """
    number = 0
    for text in texts:
        tokens = tokenizer.tokenize([text])[0]
        whole = [index for index in range(len(tokens)) if _is_whole(tokenizer, tokens, index)]
        rng = random_generator(0, 0, stream=7, index=number)
        chosen = sorted(rng.permutation(whole)[: max(1, round(0.15 * len(tokens)))])
        if not chosen:
            continue
        number += 1
        hidden = tuple(tokenizer.token(int(tokens.ids[index])) for index in chosen)
        for index in reversed(chosen):
            start, end = tokens.offsets[index]
            text = f"{text[:start]}[MASK]{text[end:]}"
        yield ClozeExample(text=text, tokens=hidden)


def _is_whole(tokenizer: Tokenizer, tokens: Tokens, index: int) -> bool:
    """Whether a token is a word or sign of its own, and known."""
    is_first = not tokenizer.token(int(tokens.ids[index])).startswith("##")
    is_last = index + 1 == len(tokens) or not tokenizer.token(int(tokens.ids[index + 1])).startswith("##")
    return is_first and is_last and int(tokens.ids[index]) != tokenizer.unk_id


def _passages(path: Path, tokenizer: Tokenizer, max_tokens: int) -> Iterator[str]:
    """Runs of whole sentences of one document, as long as fit."""
    for document in read_documents(path):
        passage: list[str] = []
        size = 0
        for sentence, tokens in zip(document, tokenizer.tokenize(document), strict=True):
            if passage and size + len(tokens) > max_tokens:
                yield " ".join(passage)
                passage, size = [], 0
            if len(tokens) <= max_tokens:
                passage.append(sentence)
                size += len(tokens)
        if passage:
            yield " ".join(passage)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a table with their line numbers."""
    kind = Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix
    lines = read_lines(path)
    if kind == ".jsonl":
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _json_object(line, path, number)
    elif kind in (".tsv", ".csv"):
        cells = _tsv_cells(lines) if kind == ".tsv" else _csv_cells(lines, path)
        _, header = next(cells, (0, None))
        if header is None:
            raise ValueError(f"`{path}` is empty; its first line must name the columns")
        if twice := next((name for name in header if header.count(name) > 1), None):
            raise ValueError(f"`{path}`, line 1: two columns are called `{twice}`")
        for number, row in cells:
            if len(row) != len(header):
                raise ValueError(f"`{path}`, line {number}: {len(row)} columns, the header has {len(header)}")
            yield number, dict(zip(header, row, strict=True))
    else:
        raise ValueError(f"cannot tell the format of `{path}`; name it .tsv, .csv or .jsonl (packed: .gz, .xz)")


def _tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in enumerate(lines, start=1) if line)


def _csv_cells(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise ValueError(f"`{path}`, line {reader.line_num}: broken CSV ({error})") from error


def _json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    value = parse_json(line, f"`{path}`, line {number}")
    if not isinstance(value, dict):
        raise ValueError(f"`{path}`, line {number}: expected a JSON object")
    return value
