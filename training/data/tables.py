"""Rows of tables: TSV, CSV, JSONL (also compressed with gzip or xz), Parquet, and data sets of the Hugging Face hub."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.data.examples import RowError
from training.data.sources import class_names, is_hub, read_hub, with_class_names
from training.text.documents import MAX_DOCUMENT_BYTES, check_file, parse_json, read_lines, suffix_of

Row = tuple[str, dict[str, Any]]
"""Location of a row, for messages, and its values by column."""

HUB = "hub"
WITH_LISTS = (".jsonl", ".parquet", HUB)
"""Kinds of tables whose cells can be lists."""
TABLES = (".tsv", ".csv", *WITH_LISTS)
"""Kinds of tables."""
MAX_ROW_CHARS = 2**20
"""Longest first line of a .json file that is parsed to find out if it holds JSON lines."""

_QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A cell in quotes; quotes inside are doubled."""


def kind_of(path: Path) -> str:
    """Return the kind of a file: its suffix, `.jsonl` for JSON lines in a .json file, HUB for a data set of the hub."""
    if is_hub(path):
        return HUB
    kind = suffix_of(path)
    return ".jsonl" if kind == ".json" and _has_json_lines(path) else kind


def _has_json_lines(path: Path) -> bool:
    """Return whether the first line is an object; one with `data` is SQuAD's."""
    try:
        first = next((line for line in read_lines(path) if line.strip()), "")
        value = parse_json(first, "") if len(first) < MAX_ROW_CHARS else None
    except ValueError:
        return False
    return isinstance(value, dict) and "data" not in value


def raise_error(error: RowError) -> None:
    """Raise the error of the first row that cannot be used."""
    raise error


def read_rows(path: Path, *, header: bool = True, on_error: Callable[[RowError], None] = raise_error) -> Iterator[Row]:
    """Yield the rows of a table.

    Args:
        header: True if the first line of a TSV or CSV names the columns; otherwise they are called 0, 1, 2 and so on.
        on_error: called with the error of each row that cannot be read.

    Raises:
        ValueError: naming the file, and the line or column that is wrong.
    """
    kind = kind_of(path)
    if kind == HUB:
        yield from read_hub(path)
    elif kind == ".parquet":
        yield from _parquet_rows(path)
    elif kind == ".jsonl":
        yield from _json_rows(path, on_error)
    elif kind in (".tsv", ".csv"):
        is_plain = kind == ".tsv" and not _has_quoted_cells(path)
        cells = _plain_cells(path) if is_plain else _csv_cells(path, "\t" if kind == ".tsv" else ",")
        yield from _named_rows(path, cells, on_error, header=header)
    else:
        check_file(path)
        if kind != ".json":
            raise ValueError(f"unknown format: `{path}`; name it .tsv, .csv, .jsonl (compressed: .gz, .xz) or .parquet")
        next(read_lines(path), None)  # raises if the file is not text
        raise ValueError(f"`{path}` does not hold JSON lines, an object a line (convert a list with: jq -c '.[]')")


def _json_rows(path: Path, on_error: Callable[[RowError], None]) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        location = f"`{path}`, line {number}"
        try:
            value = parse_json(line, location)
        except ValueError as error:
            on_error(RowError(location, "broken JSON", message=str(error)))
            continue
        if isinstance(value, dict):
            yield location, value
        else:
            on_error(RowError(location, "expected a JSON object"))


def _named_rows(
    path: Path, cells: Iterator[tuple[int, list[str]]], on_error: Callable[[RowError], None], *, header: bool
) -> Iterator[Row]:
    first = next(cells, None)
    if first is None:
        raise ValueError(f"`{path}` is empty; its first line must name the columns")
    names = first[1] if header else [str(number) for number in range(len(first[1]))]
    if header and len(names) == 1 and suffix_of(path) == ".csv":
        for mark, word, hint in (
            (";", "semicolons", "save the file with commas"),
            ("\t", "tabs", "name the file .tsv"),
        ):
            if mark in names[0]:
                raise ValueError(f"`{path}`, line 1: the columns are separated by {word}, not by commas; {hint}")
    named = [name for name in names if name.strip()]  # spreadsheets add columns without a name
    _check_names(named, f"`{path}`, line 1")
    for number, row in cells if header else itertools.chain([first], cells):
        location = f"`{path}`, line {number}"
        if len(row) == len(names):
            yield location, dict(zip(names, row, strict=True))
        else:
            expected = f"the {'header' if header else 'first line'} has {len(names)}"
            on_error(RowError(location, f"{len(row)} columns, {expected}"))


def _check_names(names: list[str], location: str) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{location}: two columns are called `{twice}`")


def _plain_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line between tabs, with its number."""
    return ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)


def _csv_cells(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the number of their first line; a quoted cell can hold several lines."""
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    lines = (line + "\n" for line in read_lines(path))
    reader, first_line = csv.reader(lines, delimiter=delimiter, strict=True), 1
    try:
        for row in reader:
            if row:
                yield first_line, row
            first_line = reader.line_num + 1
    except csv.Error as error:
        text = "".join(itertools.islice(read_lines(path), first_line - 1, reader.line_num))
        hint = "; write quotes inside cells twice, not with a backslash" if '\\"' in text else ""
        raise ValueError(f"`{path}`, line {first_line}: broken CSV ({error}){hint}") from error


def _has_quoted_cells(path: Path) -> bool:
    """Return whether a TSV quotes cells as CSV does (pandas, Excel), so that its quotes are no part of texts.

    It does if all cells with quotes are quoted, and some need it: they hold doubled quotes, tabs or line ends. Those of
    a column that is quoted everywhere need no reason.
    """
    if not any('"' in line for line in read_lines(path)):
        return False
    rows = [cells for _, cells in _plain_cells(path)]
    with_quotes = [cell for cells in rows for cell in cells if '"' in cell]
    widths = {len(cells) for cells in rows}
    if all(map(_QUOTED.fullmatch, with_quotes)) and len(widths) == 1:
        columns = zip(*rows, strict=True)
        return any('""' in cell[1:-1] for cell in with_quotes) or any(
            all(map(_QUOTED.fullmatch, column)) for column in columns
        )
    return len(widths) > 1 and _joins_lines(path)


def _joins_lines(path: Path) -> bool:
    """Return whether quoted cells with tabs or line ends explain lines with other numbers of cells.

    A quote that only begins a text would also join lines, up to the next quote; then the cell holds whole rows.
    """
    try:
        rows = [cells for _, cells in _csv_cells(path, "\t")]
    except ValueError:
        return False
    width = len(rows[0])
    parts = (part for cells in rows for cell in cells if "\n" in cell for part in cell.split("\n"))
    return all(len(cells) == width for cells in rows) and all(part.count("\t") < width - 1 for part in parts)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    check_file(path)
    number = 0
    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_names(file.schema_arrow.names, f"`{path}`")
        names = _parquet_classes(file.schema_arrow.metadata)
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                location = f"`{path}`, row {number}"
                yield location, with_class_names(location, row, names)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"cannot read `{path}`: {error}") from error


def _parquet_classes(metadata: Mapping[bytes, bytes] | None) -> dict[str, Sequence[str]]:
    """Return the names of classes by column, as the library `datasets` writes them into Parquet."""
    try:
        return class_names(json.loads((metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
