"""Chunks -> requests -> results, with several requests in flight. Rows that the server refuses are rejected."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from threading import Event
from typing import Any, TypeVar

from bertline._batches import batches
from bertline._convert import MAX_REQUEST_BYTES
from bertline._status import ALL_INPUTS
from bertline.errors import BertlineError, ConnectionFailed, InvalidInput, Overloaded, ServerError, TimedOut
from bertline.jobs.operations import MissingColumn, Operation
from bertline.jobs.pass_through import FILE, ROW_NUMBER
from bertline.jobs.progress import Progress
from bertline.jobs.read.rows import ALL_COLUMNS, MAX_LINE_BYTES, Chunk, Row, Selection, chunks_of, text_bytes
from bertline.jobs.read.sources import CommandLineRows, Source
from bertline.results import Usage

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Pause before each retry; the last one repeats."""

Send = Callable[[list[Any], Usage], Sequence[Any]]
"""Send one request: inputs -> results, in the same order. Tokens and truncation are added to the usage."""

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Reason why a row has no result."""

    reason: str


@dataclass(slots=True)
class ChunkResults:
    """A chunk with the results of its rows."""

    chunk: Chunk
    results: list[Any]
    """For each row a result, a Rejection, or None while neither is known."""
    num_settled: int = 0
    """Number of rows, from the first on, that have a result or a Rejection."""
    num_truncated: int = 0
    """Number of rows that the server truncated."""

    def rejected_rows(self) -> list[dict[str, Any]]:
        """Return place, reason and content of each rejected row, as the file of rejected rows holds them."""
        return [
            {
                "place": self.chunk.place(row),
                ROW_NUMBER: self.chunk.row_number(index),
                FILE: self.chunk.source.path,
                "reason": result.reason,
                "row": row.fields,
            }
            for index, (row, result) in enumerate(zip(self.chunk.rows, self.results, strict=True))
            if isinstance(result, Rejection)
        ]


@dataclass(frozen=True)
class Batch:
    """Rows of a chunk that are sent in one request."""

    results: ChunkResults
    indices: Sequence[int]
    """Indices of the rows in the chunk."""
    inputs: list[Any]
    is_last: bool
    """True for the last batch of its chunk."""
    usage: Usage = field(default_factory=Usage)
    """Tokens and truncation of the rows that have results."""


OnBatch = Callable[[int, Usage, ChunkResults], None]
"""Called after each batch with the number of rows, their usage, and their chunk."""


@dataclass(frozen=True)
class BatchSender:
    """Sender of requests. Retries while the server is overloaded or unreachable, up to `patience_s`."""

    send: Send
    batch_size: int
    """Maximum number of rows in one request."""
    num_in_flight: int
    """Maximum number of concurrent requests."""
    patience_s: float
    on_wait: Callable[[str], None] = lambda message: None
    """Called with the reason when the sender starts to wait, and with "" when it goes on."""
    cancelled: Event = field(default_factory=Event)

    def results(
        self, chunks: Iterable[ChunkResults], inputs: Callable[[ChunkResults], Sequence[Any]], on_batch: OnBatch
    ) -> Iterator[ChunkResults]:
        """Send the rows of chunks. A chunk is read when all rows of the chunks before it are sent.

        Args:
            chunks: chunks, some of whose rows may be rejected already.
            inputs: returns the inputs of a chunk's rows, in order; None for a row that is rejected.
            on_batch: called after each batch.

        Yields:
            The same chunks, in order, with their results.

        Raises:
            BertlineError: when the server fails, or is unreachable for too long.
        """
        in_flight: deque[tuple[Batch, Future[list[Any]]]] = deque()
        threads = ThreadPoolExecutor(self.num_in_flight, thread_name_prefix="send")
        try:
            for batch in self._batches(chunks, inputs):
                in_flight.append((batch, threads.submit(self._send, batch.inputs, batch.usage)))
                while self._is_full(in_flight):
                    yield from _settle(*in_flight.popleft(), on_batch)
            while in_flight:
                yield from _settle(*in_flight.popleft(), on_batch)
        finally:
            self.cancelled.set()
            threads.shutdown(wait=False, cancel_futures=True)

    def _is_full(self, in_flight: Collection[tuple[Batch, Any]]) -> bool:
        """Return True if there are enough requests, or their chunks hold more than a few long lines."""
        chunks = {id(batch.results): batch.results.chunk.num_bytes for batch, _ in in_flight}
        max_bytes = MAX_LINE_BYTES + 2 * self.num_in_flight * MAX_REQUEST_BYTES
        return len(in_flight) > 2 * self.num_in_flight or (len(chunks) > 1 and sum(chunks.values()) > max_bytes)

    def retry(self, call: Callable[[], ReplyT]) -> ReplyT:
        """Call until the server replies.

        Raises:
            BertlineError: when the server fails, or is unreachable for too long.
        """
        started_s, num_retries = time.monotonic(), 0
        while True:
            try:
                reply = call()
            except (Overloaded, ConnectionFailed, TimedOut) as error:
                pause_s = PAUSES_S[min(num_retries, len(PAUSES_S) - 1)]
                if _is_final(error) or time.monotonic() + pause_s > started_s + self.patience_s:
                    raise
                num_retries += 1
                self.on_wait(str(error))
                if self.cancelled.wait(pause_s):
                    raise
            else:
                if num_retries:
                    self.on_wait("")
                return reply

    def _batches(
        self, chunks: Iterable[ChunkResults], inputs: Callable[[ChunkResults], Sequence[Any]]
    ) -> Iterator[Batch]:
        for results in chunks:
            pairs = [pair for pair in enumerate(inputs(results)) if results.results[pair[0]] is None]
            cut = list(
                batches(pairs, lambda pair: text_bytes(pair[1]), max_items=self.batch_size, max_bytes=MAX_REQUEST_BYTES)
            )
            for number, batch in enumerate(cut or [[]], start=1):
                indices, values = [index for index, _ in batch], [value for _, value in batch]
                yield Batch(results, indices, values, is_last=number >= len(cut))

    def _send(self, inputs: list[Any], usage: Usage, *, is_retry: bool = False) -> list[Any]:
        """Send one request, and smaller ones where the server refuses a part of it.

        Args:
            usage: gets the usage of the rows that have results added to it.
            is_retry: True if the server has refused these inputs as too large once.

        Returns:
            A result for each input; a Rejection where the server cannot use it, or the model gives no finite numbers.
        """
        if not inputs:
            return []
        request_usage = Usage()
        try:
            results = list(self.retry(lambda: self.send(inputs, request_usage)))
        except InvalidInput as error:
            if reasons := _reasons(error, len(inputs)):
                return self._send_without(inputs, reasons, usage)
            if not any(item.field in ALL_INPUTS for item in error.items):
                raise
            return self._send_halves(inputs, usage, error)
        except ServerError as error:
            if not (reasons := _reasons(error, len(inputs))):
                raise
            return self._send_without(inputs, reasons, usage, num_requests=2)
        except Overloaded as error:
            if not error.is_final:
                raise
            if len(inputs) == 1 and not is_retry:  # the server may have been slow for a moment only
                self.cancelled.wait(min(PAUSES_S[-1], self.patience_s))
                return self._send(inputs, usage, is_retry=True)
            return self._send_halves(inputs, usage, error)
        usage.num_tokens += request_usage.num_tokens
        usage.num_truncated += request_usage.num_truncated
        return results

    def _send_without(
        self, inputs: list[Any], reasons: Mapping[int, str], usage: Usage, num_requests: int = 1
    ) -> list[Any]:
        """Reject some inputs and send the others; in several requests where more bad inputs may be among them."""
        rest = [item for index, item in enumerate(inputs) if index not in reasons]
        size = max(1, -(-len(rest) // num_requests))
        requests = [self._send(rest[first : first + size], usage) for first in range(0, len(rest), size)]
        found = chain.from_iterable(requests)
        return [Rejection(reasons[index]) if index in reasons else next(found) for index in range(len(inputs))]

    def _send_halves(self, inputs: list[Any], usage: Usage, error: BertlineError) -> list[Any]:
        """Send a request that is too large for the server as two."""
        if len(inputs) == 1:
            return [Rejection(str(error))]
        middle = len(inputs) // 2
        return self._send(inputs[:middle], usage) + self._send(inputs[middle:], usage)


def _is_final(error: BertlineError) -> bool:
    return isinstance(error, Overloaded) and error.is_final


def _reasons(error: InvalidInput | ServerError, num_inputs: int) -> dict[int, str]:
    """Return what an error says about each input, by index. Inputs that were not sent are left out."""
    return {
        item.index: f"{item.field}: {item.reason}"
        for item in error.items
        if item.index is not None and 0 <= item.index < num_inputs
    }


def _settle(batch: Batch, future: Future[list[Any]], on_batch: OnBatch) -> Iterator[ChunkResults]:
    """Put the results of a batch into its chunk; yield the chunk after its last batch."""
    found, chunk = future.result(), batch.results
    for index, result in zip(batch.indices, found, strict=True):
        chunk.results[index] = result
    chunk.num_settled = len(chunk.results) if batch.is_last else batch.indices[-1] + 1
    chunk.num_truncated += len(batch.usage.truncated)
    on_batch(len(found), batch.usage, chunk)
    if batch.is_last:
        yield chunk


@dataclass(frozen=True)
class Pipeline:
    """Pipeline: rows of the sources -> chunks -> inputs -> requests -> results."""

    operation: Operation
    column_names: Mapping[str, str]
    """Operation column -> input column, where the names differ."""
    sources: Sequence[Source | CommandLineRows]
    sender: BatchSender
    progress: Progress
    selection: Selection = ALL_COLUMNS
    """Input columns to copy into the output."""

    @property
    def wanted(self) -> list[str]:
        """Input columns that the operation reads."""
        return self.operation.columns(self.column_names)

    @property
    def needed(self) -> list[str]:
        """Input columns that must exist: those that the operation requires, and all that the user named."""
        required = [self.column_names.get(name, name) for name in self.operation.needed]
        named = [self.column_names[name] for name in self.operation.optional if name in self.column_names]
        selected = [*self.selection.keep, *self.selection.drop]
        return [*required, *named, *(name for name in selected if name not in (ROW_NUMBER, FILE))]

    def results(
        self,
        numbers: Iterable[int],
        is_done: Callable[[Chunk], bool] = lambda chunk: False,
        max_rows: int | None = None,
    ) -> Iterator[ChunkResults]:
        """Send the rows of some sources.

        Args:
            numbers: indices into `sources`.
            is_done: returns True for chunks to skip.
            max_rows: maximum rows of a chunk, see `chunks_of`.

        Yields:
            The chunks that were not skipped, in order, with their results.
        """

        def to_send() -> Iterator[ChunkResults]:
            for number in numbers:
                for chunk in self.chunks(number, max_rows):
                    if is_done(chunk):
                        self.progress.skip(len(chunk.rows), self._fraction(chunk, len(chunk.rows)))
                    else:
                        yield ChunkResults(chunk, [Rejection(row.reason) if row.reason else None for row in chunk.rows])

        yield from self.sender.results(to_send(), self._inputs, self._on_batch)

    def chunks(self, number: int, max_rows: int | None = None) -> Iterator[Chunk]:
        """Read the chunks of one source."""
        return chunks_of(
            self.sources[number], number, self.wanted, self.needed, self._num_bytes, max_rows, self.selection
        )

    def check_readable(self) -> None:
        """Read the start of the first file, before a run removes anything.

        Raises:
            FileError: when it cannot be read.
        """
        first = self.sources[0]
        if isinstance(first, Source) and first.is_file:
            next(self.chunks(0, max_rows=1), None)

    def _inputs(self, results: ChunkResults) -> list[Any]:
        """Return the inputs of a chunk's rows. Rows without a valid input are rejected, and have None here."""
        inputs = []
        for index, row in enumerate(results.chunk.rows):
            value = None
            if not row.reason:
                try:
                    value = self.operation.read(row.fields, self.column_names)
                except MissingColumn as error:
                    results.results[index] = Rejection(f"{error}; name another column with --column")
                except ValueError as error:
                    results.results[index] = Rejection(str(error))
            inputs.append(value)
        return inputs

    def _num_bytes(self, row: Row) -> int:
        return sum(text_bytes(row.fields.get(name)) for name in self.wanted)

    def _on_batch(self, num_rows: int, usage: Usage, results: ChunkResults) -> None:
        fraction = self._fraction(results.chunk, results.num_settled)
        self.progress.add(num_rows, sum(usage.num_tokens), fraction)

    def _fraction(self, chunk: Chunk, num_rows: int) -> float:
        """Return the fraction of all input up to a row of a chunk."""
        return (chunk.file + chunk.fraction(num_rows)) / len(self.sources)
