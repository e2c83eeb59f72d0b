"""Examples out of the files that people have: SQuAD JSON; TSV, CSV and JSONL; text for masked LM.

Each may be packed with gzip or xz.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.spans import SpanExample
from tasks.tokenizer import Tokenizer, Tokens
from training.documents import read_documents, read_lines
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
        values = [row.get(columns.text), row.get(columns.text_pair), row.get(columns.label)]
        for name, value in ((columns.text, values[0]), (columns.label, values[2])):
            if value is None or value == "":
                raise ValueError(f"`{path}`, line {number}: no `{name}` (there: {', '.join(map(str, row))})")
        text, pair, label = (None if value is None else str(value) for value in values)
        examples.append(ClassificationExample(text=text or "", text_pair=pair, label=label))
    return examples


def read_spans(path: Path) -> list[SpanExample]:
    """Questions of a SQuAD v1.1 or v2.0 JSON file."""
    try:
        data = json.loads("\n".join(read_lines(path)))["data"]
        return [
            SpanExample(
                question=question["question"],
                context=paragraph["context"],
                answers=tuple(answer["text"] for answer in question["answers"]),
                answer_start=question["answers"][0]["answer_start"] if question["answers"] else -1,
                id=str(question["id"]),
            )
            for article in data
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise ValueError(f"broken JSON in `{path}`: {error}") from error
    except KeyError as error:
        raise ValueError(f"`{path}` is not in SQuAD's format: it lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"`{path}` is not in SQuAD's format: {error}") from error


def read_cloze(
    path: Path, tokenizer: Tokenizer, *, max_tokens: int = 96, max_examples: int = 1000
) -> list[ClozeExample]:
    """Passages of a text file with 15% of their tokens masked, the same at each reading.

    Only words and signs that are one token each are masked, so that the text with [MASK] in their places says it all.
    """
    examples: list[ClozeExample] = []
    for text in islice(_passages(path, tokenizer, max_tokens), max_examples):
        tokens = tokenizer.tokenize([text])[0]
        whole = [index for index in range(len(tokens)) if _is_whole(tokenizer, tokens, index)]
        rng = random_generator(0, 0, stream=7, index=len(examples))
        chosen = sorted(rng.permutation(whole)[: max(1, round(0.15 * len(tokens)))])
        if not chosen:
            continue
        hidden = tuple(tokenizer.token(int(tokens.ids[index])) for index in chosen)
        for index in reversed(chosen):
            start, end = tokens.offsets[index]
            text = f"{text[:start]}[MASK]{text[end:]}"
        examples.append(ClozeExample(text=text, tokens=hidden))
    return examples


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
        options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == ".tsv" else {}
        reader = csv.reader((line + "\n" for line in lines), strict=True, **options)
        header = next(reader, None)
        if header is None:
            raise ValueError(f"`{path}` is empty; its first line must name the columns")
        for row in reader:
            if len(row) != len(header):
                raise ValueError(f"`{path}`, line {reader.line_num}: {len(row)} columns, the header has {len(header)}")
            yield reader.line_num, dict(zip(header, row, strict=True))
    else:
        raise ValueError(f"cannot tell the format of `{path}`; name it .tsv, .csv or .jsonl (packed: .gz, .xz)")


def _json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"`{path}`, line {number}: broken JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"`{path}`, line {number}: expected a JSON object")
    return value
