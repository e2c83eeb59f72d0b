"""A job from its files to its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from bertline.jobs.asking import Ask, Asked, Asker, Rejected
from bertline.jobs.chunks import Chunk, chunks_of, text_bytes
from bertline.jobs.operations import Operation
from bertline.jobs.parts import Parts, rejected_rows
from bertline.jobs.progress import Progress
from bertline.jobs.sinks import Jsonl, json_line
from bertline.jobs.sources import BLOCK_ROWS, Given, Row, Source
from bertline.jobs.storage import File, FileError, open_write

MAX_TOLD = 20
"""Rejected rows that are told on standard error, where no file is named for them."""


@dataclass(frozen=True)
class Job:
    """What is asked about which rows."""

    operation: Operation
    names: Mapping[str, str]
    """Under which name a row has a column of the operation, where it is another."""
    sources: Sequence[Source | Given]
    asker: Asker
    progress: Progress

    @property
    def wanted(self) -> list[str]:
        """Columns that are read."""
        return [self.names.get(name, name) for name in (*self.operation.needed, *self.operation.optional)]

    @property
    def needed(self) -> list[str]:
        """Those that have to be there: what the operation cannot do without, and what was named."""
        return [self.names.get(name, name) for name in self.operation.needed] + [
            self.names[name] for name in self.operation.optional if name in self.names
        ]

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

        def chunks() -> Iterator[Asked]:
            for number in numbers:
                for chunk in self._chunks(number, max_rows):
                    if is_done(chunk):
                        self.progress.passed(self._share(chunk))
                    else:
                        yield Asked(chunk, [Rejected(row.reason) if row.reason else None for row in chunk.rows])

        yield from self.asker.answered(chunks(), self._inputs, self._told)

    def _chunks(self, number: int, max_rows: int | None) -> Iterator[Chunk]:
        return chunks_of(self.sources[number], number, self.wanted, self.needed, self._num_bytes, max_rows)

    def _inputs(self, asked: Asked) -> list[Any]:
        """The inputs of a chunk's rows; rows that make none are rejected."""
        inputs = []
        for index, row in enumerate(asked.chunk.rows):
            value = None
            if not row.reason:
                try:
                    value = self.operation.read(row.fields, self.names)
                except ValueError as error:
                    asked.results[index] = Rejected(str(error))
            inputs.append(value)
        return inputs

    def _num_bytes(self, row: Row) -> int:
        return sum(text_bytes(row.fields.get(name)) for name in self.wanted)

    def _told(self, num_rows: int, num_tokens: int, asked: Asked) -> None:
        self.progress.add(num_rows, num_tokens, self._share(asked.chunk))

    def _share(self, chunk: Chunk) -> float:
        return (chunk.file + chunk.share) / len(self.sources)


def run_to_parts(job: Job, parts: Parts) -> None:
    """Do what is left of a job, and make its output."""
    for asked in job.answered(range(len(job.sources)), parts.has):
        parts.write(asked)
    parts.finish()


def run_to_stream(job: Job, sink: Jsonl, rejects: File | None) -> int:
    """Write results to standard output as they come.

    Returns:
        How many rows were rejected.
    """
    num_rejected = 0
    with standard_output() as stream, _telling(rejects) as tell:
        for asked in job.answered(range(len(job.sources)), max_rows=BLOCK_ROWS):
            sink.write(asked, stream)
            for row in rejected_rows(asked):
                num_rejected += 1
                tell(num_rejected, row)
    if rejects is None and num_rejected > MAX_TOLD:
        print(
            f"bertline: {num_rejected - MAX_TOLD} more rows were rejected; name a file with --rejects", file=sys.stderr
        )
    return num_rejected


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Standard output, of a reader that may leave early."""
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed; give a file with --output")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does: what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@contextmanager
def _telling(rejects: File | None) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    if rejects is None:
        yield _tell
        return
    with open_write(rejects) as stream:
        yield lambda number, row: _into(stream, row)


def _into(stream: BinaryIO, row: Mapping[str, Any]) -> None:
    stream.write(json_line(row))


def _tell(number: int, row: Mapping[str, Any]) -> None:
    if number <= MAX_TOLD:
        print(f"bertline: {row['place']}: {row['reason']}", file=sys.stderr)


def bound(ask: Callable[..., Sequence[Any]], **options: Any) -> Ask:
    """A method of the client as an asker calls it."""
    return lambda inputs, usage: partial(ask, **options)(inputs, usage=usage)
