"""The columns of the input that stand in the output, beside the results."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertline.jobs.chunks import Chunk


@dataclass(frozen=True)
class Kept:
    """Which columns are kept: those asked for, or all but those that were read as inputs."""

    asked_for: Sequence[str]
    """None of them: all."""
    inputs: Collection[str]
    """Columns that the operation reads."""
    results: Collection[str]
    """Names that the results take: a column of such a name is kept with `input_` before it."""

    def names(self, there: Iterable[str]) -> dict[str, str]:
        """Of the columns that are there, those that are kept, and the names that they get."""
        kept = [name for name in there if (name in self.asked_for if self.asked_for else name not in self.inputs)]
        return {name: f"input_{name}" if name in self.results else name for name in kept}

    def rows(self, chunk: Chunk, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The kept columns of some rows of a chunk, as objects of JSONL."""
        if chunk.blocks[0].table is not None:
            table = self.table(chunk, indices)  # which without columns has no rows
            return [_plain(row) for row in table.to_pylist()] if table.column_names else [{} for _ in indices]
        rows, renamed = chunk.rows, dict[str, str]()
        for row in rows:
            if not renamed.keys() >= row.fields.keys():
                renamed |= dict.fromkeys(row.fields) | self.names(row.fields)  # type: ignore[arg-type]
        return [
            {renamed[name]: value for name, value in rows[index].fields.items() if renamed[name]} for index in indices
        ]

    def table(self, chunk: Chunk, indices: Sequence[int]) -> Any:
        """The same of a chunk of Parquet, as a pyarrow.Table, of the types they have there."""
        import pyarrow

        table = pyarrow.Table.from_batches([block.table for block in chunk.blocks])
        names = self.names(table.column_names)
        return (
            table.select(list(names)).rename_columns(list(names.values())).take(pyarrow.array(indices, pyarrow.int64()))
        )


def _plain(value: Any) -> Any:
    """What JSON can hold of what Parquet can."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    known: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
        (bytes, lambda data: base64.b64encode(data).decode("ascii")),
        ((datetime.date, datetime.time), lambda moment: moment.isoformat()),
        (datetime.timedelta, lambda span: span.total_seconds()),
    )
    return next((write(value) for kind, write in known if isinstance(value, kind)), str(value))
