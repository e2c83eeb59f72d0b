"""What the commands have in common: inputs from the command line or a file, results as JSONL."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

import rich.console
import rich.progress
import typer

from bertline._batches import batches
from bertline._files import Record, open_input, open_output, read_records
from bertline.errors import InvalidInput

_MAX_RECORDS, _MAX_BYTES = 1024, 8 << 20
"""Of a file, what is held in memory at one time."""


class Format(StrEnum):
    """How an input file is read."""

    text = "text"
    jsonl = "jsonl"


@dataclass(frozen=True)
class Files:
    """Where inputs come from and results go. See the options of the same names."""

    input_path: str | None
    input_format: Format | None
    skip_empty: bool
    output_path: str | None
    force: bool

    def process(
        self,
        given: Sequence[Any] | None,
        read_row: Callable[[Any], Any],
        ask: Callable[[list[Any]], Iterable[Any]],
        result_row: Callable[[Any], dict[str, Any]],
    ) -> None:
        """Ask about every input and write the results, holding one batch of them at a time.

        Args:
            given: inputs of the command line, instead of a file.
            read_row: makes an input out of an object of JSONL.
            ask: inputs -> results.
            result_row: makes an object of JSONL out of a result.
        """
        with self._records(given, read_row) as records, open_output(self.output_path, force=self.force) as write:
            for batch in batches(records, _num_bytes, max_items=_MAX_RECORDS, max_bytes=_MAX_BYTES):
                for record, result in zip(batch, _ask(ask, batch), strict=True):
                    write({**record.keep, **result_row(result)})

    @contextmanager
    def _records(self, given: Sequence[Any] | None, read_row: Callable[[Any], Any]) -> Iterator[Iterable[Record]]:
        if bool(given) == (self.input_path is not None):
            raise typer.BadParameter("give either the input itself or --input FILE (`-` is standard input)")
        if self.input_path is None:
            yield [Record(item, f"input {number}", {}) for number, item in enumerate(given or (), start=1)]
            return
        is_jsonl = self.input_format is Format.jsonl or (
            self.input_format is None and self.input_path.endswith(".jsonl")
        )
        with open_input(self.input_path) as (file, name), self._progress(file) as watched:
            yield read_records(watched, name, read_row if is_jsonl else None, skip_empty=self.skip_empty)

    @contextmanager
    def _progress(self, file: BinaryIO) -> Iterator[BinaryIO]:
        """Show how much of a file was read, where a person sees it and no results stand in between."""
        shown = sys.stderr.isatty() and self.input_path != "-" and bool(self.output_path or not sys.stdout.isatty())
        if not shown:
            yield file
            return
        console = rich.console.Console(stderr=True)
        total = os.fstat(file.fileno()).st_size
        with rich.progress.wrap_file(file, total, console=console) as watched:
            yield watched


def _ask(ask: Callable[[list[Any]], Iterable[Any]], batch: Sequence[Record]) -> Iterable[Any]:
    """Ask, and name the place of an input that is refused."""
    try:
        return ask([record.input for record in batch])
    except InvalidInput as error:
        named = [item for item in error.items if item.index is not None]
        if not named:
            raise
        more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
        place = batch[named[0].index or 0].place
        raise InvalidInput(f"{place}, {named[0].field}: {named[0].reason}{more}") from error


def _num_bytes(record: Record) -> int:
    values = (record.input,) if isinstance(record.input, str) else record.input
    return sum(len(value.encode("utf-8", "surrogatepass")) for value in values)
