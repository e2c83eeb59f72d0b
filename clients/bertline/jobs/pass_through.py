"""Pass-through columns: row number, file, and input columns that stand beside the results in the output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bertline.jobs.read.rows import Chunk, Selection

ROW_NUMBER, FILE = "row_number", "file"
"""Output columns that identify the input row: its number in its file, from 1, and the file if there are several."""


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
        return {name: self._free(name, selected) if self._is_taken(name) else name for name in selected}

    def _free(self, name: str, taken: Collection[str]) -> str:
        while name in taken or self._is_taken(name):
            name = f"input_{name}"
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self.result_names or name in self.position_names

    def rows(self, chunk: Chunk, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return these columns of some rows of a chunk, as JSON objects."""
        if chunk.blocks[0].table is not None:
            from bertline.jobs import tables

            table = self.table(chunk, indices)  # a table without columns has no rows
            return tables.to_rows(table, chunk.source.name) if table.column_names else [{} for _ in indices]
        rows, known = chunk.rows, dict[tuple[str, ...], dict[str, str]]()
        return [self._position(chunk, index) | self._row(rows[index].fields, known) for index in indices]

    def _position(self, chunk: Chunk, index: int) -> dict[str, Any]:
        position = {ROW_NUMBER: chunk.row_number(index), FILE: chunk.source.path}
        return {name: position[name] for name in self.position_names}

    def _row(self, fields: dict[str, Any], known: dict[tuple[str, ...], dict[str, str]]) -> dict[str, Any]:
        columns = tuple(fields)
        if columns not in known:
            known[columns] = self.names(columns)
        return {output_name: fields[name] for name, output_name in known[columns].items()}

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
