"""Parquet -> rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from bertline.jobs.blocks import BLOCK_ROWS, Block, Row, digest_of
from bertline.jobs.selection import Selection
from bertline.jobs.storage import FileError

_ERRORS = (OSError, ValueError, NotImplementedError, KeyError)
"""Those of pyarrow's are of these kinds."""


def parquet_library() -> Any:
    """pyarrow.parquet.

    Raises:
        FileError: when it is not installed.
    """
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise FileError("Parquet needs `pyarrow`: pip install 'bertline[cli]'") from error
    return pyarrow.parquet


def read_parquet(
    stream: BinaryIO, name: str, check: Callable[[Sequence[str]], None], wanted: Sequence[str], kept: Selection
) -> Iterator[Block]:
    """Rows with the columns that are wanted, as far as they are there; all others stay in the block's table.

    Args:
        name: of the file, for messages.
        check: is given the names of the columns.
        kept: which columns are kept.

    Raises:
        FileError: when the file is damaged.
    """
    library = parquet_library()
    import pyarrow

    from bertline.jobs import plain

    with readable(name):
        file = library.ParquetFile(stream)
    check(file.schema_arrow.names)
    number, total = 1, max(1, file.metadata.num_rows)
    footer = _footer(stream, file.metadata.serialized_size)  # tells of a change in any column
    there = [column for column in wanted if column in file.schema_arrow.names]
    used = list(dict.fromkeys([*there, *kept.of(file.schema_arrow.names)]))
    for batch in _batches(file, name):
        table = pyarrow.Table.from_batches([batch]).select(used)
        if plain.is_valid(table):
            fields = plain.to_inputs(table.select(there), name)
            rows = [Row(f"row {index}", values) for index, values in enumerate(fields, start=number)]
        else:
            rows = [_row(table.slice(index, 1), there, name, f"row {number + index}") for index in range(len(table))]
        number += len(rows)
        read = repr([row.fields for row in rows]).encode("utf-8", "surrogatepass")
        yield Block(rows, digest_of([footer, read]), (number - 1) / total, batch)


def _row(table: Any, there: Sequence[str], name: str, place: str) -> Row:
    """The only row of a table, some of whose columns may hold what is not UTF-8."""
    from bertline.jobs import plain

    try:
        plain.to_rows(table, name)
        (fields,) = plain.to_inputs(table.select(there), name)
        return Row(place, fields)
    except UnicodeDecodeError:
        return Row(place, plain.escaped(table.select(there), name), "not UTF-8; convert the file")


def _batches(file: Any, name: str) -> Iterator[Any]:
    batches = file.iter_batches(BLOCK_ROWS)
    while True:
        with readable(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the file."""
    try:
        yield
    except _ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"cannot read {name}: {reason}") from error


def _footer(stream: BinaryIO, num_bytes: int) -> bytes:
    stream.seek(-8 - num_bytes, io.SEEK_END)
    return stream.read(num_bytes)
