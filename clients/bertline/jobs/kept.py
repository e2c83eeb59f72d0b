"""The columns of the input that stand in the output, beside the results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
        return {name: self._free(name, kept) if name in self.results else name for name in kept}

    def _free(self, name: str, taken: Collection[str]) -> str:
        while name in taken or name in self.results:
            name = f"input_{name}"
        return name

    def rows(self, chunk: Chunk, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The kept columns of some rows of a chunk, as objects of JSONL."""
        if chunk.blocks[0].table is not None:
            from bertline.jobs import plain

            table = self.table(chunk, indices)  # which without columns has no rows
            return plain.to_rows(table, chunk.source.name) if table.column_names else [{} for _ in indices]
        rows, known = chunk.rows, dict[tuple[str, ...], dict[str, str]]()
        return [self._row(rows[index].fields, known) for index in indices]

    def _row(self, fields: dict[str, Any], known: dict[tuple[str, ...], dict[str, str]]) -> dict[str, Any]:
        there = tuple(fields)
        if there not in known:
            known[there] = self.names(there)
        return {name: fields[of] for of, name in known[there].items()}

    def table(self, chunk: Chunk, indices: Sequence[int]) -> Any:
        """The same of a chunk of Parquet, as a pyarrow.Table, of the types they have there."""
        import pyarrow

        from bertline.jobs import plain

        table = pyarrow.Table.from_batches([block.table for block in chunk.blocks])
        names = self.names(table.column_names)
        table = plain.without_views(table.select(list(names)).rename_columns(list(names.values())))
        return table.take(pyarrow.array(indices, pyarrow.int64()))
