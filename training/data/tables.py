"""Rows of tables: TSV, CSV, JSONL (also compressed with gzip or xz), Parquet, and data sets of the Hugging Face hub."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from training.data.sources import is_hub, read_hub
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


def read_rows(path: Path, *, header: bool = True) -> Iterator[Row]:
    """Yield the rows of a table.

    Args:
        header: True if the first line of a TSV or CSV names the columns; otherwise they are called 0, 1, 2 and so on.

    Raises:
        ValueError: naming the file, and the line or column that is wrong.
    """
    kind = kind_of(path)
    if kind == HUB:
        yield from read_hub(path)
    elif kind == ".parquet":
        yield from _parquet_rows(path)
    elif kind == ".jsonl":
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                location = f"`{path}`, line {number}"
                value = parse_json(line, location)
                if not isinstance(value, dict):
                    raise ValueError(f"{location}: expected a JSON object")
                yield location, value
    elif kind in (".tsv", ".csv"):
        lines = read_lines(path)
        rows = ((number, line.split("\t")) for number, line in enumerate(lines, start=1) if line)
        cells = rows if kind == ".tsv" else _csv_cells(lines, path)
        yield from _named_rows(path, cells, header=header)
    else:
        check_file(path)
        if kind != ".json":
            raise ValueError(f"unknown format: `{path}`; name it .tsv, .csv, .jsonl (compressed: .gz, .xz) or .parquet")
        next(read_lines(path), None)  # raises if the file is not text
        raise ValueError(f"`{path}` does not hold JSON lines, an object a line (convert a list with: jq -c '.[]')")


def _named_rows(path: Path, cells: Iterator[tuple[int, list[str]]], *, header: bool) -> Iterator[Row]:
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
        if len(row) != len(names):
            expected = f"the {'header' if header else 'first line'} has {len(names)}"
            raise ValueError(f"`{path}`, line {number}: {len(row)} columns, {expected}")
        yield f"`{path}`, line {number}", dict(zip(names, row, strict=True))


def _check_names(names: list[str], location: str) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{location}: two columns are called `{twice}`")


def _csv_cells(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the number of their first line; a quoted cell can hold several lines."""
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    reader, first_line = csv.reader((line + "\n" for line in lines), strict=True), 1
    try:
        for row in reader:
            if row:
                yield first_line, row
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"`{path}`, line {first_line}: broken CSV ({error})") from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    check_file(path)
    number = 0
    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_names(file.schema_arrow.names, f"`{path}`")
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"`{path}`, row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"cannot read `{path}`: {error}") from error
