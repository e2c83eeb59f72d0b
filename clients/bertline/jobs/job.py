"""The way of a job's rows: chunks -> inputs -> requests -> results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertline.jobs.asking import Asked, Asker, Rejected
from bertline.jobs.blocks import Row
from bertline.jobs.chunks import Chunk, chunks_of, text_bytes
from bertline.jobs.kept import FILE, ROW_NUMBER
from bertline.jobs.operations import Missing, Operation
from bertline.jobs.progress import Progress
from bertline.jobs.selection import ALL_COLUMNS, Selection
from bertline.jobs.sources import Given, Source
from bertline.results import Usage


@dataclass(frozen=True)
class Job:
    """What is asked about which rows."""

    operation: Operation
    names: Mapping[str, str]
    """Under which name a row has a column of the operation, where it is another."""
    sources: Sequence[Source | Given]
    asker: Asker
    progress: Progress
    selection: Selection = ALL_COLUMNS
    """The columns of the input that stand in the output."""

    @property
    def wanted(self) -> list[str]:
        """Columns that are read."""
        return self.operation.columns(self.names)

    @property
    def needed(self) -> list[str]:
        """Those that have to be there: what the operation cannot do without, and what was named."""
        read = [self.names.get(name, name) for name in self.operation.needed]
        named = [self.names[name] for name in self.operation.optional if name in self.names]
        selected = [*self.selection.keep, *self.selection.drop]
        return [*read, *named, *(name for name in selected if name not in (ROW_NUMBER, FILE))]

    def answered(
        self,
        numbers: Sequence[int],
        is_done: Callable[[Chunk], bool] = lambda chunk: False,
        max_rows: int | None = None,
    ) -> Iterator[Asked]:
        """Ask about files.

        Args:
            numbers: of the files.
            is_done: which chunks to pass over.
            max_rows: of a chunk, as for `chunks_of`.

        Yields:
            The others with their results, in order.
        """

        def waiting() -> Iterator[Asked]:
            for number in numbers:
                for chunk in self.chunks(number, max_rows):
                    if is_done(chunk):
                        self.progress.passed(self._share(chunk, len(chunk.rows)))
                    else:
                        yield Asked(chunk, [Rejected(row.reason) if row.reason else None for row in chunk.rows])

        yield from self.asker.answered(waiting(), self._inputs, self._told)

    def chunks(self, number: int, max_rows: int | None = None) -> Iterator[Chunk]:
        """Those of a file."""
        return chunks_of(
            self.sources[number], number, self.wanted, self.needed, self._num_bytes, max_rows, self.selection
        )

    def refuse_unreadable(self) -> None:
        """Raise a FileError where the first file cannot be read, before anything is removed in favour of it."""
        first = self.sources[0]
        if isinstance(first, Source) and first.is_file:
            next(self.chunks(0, max_rows=1), None)

    def _inputs(self, asked: Asked) -> list[Any]:
        """The inputs of a chunk's rows; rows that make none are rejected."""
        inputs = []
        for index, row in enumerate(asked.chunk.rows):
            value = None
            if not row.reason:
                try:
                    value = self.operation.read(row.fields, self.names)
                except ValueError as error:
                    hint = "; name another one with --column" if isinstance(error, Missing) else ""
                    asked.results[index] = Rejected(f"{error}{hint}")
            inputs.append(value)
        return inputs

    def _num_bytes(self, row: Row) -> int:
        return sum(text_bytes(row.fields.get(name)) for name in self.wanted)

    def _told(self, num_rows: int, usage: Usage, asked: Asked) -> None:
        share = self._share(asked.chunk, asked.num_settled)
        self.progress.add(num_rows, sum(usage.num_tokens), len(usage.truncated), share)

    def _share(self, chunk: Chunk, num_rows: int) -> float:
        return (chunk.file + chunk.share(num_rows)) / len(self.sources)
