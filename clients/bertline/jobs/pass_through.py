"""Row number, file and columns of the input, which stand in the output beside the results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bertline.jobs.read.rows import Chunk, Selection

ROW_NUMBER, FILE = "row_number", "file"
"""Columns that say which row of the input a row of the output is: its number in its file, from 1; where there are
several files, the file."""


@dataclass(frozen=True)
class Kept:
    """The columns beside the results."""

    selection: Selection
    results: Collection[str]
    """Names that the results take: a column of such a name is kept with `input_` before it."""
    places: Sequence[str] = ()
    """ROW_NUMBER and FILE, or those of them that are written. Their names are taken as those of the results are."""

    def names(self, there: Iterable[str]) -> dict[str, str]:
        """The columns that are kept of those that are there, and the names that they get."""
        kept = self.selection.of(there)
        return {name: self._free(name, kept) if self._is_taken(name) else name for name in kept}

    def _free(self, name: str, taken: Collection[str]) -> str:
        while name in taken or self._is_taken(name):
            name = f"input_{name}"
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self.results or name in self.places

    def rows(self, chunk: Chunk, indices: Sequence[int]) -> list[dict[str, Any]]:
        """These columns of some rows of a chunk, as objects of JSONL."""
        if chunk.blocks[0].table is not None:
            from bertline.jobs import tables

            table = self.table(chunk, indices)  # which without columns has no rows
            return tables.to_rows(table, chunk.source.name) if table.column_names else [{} for _ in indices]
        rows, known = chunk.rows, dict[tuple[str, ...], dict[str, str]]()
        return [self._place(chunk, index) | self._row(rows[index].fields, known) for index in indices]

    def _place(self, chunk: Chunk, index: int) -> dict[str, Any]:
        place = {ROW_NUMBER: chunk.row_number(index), FILE: chunk.source.path}
        return {name: place[name] for name in self.places}

    def _row(self, fields: dict[str, Any], known: dict[tuple[str, ...], dict[str, str]]) -> dict[str, Any]:
        there = tuple(fields)
        if there not in known:
            known[there] = self.names(there)
        return {name: fields[of] for of, name in known[there].items()}

    def table(self, chunk: Chunk, indices: Sequence[int]) -> Any:
        """The same of a chunk of Parquet, as a pyarrow.Table, of the types they have there."""
        import pyarrow

        from bertline.jobs import tables

        table = pyarrow.Table.from_batches([block.table for block in chunk.blocks])
        names = self.names(table.column_names)
        table = tables.without_views(table.select(list(names)).rename_columns(list(names.values())))
        kinds = {ROW_NUMBER: pyarrow.int64(), FILE: pyarrow.string()}
        places = pyarrow.Table.from_pylist(
            [self._place(chunk, index) for index in indices],
            schema=pyarrow.schema([(name, kinds[name]) for name in self.places]),
        )
        return tables.beside(places, table.take(pyarrow.array(indices, pyarrow.int64())))
