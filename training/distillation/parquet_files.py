"""Parquet files, with one-line errors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.text.documents import check_file


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file.

    Raises:
        ValueError: naming a file that is missing, or no Parquet file.
    """
    check_file(path)
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"`{path}` is not a Parquet file: {' '.join(str(error).split())[:100]}") from error


def read_column(path: Path, column: str) -> pa.ChunkedArray:
    """Read a column.

    Raises:
        ValueError: naming a file that is damaged.
    """
    try:
        return open_parquet(path).read(columns=[column]).column(column)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"`{path}` cannot be read: {' '.join(str(error).split())[:100]}") from error
