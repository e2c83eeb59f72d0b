"""Chunks -> results, with several requests under way at one time, in order. What the server cannot use is set apart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from threading import Event
from typing import Any, TypeVar

from bertline._batches import batches
from bertline._convert import MAX_REQUEST_BYTES
from bertline._status import ALL_INPUTS
from bertline.errors import BertlineError, ConnectionFailed, InvalidInput, Overloaded, ServerError, TimedOut
from bertline.jobs.operations import Missing, Operation
from bertline.jobs.pass_through import FILE, ROW_NUMBER
from bertline.jobs.progress import Progress
from bertline.jobs.read.rows import ALL_COLUMNS, Chunk, Row, Selection, chunks_of, text_bytes
from bertline.jobs.read.sources import Given, Source
from bertline.results import Usage

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Before each further attempt; the last one for all that follow."""

Ask = Callable[[list[Any], Usage], Sequence[Any]]
"""Inputs -> results. Adds what it took."""

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why there is no result."""

    reason: str


@dataclass(slots=True)
class Asked:
    """A chunk, and what became of each of its rows."""

    chunk: Chunk
    results: list[Any]
    """A result or Rejected for each row."""
    num_settled: int = 0
    """Rows, from the first on, of which is known what became of them."""


@dataclass(frozen=True)
class Part:
    """Rows of a chunk that are sent together."""

    asked: Asked
    indices: Sequence[int]
    """Of its rows."""
    inputs: list[Any]
    is_last: bool
    usage: Usage = field(default_factory=Usage)
    """Tokens and cuts of the rows that have results."""


@dataclass(frozen=True)
class Asker:
    """Sends requests.

    A server that is overloaded, or that cannot be reached, is asked again until it was out of reach for `patience_s`.
    """

    ask: Ask
    batch_size: int
    num_in_flight: int
    patience_s: float
    waiting: Callable[[str], None] = lambda message: None
    """Is told why the job waits, and with nothing when it goes on."""
    abandoned: Event = field(default_factory=Event)

    def answered(
        self,
        asked: Iterable[Asked],
        inputs: Callable[[Asked], Sequence[Any]],
        progress: Callable[[int, Usage, Asked], None],
    ) -> Iterator[Asked]:
        """Ask about chunks, taking the next one when there is nothing left to send of those before.

        Args:
            asked: chunks, some of whose rows may be rejected already.
            inputs: the inputs of a chunk, in order; None for a row that is rejected.
            progress: is told how many rows came back, what they took, and the chunk they are of.

        Yields:
            The same chunks, in order, with their results.

        Raises:
            BertlineError: when the server fails, or is out of reach for too long.
        """
        under_way: deque[tuple[Part, Future[list[Any]]]] = deque()
        threads = ThreadPoolExecutor(self.num_in_flight, thread_name_prefix="ask")
        try:
            for part in self._parts(asked, inputs):
                under_way.append((part, threads.submit(self._results, part.inputs, part.usage)))
                if len(under_way) > 2 * self.num_in_flight:
                    yield from _settle(*under_way.popleft(), progress)
            while under_way:
                yield from _settle(*under_way.popleft(), progress)
        finally:
            self.abandoned.set()
            threads.shutdown(wait=False, cancel_futures=True)

    def _parts(self, asked: Iterable[Asked], inputs: Callable[[Asked], Sequence[Any]]) -> Iterator[Part]:
        for item in asked:
            given = list(enumerate(inputs(item)))
            good = [pair for index, pair in enumerate(given) if item.results[index] is None]
            cut = batches(
                good, lambda pair: text_bytes(pair[1]), max_items=self.batch_size, max_bytes=MAX_REQUEST_BYTES
            )
            previous: list[tuple[int, Any]] = []
            for batch in cut:
                if previous:
                    yield _part(item, previous, is_last=False)
                previous = batch
            yield _part(item, previous, is_last=True)

    def _results(self, inputs: list[Any], took: Usage, *, is_second: bool = False) -> list[Any]:
        """The results of one request, Rejected where the server cannot use an input, or its model gives no finite
        numbers for it.

        Args:
            took: gets what it took added to it.
            is_second: whether they were refused as too much before.
        """
        if not inputs:
            return []
        usage = Usage()
        try:
            results = list(self.patiently(lambda: self.ask(inputs, usage)))
        except InvalidInput as error:
            if reasons := _reasons(error, len(inputs)):
                return self._without(inputs, reasons, took)
            if not any(item.field in ALL_INPUTS for item in error.items):
                raise
            return self._divided(inputs, took, error)
        except ServerError as error:
            if not (reasons := _reasons(error, len(inputs))):
                raise
            return self._without(inputs, reasons, took, 2)
        except Overloaded as error:
            if not error.is_final:
                raise
            if len(inputs) == 1 and not is_second:  # the server may have been slow for a moment only
                self.abandoned.wait(min(PAUSES_S[-1], self.patience_s))
                return self._results(inputs, took, is_second=True)
            return self._divided(inputs, took, error)
        took.num_tokens += usage.num_tokens
        took.num_truncated += usage.num_truncated
        return results

    def _without(self, inputs: list[Any], reasons: dict[int, str], took: Usage, num_requests: int = 1) -> list[Any]:
        """Reject some inputs, and ask about the others, in several requests where not all bad ones are known."""
        rest = [item for index, item in enumerate(inputs) if index not in reasons]
        size = max(1, -(-len(rest) // num_requests))
        parts = [self._results(rest[first : first + size], took) for first in range(0, len(rest), size)]
        found = chain.from_iterable(parts)
        return [Rejected(reasons[index]) if index in reasons else next(found) for index in range(len(inputs))]

    def _divided(self, inputs: list[Any], took: Usage, error: BertlineError) -> list[Any]:
        """What the server will never take at once, in two halves."""
        if len(inputs) == 1:
            return [Rejected(str(error))]
        middle = len(inputs) // 2
        return self._results(inputs[:middle], took) + self._results(inputs[middle:], took)

    def patiently(self, ask: Callable[[], ReplyT]) -> ReplyT:
        """What the server replies, as soon as it can.

        Raises:
            BertlineError: when it fails, or is out of reach for too long.
        """
        began_s, attempt = time.monotonic(), 0
        while True:
            try:
                reply = ask()
            except (Overloaded, ConnectionFailed, TimedOut) as error:
                pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
                if _is_final(error) or time.monotonic() + pause_s > began_s + self.patience_s:
                    raise
                attempt += 1
                self.waiting(str(error))
                if self.abandoned.wait(pause_s):
                    raise
            else:
                if attempt:
                    self.waiting("")
                return reply


def _is_final(error: BertlineError) -> bool:
    return isinstance(error, Overloaded) and error.is_final


def _reasons(error: InvalidInput | ServerError, num_inputs: int) -> dict[int, str]:
    """Return what an error says of inputs, by their index, without inputs that were never sent."""
    return {
        item.index: f"{item.field}: {item.reason}"
        for item in error.items
        if item.index is not None and 0 <= item.index < num_inputs
    }


def _part(asked: Asked, pairs: Sequence[tuple[int, Any]], *, is_last: bool) -> Part:
    return Part(asked, [index for index, _ in pairs], [item for _, item in pairs], is_last)


def _settle(part: Part, future: Future[list[Any]], progress: Callable[[int, Usage, Asked], None]) -> Iterator[Asked]:
    results = future.result()
    for index, result in zip(part.indices, results, strict=True):
        part.asked.results[index] = result
    part.asked.num_settled = len(part.asked.results) if part.is_last else part.indices[-1] + 1
    progress(len(results), part.usage, part.asked)
    if part.is_last:
        yield part.asked


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
