"""Rows of tables: TSV, CSV, JSONL (packed with gzip or xz or not), Parquet, and data sets of the Hugging Face hub."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from training.documents import parse_json, read_lines
from training.hub import is_hub, read_hub

Row = tuple[str, dict[str, Any]]
"""Where a row stands, for messages, and its values by column."""

HUB = "hub"
WITH_LISTS = (".jsonl", ".parquet", HUB)
"""Kinds of tables whose cells may be lists."""


def kind_of(path: Path) -> str:
    """The suffix that says what is in a file, without that of its packing; HUB for a data set of the hub."""
    if is_hub(path):
        return HUB
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a table.

    Raises:
        ValueError: naming the file, and the line or column where that is to blame.
    """
    kind = kind_of(path)
    if kind == HUB:
        yield from read_hub(path)
    elif kind == ".parquet":
        yield from _parquet_rows(path)
    elif kind == ".jsonl":
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                place = f"`{path}`, line {number}"
                yield place, _json_object(line, place)
    elif kind in (".tsv", ".csv"):
        lines = read_lines(path)
        yield from _with_header(path, _tsv_cells(lines) if kind == ".tsv" else _csv_cells(lines, path))
    else:
        raise ValueError(
            f"cannot tell the format of `{path}`; name it .tsv, .csv, .jsonl (packed: .gz, .xz) or .parquet"
        )


def _with_header(path: Path, cells: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    _, header = next(cells, (0, None))
    if header is None:
        raise ValueError(f"`{path}` is empty; its first line must name the columns")
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise ValueError(f"`{path}`, line 1: two columns are called `{twice}`")
    for number, row in cells:
        if len(row) != len(header):
            raise ValueError(f"`{path}`, line {number}: {len(row)} columns, the header has {len(header)}")
        yield f"`{path}`, line {number}", dict(zip(header, row, strict=True))


def _tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in enumerate(lines, start=1) if line)


def _csv_cells(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise ValueError(f"`{path}`, line {reader.line_num}: broken CSV ({error})") from error


def _json_object(line: str, place: str) -> dict[str, Any]:
    value = parse_json(line, place)
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected a JSON object")
    return value


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    if not path.is_file():
        raise ValueError(f"no such file: `{path}`")
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"`{path}`, row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"cannot read `{path}`: {error}") from error
