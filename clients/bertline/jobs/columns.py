"""Pass-through columns: row number, file, and input columns that are copied to the output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bertline.jobs.rows import Chunk

ROW_NUMBER, FILE = "row_number", "file"
"""Output columns that identify the input row: its number in its file, from 1, and the file if there are several."""


@dataclass(frozen=True)
class Selection:
    """Input columns to copy into the output: the kept ones (all by default) without the dropped ones.

    Raises:
        ValueError: when a column is both kept and dropped.
    """

    keep: Sequence[str] = ()
    """Columns to keep; empty for all."""
    drop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if both := [name for name in self.keep if name in self.drop]:
            raise ValueError(f"--keep and --drop both name `{both[0]}`; name it in one of them")

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the selected columns among `names`."""
        return [name for name in names if name not in self.drop and (name in self.keep or not self.keep)]


ALL_COLUMNS = Selection()


@dataclass(frozen=True)
class PassThrough:
    """Pass-through columns of an output."""

    selection: Selection
    result_names: Collection[str]
    """Columns of the results. An input column of the same name is renamed to `input_...`."""
    position_names: Sequence[str] = ()
    """ROW_NUMBER and FILE, if they are written. An input column of the same name is renamed, too."""

    def names(self, columns: Iterable[str]) -> dict[str, str]:
        """Map selected input columns to their names in the output."""
        selected = self.selection.of(columns)
        taken = {*self.result_names, *self.position_names}
        names = {}
        for name in selected:
            free = name
            while name in taken and (free in taken or free in selected):
                free = f"input_{free}"
            names[name] = free
        return names

    def rows(self, chunk: Chunk, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return these columns of some rows of a chunk, as JSON objects."""
        if chunk.has_table:
            from bertline.jobs import tables

            table = self.table(chunk, indices)  # a table without columns has no rows
            return tables.to_rows(table, chunk.name) if table.column_names else [{} for _ in indices]
        rows, known = [], dict[tuple[str, ...], dict[str, str]]()
        for index in indices:
            fields = chunk.rows[index].fields
            columns = tuple(fields)
            if columns not in known:
                known[columns] = self.names(columns)
            passed = {output_name: fields[name] for name, output_name in known[columns].items()}
            rows.append(self._position(chunk, index) | passed)
        return rows

    def _position(self, chunk: Chunk, index: int) -> dict[str, Any]:
        position = {ROW_NUMBER: chunk.row_number(index), FILE: chunk.path}
        return {name: position[name] for name in self.position_names}

    def table(self, chunk: Chunk, indices: Sequence[int]) -> Any:
        """Return these columns of some rows of a Parquet chunk, as a pyarrow.Table with the types of the file."""
        import pyarrow

        from bertline.jobs import tables

        table = pyarrow.Table.from_batches([block.table for block in chunk.blocks])
        names = self.names(table.column_names)
        table = tables.without_views(table.select(list(names)).rename_columns(list(names.values())))
        types = {ROW_NUMBER: pyarrow.int64(), FILE: pyarrow.string()}
        positions = pyarrow.Table.from_pylist(
            [self._position(chunk, index) for index in indices],
            schema=pyarrow.schema([(name, types[name]) for name in self.position_names]),
        )
        return tables.side_by_side(positions, table.take(pyarrow.array(indices, pyarrow.int64())))
